"""What status calls a problem, and its sums, of fleets small and large."""

from types import SimpleNamespace
from typing import Any, cast

import gevent
from msgspec.structs import replace

from controlplane.events import Cordon, ServingSet
from controlplane.leadership.lease import Holder
from controlplane.planning.view import ModelHealth
from controlplane.planning.words import IN_DOUBT
from controlplane.services.lead import Lead
from controlplane.services.status import REMEDY, Problem
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
    assert watched.about("scope") == ["acme owns m, o, but is no scope: make it with llmgw ctl scope add acme"]
    assert watched.about("stale") == ["m 1 replica runs an older profile or engine key: llmgw ctl restart --stale"]
    watched.view.holds = {"llmgw.io/rack=r1": Cordon("water", "ada", "2026-01-01T00:00:00+00:00")}
    assert watched.about("hold") == ["llmgw.io/rack=r1 is held by ada since 2026-01-01 00:00 UTC: water"]
    watched.view.serving = ServingSet(stopped=True, actor="ada")
    assert watched.about("serving") == ["serving was stopped by ada: every request is refused; llmgw start ends that"]
    watched.catalog.refusal = SettingsError("/etc/catalog.yaml", [Fault("models.m", "is wrong"), Fault("x", "too")])
    (refused,) = watched.about("catalog")
    assert refused.startswith("/etc/catalog.yaml was refused (2 faults)") and "models.m: is wrong" in refused
    watched.catalog.left_out = ("m", "nice (an alias of o)")
    (partly,) = watched.about("catalog")
    assert partly.startswith("/etc/catalog.yaml is in force without m, nice (an alias of o): models.m: is wrong; then ")
    watched.settings.faults["requests.retention"] = "must be a duration"
    assert "ctl settings set requests.retention" in watched.about("setting")[0]
    watched.store.failing, watched.store.failing_for = "the store did not answer within 5 s", 300.0
    watched.more.append(Problem("store", "spool", "usage waits for the store (3.0 MB of usage wait)"))
    assert len(watched.about("store")) == 2
    assert watched.about("store")[0].startswith("database is away since 2027-01-15 07:56 UTC (5 min): the store ")
    assert watched.about("store")[0].endswith(
        "are refused until it answers; see that the database runs, that this "
        "machine reaches it, and that it takes writes"
    )
    watched.journal.failing = "no space left on device"
    assert "so actions wait" in watched.about("journal")[0]


def test_a_store_that_is_away_is_one_problem_also_in_doubt() -> None:
    """CLI-02, HA-01: its error comes once, of no change that anybody made, with the remedy."""
    error = "the store db did not take it: connection refused: nothing was changed"
    leadership = SimpleNamespace(
        sure=False, failing=error, remaining=-12.0, until=0.0, holder=Holder("cp-1"), namesake=None, epoch=3
    )
    watched = Watched()
    lead = Lead(cast(Any, leadership), lambda: watched.view, watched.clock, store=cast(Any, watched.store), ha=True)
    (alone,) = lead.problems()
    assert alone.message.startswith(
        "is in doubt for 12 s (the store db did not take it: connection refused): the store"
    )
    assert alone.message.endswith(REMEDY) and "nothing was changed" not in alone.message
    watched.store.failing, watched.store.failing_for = error, 5.0
    watched.status._lead = lead.read
    assert not list(lead.problems())
    (told,) = watched.about("store")
    assert "connection refused; changes" in told and IN_DOUBT in told and "nothing was changed" not in told


def test_a_namesake_is_a_problem() -> None:
    """HA-01: who is meant by a name must be plain."""
    leadership = SimpleNamespace(
        sure=True, holder=Holder("cp-1"), namesake=Holder("cp-1", {"admin": "10.0.0.2:7400"}), epoch=3
    )
    watched = Watched()
    lead = Lead(cast(Any, leadership), lambda: watched.view, watched.clock, store=cast(Any, watched.store), ha=True)
    (told,) = lead.problems()
    assert told.message.startswith("led before this one (10.0.0.2:7400): another control plane bears the same name")


def test_a_node_whose_absence_is_explained_is_one_problem() -> None:
    """CLI-02: of a revoked node and router what to do is told once, also while they are refused."""
    watched = Watched()
    watched.node("n1", status="unreachable", registered=False)
    watched.refused = {(kind, "n1"): (watched.clock.monotonic(), "was revoked") for kind in ("node", "router")}
    assert watched.about("node") == ["n1 is unreachable; it was refused 0 s ago: was revoked"]
    assert watched.about("refused") == ["router n1 was refused 0 s ago: was revoked"]
    for who in ("node n1", "router n1"):
        watched.more.append(Problem("certificate", who, "was revoked and did not join anew"))
    assert [row["subject"] for row in watched.problems() if "n1" in row["subject"]] == ["node n1", "router n1"]


def test_who_was_refused_in_whose_name_is_told_for_a_while() -> None:
    """SEC-01: also of a node that never enrolled, or that is in session itself; many in few lines."""
    watched = Watched()
    watched.node("n1")
    began = watched.clock.monotonic()
    watched.refused = {("node", name): (began, f"not of node {name}") for name in ("n1", "n9")}
    watched.clock.advance(30)
    assert watched.about("refused") == [
        "node n1 was refused 30 s ago: not of node n1",
        "node n9 was refused 30 s ago: not of node n9",
    ]
    watched.refused |= {("router", f"r{number}"): (began + 20, "no") for number in range(10)}
    told = watched.about("refused")
    assert len(told) == 6 and told[0] == "router r0 was refused 10 s ago: no"
    assert told[5] == "7 more were refused within 10 min, see the log"
    watched.clock.advance(600)
    assert watched.about("refused") == []


def test_a_node_that_sends_routers_to_themselves_is_a_problem() -> None:
    """CLI-02: the address it gave is its own to each machine, and it comes from another one."""
    watched = Watched()
    node = watched.node("n1")
    assert node.inventory is not None
    for address, came_from, problem in (
        ("127.0.0.1", "", False),
        ("10.0.0.7", "10.0.0.7", False),
        ("127.0.0.1", "10.0.0.7", True),
        ("localhost", "10.0.0.7", True),
        ("::1", "2001:db8::7", True),
    ):
        node.inventory = replace(node.inventory, address=address)
        node.elsewhere = came_from
        told = watched.about("node")
        assert len(told) == problem
        if problem:
            assert told[0].startswith(f"n1 registered the address {address}, which is every machine's own")
            assert f"connects from {came_from}: " in told[0] and "correct the setting address of its agent" in told[0]


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
