"""The simulator finds bugs: each one put in on purpose breaks an invariant."""

import pytest

from llmgw.sim.scenario import Given
from llmgw.sim.simulation import simulate
from tests.sim.mutations import MUTATIONS

BUDGET = 150
"""Seeds within which a bug must be found."""


@pytest.mark.parametrize(("mutation", "only"), [pytest.param(*each, id=each[0].__name__) for each in MUTATIONS])
def test_a_bug_is_found(mutation, only, monkeypatch):
    """A simulator that passes whatever the product does proves nothing."""
    mutation(monkeypatch)
    assert any(simulate(seed, given=Given(only=only)).broken for seed in range(BUDGET)), mutation.__doc__
