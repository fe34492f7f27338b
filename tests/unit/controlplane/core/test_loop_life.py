"""Replica life through the real loop: place, ready, fail, back off, park, stop."""

import pytest

from controlplane.events import Cordon, CordonSet, RetryRequested
from controlplane.fleet.keys import engine_key
from llmgw.wire.messages import Device, DeviceUse, Measurements, ShardExit
from tests.unit.controlplane.core.harness import ONE_MODEL, SECRET, FakeAgent, Harness, gpus, report

TWO = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 2, max: 2}")
OFF = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 0, max: 0}")
EMPTY = "models: {}"
GPU = ONE_MODEL.replace("min_memory_gb: 4, cpu_cores: 1", "gpu_class: h100, gpus: 1")


def failing(code: str = "exited"):
    return lambda spec: ShardExit(
        replica_id=spec.replica_id, code=code, message="could not load", exit_status=1, tail=("bad magic",)
    )


def test_a_model_is_placed_started_and_routed():
    """REC-01, ENG-03: placed with a reason, keyed, loading then ready in the routes."""
    h = Harness()
    h.settle()
    replica = h.only()
    assert replica.state == "starting"
    assert h.table["tiny"].state == "loading"
    assert "starting on n1" in h.table["tiny"].reason
    h.advance(3)
    assert h.only().state == "ready"
    (endpoint,) = h.table["tiny"].endpoints
    assert endpoint.id == replica.id
    assert endpoint.key == engine_key(SECRET, replica.id)
    assert endpoint.key.startswith("ek-")
    (start,) = h.starts()
    assert start.spec.engine_key == endpoint.key
    assert replica.shards[0].spec.engine_key == ""
    (place,) = [d for d in h.decisions if d.kind == "place"]
    assert place.replica == replica.id
    assert place.node == "n1"
    assert "wants 1 replica" in place.reason


def test_nothing_is_sent_before_the_commit():
    """Commit, then dispatch: while the store is away no command leaves."""
    h = Harness()
    h.held = []
    h.settle()
    assert h.only().state == "placing"
    h.advance(20)
    assert not h.starts()
    assert len(h.replicas()) == 1
    h.release()
    assert len(h.starts()) == 1
    h.advance(3)
    assert h.only().state == "ready"


def test_a_placement_taken_back_before_its_commit_sends_nothing():
    """The model left while the store was away: no start, no stop, nothing left."""
    h = Harness()
    h.held = []
    h.settle()
    h.reload(EMPTY)
    h.settle()
    h.release()
    h.advance(5)
    assert not h.starts()
    assert not h.stops()
    assert not h.view.replicas
    assert [d.kind for d in h.decisions] == ["place", "stop"]


def test_waits_are_jittered():
    """REC-03: models that failed together do not return together."""
    waits = set()
    for seed in range(5):
        h = Harness(seed=seed)
        h.agents["n1"].refuse = lambda spec: "engine_missing"
        h.advance(1)
        waits.add(h.view.health["tiny"].backoff_until - h.view.health["tiny"].last_error_at)
    assert len(waits) == 5


def test_a_converged_fleet_stays_still():
    """PLC proof: re-planning a converged view does nothing, and publishes nothing."""
    h = Harness()
    h.advance(10)
    decisions, tables, version = len(h.decisions), len(h.tables), h.view.version
    h.advance(200)
    assert len(h.decisions) == decisions
    assert len(h.tables) == tables
    assert h.view.version == version
    assert h.passes > 10


def test_a_killed_engine_is_rebuilt_after_a_backoff():
    """REC-03: a failed shard fails the replica; a new id follows after a jittered wait."""
    h = Harness()
    h.advance(5)
    first = h.only()
    h.up("n1", h.agents["n1"].kill(first.shards[0].spec.key))
    assert h.table["tiny"].endpoints == ()  # at once, not at the next pass
    assert "exit status -9" in h.table["tiny"].reason
    assert h.agents["n1"].exits == {}  # acknowledged
    h.settle()
    assert len(h.starts()) == 1
    wait = h.view.health["tiny"].backoff_until - h.clock.monotonic()
    assert 3.7 <= wait <= 6.3
    h.advance(wait + 3)
    second = h.only("tiny", "ready")
    assert second.id != first.id
    assert [d.figures["code"] for d in h.kinds("failed")] == ["exited"]


def test_backoff_grows_then_the_model_is_parked():
    """REC-05: five failures in a row park it; the answer says the last error; retry starts anew."""
    h = Harness()
    h.agents["n1"].fail = failing()
    h.advance(600)
    assert len(h.starts()) == 5
    health = h.view.health["tiny"]
    assert health.parked
    assert health.last_exit.tail == ("bad magic",)
    routed = h.table["tiny"]
    assert routed.state == "parked"
    assert "5 times in a row" in routed.reason
    assert "could not load" in routed.reason
    waits = [d.figures["backoff"] for d in h.kinds("failed") if "backoff" in d.figures]
    assert len(waits) == 4
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]
    h.agents["n1"].fail = lambda spec: None
    h.advance(600)
    assert len(h.starts()) == 5
    h.feed(RetryRequested("tiny", "anna"))
    h.advance(4)
    assert h.only("tiny", "ready")


def test_parking_ends_when_the_definition_changes():
    """REC-05: a new definition is a new chance; another model's change is not."""
    h = Harness()
    h.agents["n1"].fail = failing()
    h.advance(600)
    assert h.view.health["tiny"].parked
    h.reload(ONE_MODEL + "  other: {profiles: [{engine: sim, source: 'sim:', min_memory_gb: 1}]}\n")
    assert h.view.health["tiny"].parked
    h.agents["n1"].fail = lambda spec: None
    h.reload(ONE_MODEL.replace("cpu_cores: 1", "cpu_cores: 2"))
    h.advance(4)
    assert h.only("tiny", "ready").shards[0].spec.cpu_cores == 2


def test_a_steady_replica_does_not_forgive_a_crashing_one():
    """REC-03: the row of failures ends only by a replica that came after the failure and held."""
    h = Harness(TWO)
    h.advance(100)
    agent = h.agents["n1"]
    keys = list(agent.shards)
    agent.fail = failing()
    h.up("n1", agent.kill(keys[0]))
    h.advance(900)
    assert h.view.health["tiny"].parked
    assert len(h.replicas("tiny", "ready")) == 1
    assert h.table["tiny"].state == "ready"


def test_failures_are_forgotten_once_a_replica_holds():
    """REC-03: the counter falls back after a minute of ready."""
    h = Harness()
    h.agents["n1"].fail = failing()
    h.advance(4)
    h.agents["n1"].fail = lambda spec: None
    h.advance(20)
    assert h.view.health["tiny"].failures == 1
    h.advance(70)
    assert h.view.health["tiny"].failures == 0
    assert h.view.health["tiny"].last_error  # still told
    assert not h.replicas("tiny", "failed")


def test_a_start_that_hangs_is_stopped_at_its_deadline():
    """REC-04: not ready within startup_timeout is a failure with a recorded stop."""
    h = Harness()
    h.agents["n1"].load_time = 1e9
    h.advance(95)
    (stop,) = [d for d in h.decisions if d.kind == "stop"]
    assert "did not become ready in" in stop.reason
    assert len(h.stops()) == 1
    assert h.view.health["tiny"].last_error_code == "startup_timeout"
    assert h.view.health["tiny"].failures == 1


def test_a_refused_start_is_a_failure_in_seconds():
    """AGT-05: the agent's words reach the model's health."""
    h = Harness()
    h.agents["n1"].refuse = lambda spec: "weights_missing"
    h.advance(2)
    assert h.view.health["tiny"].last_error_code == "weights_missing"
    assert "no: weights_missing" in h.table["tiny"].reason


def test_another_node_is_tried_after_a_failure():
    """A node where the model just failed comes last, or the model would be parked by one bad node."""
    h = Harness(nodes=("n1", "n2"))
    h.settle()
    node = h.only().shards[0].node_id
    other = {"n1": "n2", "n2": "n1"}[node]
    h.up(node, h.agents[node].kill(h.only().shards[0].spec.key, "weights_missing"))
    h.advance(10)
    assert h.only("tiny", "ready").shards[0].node_id == other


def test_another_port_after_port_in_use():
    """Case 18, PLC-13: a port that a stray process holds is avoided on that node."""
    h = Harness()
    taken: list[int] = []

    def refuse(spec):
        taken.append(spec.port)
        return "port_in_use" if spec.port == 20000 else None

    h.agents["n1"].refuse = refuse
    h.advance(15)
    assert taken == [20000, 20001]
    assert h.only("tiny", "ready").shards[0].spec.port == 20001


def test_claims_last_until_the_exit_is_confirmed():
    """Case 18, PLC-13: what is stopping still holds its port and memory."""
    big = ONE_MODEL.replace("min_memory_gb: 4", "min_memory_gb: 20")
    h = Harness(big)
    h.advance(5)
    h.agents["n1"].stop_time = 60
    h.reload(big.replace("tiny:", "next:"))
    h.advance(310)  # the whole grace: no router, no witness
    assert len(h.stops()) == 1
    assert not h.starts()[1:]
    refusal = h.view.health["next"].refusal
    assert refusal.code == "memory_claimed"
    assert refusal.message == "needs 20.0 GB memory, 12.0 of 32.0 GB free after claims (node n1)"
    h.advance(60)
    assert len(h.starts()) == 2
    assert h.view.health["next"].refusal is None


@pytest.mark.parametrize("after", [EMPTY, OFF], ids=["removed", "off"])
def test_a_model_that_goes_is_drained_then_stopped(after):
    """CAT-07, REC-06: unrouted first, stopped after the grace, each with its reason."""
    h = Harness()
    h.advance(5)
    replica = h.only()
    h.reload(after)
    h.settle()
    assert h.only().state == "draining"
    assert not any(model.endpoints for model in h.table.values())
    h.advance(299)
    assert not h.stops()
    h.advance(3)
    assert len(h.stops()) == 1
    assert not h.view.replicas
    drain, stop = (d for d in h.decisions if d.kind != "place")
    assert (drain.kind, stop.kind) == ("drain", "stop")
    assert ("left the catalog" if after is EMPTY else "is off") in drain.reason
    assert drain.reason in stop.reason
    assert "grace of 5 min" in stop.reason
    assert drain.replica == stop.replica == replica.id


def test_routers_end_a_drain_early():
    """REC-06: when every live router has nothing in flight; not before they saw the table."""
    h = Harness()
    h.advance(5)
    replica = h.only()
    inflight = {"a": 1, "b": 0}
    sequence = iter(range(10**6))
    h.report_routers = lambda: [(r, report(next(sequence), {replica.id: n})) for r, n in inflight.items()]
    h.reload(EMPTY)
    h.advance(30)
    assert h.only().state == "draining"
    inflight["a"] = 0
    h.advance(2)
    assert len(h.stops()) == 1
    assert "no request left" in h.decisions[-1].reason


def test_a_router_that_falls_silent_with_requests_is_waited_for():
    """REC-06: silence is not idleness."""
    h = Harness()
    h.advance(5)
    replica = h.only()
    reports = [("a", {replica.id: 3}), ("b", {replica.id: 0})]
    sequence = iter(range(10**6))
    h.report_routers = lambda: [(r, report(next(sequence), load)) for r, load in reports]
    h.reload(EMPTY)
    h.advance(5)
    del reports[0]
    h.advance(20)
    assert h.only().state == "draining"
    h.advance(15)
    assert not h.view.replicas


def test_a_report_is_counted_once():
    """A repeated or late report of one router process changes nothing."""
    h = Harness()
    h.report_routers = lambda: [("a", report(7, {"x": 1})), ("a", report(3, {"x": 9}))]
    h.advance(2)
    (router,) = h.loop.routers.values()
    assert router.sequence == 7
    assert router.loads["x"].inflight == 1


def test_scale_down_ends_what_does_not_serve_first():
    """REC-22: of two, the one that is still starting goes."""
    h = Harness(TWO, nodes=("n1", "n2"))
    h.advance(5)
    victim = h.replicas()[0]
    node = victim.shards[0].node_id
    keep = h.replicas()[1].id
    h.agents["n1"].load_time = h.agents["n2"].load_time = 1e9
    h.up(node, h.agents[node].kill(victim.shards[0].spec.key))
    h.advance(10)
    assert len(h.replicas("tiny", "starting")) == 1
    h.reload(ONE_MODEL)
    h.advance(2)
    assert [r.id for r in h.replicas("tiny", "ready", "starting", "draining")] == [keep]
    (stop,) = [d for d in h.decisions if d.kind == "stop"]
    assert "wants 1 replica" in stop.reason
    assert "has 2" in stop.reason


def test_a_changed_profile_is_stale_not_restarted():
    """CAT-08: an edited profile shows as stale; what serves is not touched."""
    h = Harness()
    h.advance(5)
    assert h.only().stale is False
    h.reload(ONE_MODEL.replace("cpu_cores: 1", "cpu_cores: 2"))
    h.advance(30)
    assert h.only().stale is True
    assert h.only().state == "ready"
    assert len(h.starts()) == 1


def test_a_profile_that_left_is_replaced_before_it_is_drained():
    """CAT-07: drained and stopped, once its replacement is ready."""
    h = Harness()
    h.advance(5)
    old = h.only()
    h.agents["n1"].load_time = 20
    h.reload(ONE_MODEL.replace("- {engine", "- {name: other, engine"))
    h.advance(10)
    assert {r.state for r in h.replicas()} == {"ready", "starting"}
    assert [e.id for e in h.table["tiny"].endpoints] == [old.id]
    h.advance(15)
    assert h.view.replicas[old.id].state == "draining"
    assert [e.id for e in h.table["tiny"].endpoints] != [old.id]
    h.advance(310)
    assert h.only().profile == "other"
    assert "profile p0 left the catalog" in h.kinds("drain")[0].reason


def test_a_profile_that_left_serves_on_while_its_replacement_fails():
    """CAT-07: the last thing that serves is not ended for one that does not come up."""
    h = Harness()
    h.advance(5)
    old = h.only()
    h.agents["n1"].fail = failing()
    h.reload(ONE_MODEL.replace("- {engine", "- {name: other, engine"))
    h.advance(600)
    assert h.view.health["tiny"].parked
    assert [e.id for e in h.table["tiny"].endpoints] == [old.id]


def test_a_profile_that_left_makes_room_if_nothing_fits_beside_it():
    """CAT-07: only the old one is in the way: it goes, and the new one comes."""
    big = ONE_MODEL.replace("min_memory_gb: 4", "min_memory_gb: 20")
    h = Harness(big)
    h.advance(5)
    h.reload(big.replace("- {engine", "- {name: other, engine"))
    h.advance(320)
    assert h.only().profile == "other"


def test_on_demand_is_not_placed_and_what_runs_stays():
    """CAT-05: min 0 is no reason to start one, nor to stop one."""
    demand = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 0, max: 1}")
    h = Harness(demand)
    h.advance(10)
    assert not h.view.replicas
    assert "on demand" in h.table["tiny"].reason
    h.reload(ONE_MODEL)
    h.advance(5)
    h.reload(demand)
    h.advance(30)
    assert h.only().state == "ready"


def test_no_scaling_is_off_and_not_listed():
    """CAT-05, DEM-02: off is said, not guessed."""
    h = Harness(ONE_MODEL.replace("    scaling: {min: 1, max: 1}\n", ""))
    h.advance(5)
    assert not h.view.replicas
    assert h.table["tiny"].state == "off"
    assert not h.table["tiny"].listed


def test_a_refusal_has_figures_everywhere_and_is_noted_sparingly():
    """PLC-04, REC-05: needs and has in the routes; told again only after ten minutes."""
    h = Harness(ONE_MODEL.replace("min_memory_gb: 4", "min_memory_gb: 48"))
    h.advance(300)
    words = "needs 48.0 GB memory, 32.0 of 32.0 GB free after claims"
    assert words in h.table["tiny"].reason
    assert h.table["tiny"].state == "unplaceable"
    assert len(h.kinds("no-placement")) == 1
    h.advance(400)
    assert len(h.kinds("no-placement")) == 2
    h.feed(CordonSet("n1", Cordon("swap fans", "anna", "2027-01-01")))
    h.settle()
    assert len(h.kinds("no-placement")) == 3


def test_a_cordon_keeps_new_ones_off_and_survives_reregistration():
    """PLC-03, case 22: intent stays apart from status."""
    h = Harness()
    h.advance(5)
    h.feed(CordonSet("n1", Cordon("repair", "anna", "2027-01-01")))
    h.disconnect("n1")
    h.connect("n1")
    assert h.view.nodes["n1"].cordon.reason == "repair"
    h.up("n1", h.agents["n1"].kill(h.only().shards[0].spec.key))
    h.advance(20)
    assert len(h.starts()) == 1
    assert "cordoned by anna: repair" in h.table["tiny"].reason
    h.feed(CordonSet("n1", None))
    h.advance(5)
    assert len(h.starts()) == 2


def test_a_device_with_a_foreign_process_is_taken_once_it_is_free():
    """PLC-02, case 25: seen by heartbeat; freed by heartbeat."""
    h = Harness(GPU, connect=False)
    agent = h.agents["n1"] = FakeAgent("n1", h.clock.monotonic, devices=gpus(1))
    busy = DeviceUse(uuid="GPU-0", foreign_processes=("python (pid 4711)",))
    h.feed(CordonSet("n1", Cordon("", "a", "")))
    h.connect("n1")
    agent.measurements = Measurements(devices=(busy,))
    h.advance(12)
    h.feed(CordonSet("n1", None))
    h.advance(5)
    assert "python (pid 4711)" in h.table["tiny"].reason
    agent.measurements = Measurements(devices=(DeviceUse(uuid="GPU-0"),))
    h.advance(15)
    assert h.only("tiny", "ready").shards[0].spec.devices == ("GPU-0",)


def test_an_excluded_device_is_not_free():
    """PLC-02: the reason is in the refusal."""
    h = Harness(GPU, connect=False)
    device = Device(uuid="GPU-0", device_class="h100", excluded="ECC fault")
    h.agents["n1"] = FakeAgent("n1", h.clock.monotonic, devices=(device,))
    h.connect("n1")
    h.advance(5)
    assert "ECC fault" in h.table["tiny"].reason


def test_without_a_secret_engines_start_keyless():
    """ENG-03: no secret, no key, and the endpoint says so."""
    h = Harness(secret=None)
    h.advance(5)
    (endpoint,) = h.table["tiny"].endpoints
    assert endpoint.key == ""
    assert not h.starts()[0].spec.keyed


def test_no_secret_in_view_or_decisions():
    """SEC-03: engine keys are only in the start and in the routes."""
    h = Harness()
    h.advance(5)
    key = h.starts()[0].spec.engine_key
    assert key not in repr(h.view)
    assert key not in repr(h.decisions) + repr(h.notes)
    assert SECRET.decode() not in repr(h.view)


def test_starts_of_replicas_that_are_gone_are_forgotten():
    """A long life of many replicas takes no more memory than those there are."""
    h = Harness()
    h.advance(5)
    current = h.only().shards[0].command_id
    h.loop._fleet.starts.update({f"old-{number}": f"gone-{number}" for number in range(1000)})
    h.advance(10)
    assert h.loop._fleet.starts == {current: h.only().id}
