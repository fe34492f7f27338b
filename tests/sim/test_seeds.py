"""The real machines in a simulated world full of faults, one seed per test.

A failure prints the invariant, the last events and the command that replays it.
"""

import pytest

from llmgw.sim.run import failure
from llmgw.sim.scenario import Given
from llmgw.sim.simulation import simulate

SEEDS = range(320)


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_and_the_desired_state_is_reached(seed):
    """AGT-04, AGT-06, AGT-07, AGT-09, HA-01, HA-02, PLC-13, REC-03, REC-06, REC-10, REC-11,
    REC-20 to REC-25: whatever breaks, one owner per device and port, no engine ended without
    a decision on record, nothing orphaned, nobody obeyed after who came later, nothing done
    in doubt but healing in place, no fleet given up because it went silent; and once faults
    stop, one control plane leads and what people want is what runs."""
    result = simulate(seed)
    assert result.broken is None, failure(result, Given())
    assert result.settled is not None
    assert result.steps > 1000
