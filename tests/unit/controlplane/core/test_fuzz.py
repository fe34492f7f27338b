"""Random faults against the loop with fake agents: by the agents' own truth there is
one owner for each port, nothing healthy ends without a decision, and once the faults
stop the fleet is what the catalog says."""

import math
import random

import pytest

from controlplane.events import LeaseExtended
from llmgw.wire.messages import Start, Stop
from tests.unit.controlplane.core.harness import Harness, gpus

CATALOG = """
models:
  a: {scaling: {min: 2, max: 2}, profiles: [{engine: sim, source: "sim:", min_memory_gb: 4, startup_timeout: 30s}]}
  b:
    scaling: {min: 1, max: 1}
    profiles: [{engine: sim, source: "sim:", gpu_class: h100, gpus: 1, startup_timeout: 30s}]
"""
QUICK = {"drain_grace": 20.0, "lost_after": 60.0, "settling_limit": 30.0, "parking_failures": 1000}
FEWER = CATALOG.replace("{min: 2, max: 2}", "{min: 1, max: 1}")
WITHOUT = CATALOG.split("  b:", maxsplit=1)[0]


def truth(h: Harness) -> None:
    """Invariants by what runs, not by what the control plane thinks."""
    owners: dict[tuple[str, object], object] = {}
    for node_id, agent in h.agents.items():
        for key, (status, _) in agent.shards.items():
            for thing in (status.spec.port, *status.spec.devices):
                assert owners.setdefault((node_id, thing), key) == key, "two engines on one port or device"
    stopped = {d.replica for d in h.decisions if d.kind == "stop"}
    for agent in h.agents.values():
        for command in agent.commands:
            if type(command).__name__ == "Stop":
                assert any(id_.split("@")[0] == command.replica_id for id_ in stopped), "a stop without a decision"
    placed = {d.replica: d for d in h.decisions if d.kind == "place"}
    for node_id, command in h.doubtful:
        assert not isinstance(command, Stop), "a stop while the lease is in doubt"
        if isinstance(command, Start):
            heals = placed[command.spec.replica_id].figures["heals"]
            assert heals in h.failed[node_id], "not in the stead of what failed on that node"


@pytest.mark.parametrize("seed", range(40))
def test_faults_then_peace(seed):
    """REC proof in small: reconnects, lost frames, dead engines, reboots, a slow store, a lease
    in doubt, control-plane restarts and catalog edits, in any order."""
    rng = random.Random(seed)
    h = Harness(CATALOG, ("n1", "n2", "n3"), seed=seed, **QUICK)
    for agent in h.agents.values():
        agent.inventory = h.agents["n1"].inventory
    h.agents["n2"].inventory = type(h.agents["n2"].inventory)(
        **{f: getattr(h.agents["n2"].inventory, f) for f in h.agents["n2"].inventory.__struct_fields__}
        | {"devices": gpus(2)}
    )
    h.disconnect("n2")
    h.connect("n2")
    boots = 0
    for _ in range(60):
        agent = h.agents[rng.choice(list(h.agents))]
        fault = rng.randrange(12)
        if fault == 0 and agent.session:
            h.disconnect(agent.node_id)
        elif fault in (1, 2, 3) and not agent.session:
            h.connect(agent.node_id)
        elif fault == 4 and agent.shards:
            h.up(agent.node_id, agent.kill(rng.choice(list(agent.shards))))
        elif fault == 5:
            agent.deaf = not agent.deaf and agent.session is not None
        elif fault == 6 and agent.session:
            h.disconnect(agent.node_id)
            agent.shards.clear()
            agent.stopping.clear()
        elif fault == 7:
            if h.held is None:
                h.held = []
            else:
                h.release()
        elif fault == 8:
            h.reload(rng.choice([CATALOG, FEWER, WITHOUT]))
        elif fault == 9:
            agent.load_time = rng.choice([0.5, 3.0, 50.0])
            agent.stop_time = rng.choice([0.0, 4.0])
        elif fault == 10 and rng.random() < 0.3:
            boots += 1
            h.held = None
            h.restart(CATALOG, f"boot-{boots}", **QUICK)
        elif fault == 11:
            h.feed(LeaseExtended(h.clock.monotonic() + rng.choice([0.0, 10.0, 1e6])))
        h.advance(rng.choice([0.5, 3.0, 20.0]))
        truth(h)
    h.feed(LeaseExtended(math.inf))
    if h.held is not None:
        h.release()
    for agent in h.agents.values():
        agent.deaf, agent.load_time, agent.stop_time = False, 1.0, 0.0
        if agent.session:
            h.disconnect(agent.node_id)  # a frame that was lost on the way is told again
        h.connect(agent.node_id)
    h.reload(CATALOG)
    h.advance(900, step=1.0)
    truth(h)
    running = sorted(status.spec.model for agent in h.agents.values() for status, _ in agent.shards.values())
    assert running == ["a", "a", "b"]
    assert sorted((r.model, r.state) for r in h.view.replicas.values()) == [
        ("a", "ready"),
        ("a", "ready"),
        ("b", "ready"),
    ]
    assert not h.kinds("quarantine")
    assert not h.kinds("invariant")
    assert not any(agent.exits for agent in h.agents.values())
