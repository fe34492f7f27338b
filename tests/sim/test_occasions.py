"""No invariant of leadership holds only because nothing ever tried it."""

from collections import Counter

from controlplane.fleet import lead
from llmgw.sim.allegiance import OCCASIONS
from llmgw.sim.faults import CONTEST
from llmgw.sim.run import failure
from llmgw.sim.scenario import Given
from llmgw.sim.simulation import simulate
from tests.sim.test_seeds import SEEDS


def test_every_occasion_to_break_an_invariant_is_met():
    """HA-01, HA-02, AGT-04, REC-10, REC-11: leaders are replaced and do not know it, fall into
    doubt with work to do, meet nodes that obey another; nodes fall silent together."""
    met: Counter[str] = Counter()
    for seed in SEEDS:
        met += simulate(seed, given=Given(only=CONTEST)).occasions
        if met.keys() >= OCCASIONS.keys():
            break
    assert not OCCASIONS.keys() - met.keys()


def test_nodes_refuse_a_leader_that_was_replaced_by_themselves(monkeypatch):
    """AGT-04: also one that does not mind whom they obeyed before. Each of the two sides is
    enough; with both, the node's never has anything to refuse."""
    monkeypatch.setattr(lead, "unproven", lambda *_, **__: False)
    given = Given(only=("control-isolated", "agent-crash"))  # one that can be told lets go
    refused = 0
    for seed in SEEDS[:40]:
        result = simulate(seed, given=given)
        assert result.broken is None, failure(result, given)
        refused += result.occasions["node-refuses"]
    assert refused > 0
