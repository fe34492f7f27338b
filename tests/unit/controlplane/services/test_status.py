"""What status calls a problem, and its sums, of fleets small and large."""

import gevent

from controlplane.events import Cordon, ServingSet
from controlplane.planning.view import ModelHealth
from controlplane.services.status import Problem
from llmgw.runtime.faults import Fault, SettingsError
from tests.unit.controlplane.services.harness import SIM
from tests.unit.controlplane.services.watched import GIB, Watched


def test_each_problem_says_what_to_do() -> None:
    """CLI-02: stopped serving, a refused catalog, values and owners that do not exist, a
    store that is away, holds, stale replicas; none of them where nothing is wrong."""
    calm = Watched({"m": {**SIM, "owner": "acme"}})
    calm.node("n1")
    calm.replica("m", "n1")
    calm.scopes.add("acme")
    assert [row["kind"] for row in calm.problems()] == ["routers"]

    watched = Watched({"m": {**SIM, "owner": "acme"}, "o": {**SIM, "owner": "acme"}})
    watched.node("n1", labels={"llmgw.io/rack": "r1"})
    watched.replica("m", "n1", stale=True)
    watched.replica("o", "n1")
    assert watched.about("scope") == ["acme owns m, o, but is no scope: make it with POST /api/v1/scopes"]
    assert watched.about("stale") == ["m 1 replica runs an older profile or engine key: llmgw ctl restart --stale"]
    watched.view.holds = {"llmgw.io/rack=r1": Cordon("water", "ada", "2026-01-01T00:00:00+00:00")}
    assert watched.about("hold") == ["llmgw.io/rack=r1 is held by ada since 2026-01-01T00:00:00Z: water"]
    watched.view.serving = ServingSet(stopped=True, actor="ada")
    assert watched.about("serving") == ["serving was stopped by ada: every request is refused; llmgw start ends that"]
    watched.catalog.refusal = SettingsError("/etc/catalog.yaml", [Fault("models.m", "is wrong"), Fault("x", "too")])
    (refused,) = watched.about("catalog")
    assert refused.startswith("/etc/catalog.yaml was refused (2 faults)") and "models.m: is wrong" in refused
    watched.settings.faults["requests.retention"] = "must be a duration"
    assert "ctl settings set requests.retention" in watched.about("setting")[0]
    watched.store.failing, watched.store.failing_for = "the store did not answer within 5 s", 300.0
    watched.more.append(Problem("store", "spool", "usage waits for the store (3.0 MB of usage wait)"))
    assert len(watched.about("store")) == 2
    assert watched.about("store")[0].startswith("database is away since 2027-01-15T07:56:00+00:00 (5 min): the store ")
    watched.journal.failing = "no space left on device"
    assert "so actions wait" in watched.about("journal")[0]


def test_a_model_is_a_problem_while_it_lacks_something() -> None:
    """CLI-02: fewer than wanted, with the reason; failures in a row, with the last error."""
    watched = Watched({"m": SIM})
    watched.node("n1")
    watched.view.health["m"] = ModelHealth(failures=3, last_error="it broke")
    assert watched.about("model") == ["m 0 of 1 ready: it broke"]
    watched.replica("m", "n1")
    assert watched.about("model") == ["m failed 3 times in a row, last with: it broke"]
    watched.view.health.clear()
    assert watched.about("model") == []


def test_sums_count_what_is_known() -> None:
    """CLI-02: devices by class, memory and cores of connected nodes; a node that does not
    know adds nothing, and is counted as unknown."""
    watched = Watched({"m": SIM})
    watched.node("n1", devices=4)
    watched.node("n2", devices=2, status="lost")
    silent = watched.node("n3")
    assert silent.inventory is not None
    silent.inventory = type(silent.inventory)(address="x")
    watched.node("n4", cordon=Cordon("fan", "ada", "now"))
    watched.replica("m", "n1", devices=("n1-0", "n1-1"))
    capacity = watched.status.read()["capacity"]
    assert capacity["devices"] == [{"device_class": "h100-80g", "total": 4, "claimed": 2, "excluded": 0, "free": 2}]
    assert capacity["memory"]["total_bytes"] == 1024 * GIB and capacity["memory"]["claimed_bytes"] == GIB
    assert (capacity["memory"]["nodes"], capacity["memory"]["unknown_nodes"]) == (3, 1)
    counts = watched.status.read()["nodes"]
    assert (counts["total"], counts["connected"], counts["lost"], counts["cordoned"]) == (4, 3, 1, 1)


def test_a_large_fleet_lets_others_work() -> None:
    """STO-03, CLI-02: status of 2,000 nodes is read in slices: another greenlet gets its
    turn meanwhile, and a node that goes in between breaks nothing."""
    watched = Watched({"m": SIM})
    for number in range(2000):
        watched.node(f"n{number:04}", devices=8)
    turns: list[int] = []

    def other() -> None:
        while True:
            turns.append(1)
            watched.view.nodes.pop(f"n{len(turns):04}", None)
            gevent.sleep(0)

    # Time stands still for the services but where they look: each look is a millisecond.
    monotonic = watched.clock.monotonic
    watched.clock.monotonic = lambda: (watched.clock.advance(0.001), monotonic())[1]  # type: ignore[method-assign]
    greenlet = gevent.spawn(other)
    try:
        status = watched.status.read()
    finally:
        greenlet.kill()
    assert status["nodes"]["total"] == 2000 and len(turns) > 100
    assert status["capacity"]["devices"][0]["total"] == 16000


def test_claims_are_made_anew_only_when_something_changed() -> None:
    """CLI-02: two answers of one state of the fleet share what was summed up."""
    watched = Watched({"m": SIM})
    watched.node("n1")
    before = watched.fleet.claims()
    assert watched.fleet.claims() is before
    watched.replica("m", "n1")
    assert watched.fleet.claims() is not before and watched.fleet.node("n1")["memory"]["claimed_bytes"] == GIB
