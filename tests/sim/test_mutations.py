"""The simulator finds bugs: each one put in on purpose breaks an invariant."""

import pytest

from llmgw.sim.scenario import Given
from llmgw.sim.simulation import simulate
from tests.sim.mutations import FOUND_BY, MUTATIONS
from tests.sim.test_seeds import SEEDS


@pytest.mark.parametrize(("mutation", "only"), [pytest.param(*each, id=each[0].__name__) for each in MUTATIONS])
def test_a_bug_is_found(mutation, only, monkeypatch):
    """A simulator that passes whatever the product does proves nothing. The seeds are those
    of ``test_seeds``; the one that found the bug when it was written down comes first."""
    mutation(monkeypatch)
    first = FOUND_BY.get(mutation, 0)
    seeds = [*SEEDS[first:], *SEEDS[:first]]
    assert any(simulate(seed, given=Given(only=only)).broken for seed in seeds), mutation.__doc__
