"""Endpoints that left the table while requests run on them (REC-06, RTR-03)."""

import threading
from pathlib import Path

from llmgw.wire.routing import Endpoint, RoutedModel, RouteTable
from router.report import build as report
from router.table import Routes, build
from tests.fakes import upstream as fake
from tests.fakes.upstream import Exchange, FakeUpstream
from tests.fleet.router.process import Router, endpoint, table_of, until


def table(*ids: str) -> RouteTable:
    """One model with these endpoints."""
    endpoints = tuple(Endpoint(id=name, host="127.0.0.1", port=1, upstream_model="m") for name in ids)
    return RouteTable(generation="-".join(ids), models=(RoutedModel(name="m", state="ready", endpoints=endpoints),))


def reported(routes: Routes) -> dict[str, int]:
    """Requests in flight by endpoint, as the control plane is told."""
    return {load.id: load.inflight for load in report(routes, "b", 1, 0.0).endpoints}


def test_leaving_endpoint_is_reported_until_its_last_request_ends() -> None:
    """REC-06: the control plane takes an endpoint that is not reported for idle and stops it, which
    would cut off the requests it still has."""
    routes = build(table("a", "b"))
    leaving = routes.live["b"]
    leaving.inflight = 2
    for _ in range(3):  # however many tables come meanwhile
        routes = build(table("a"), routes)
        assert reported(routes) == {"a": 0, "b": 2}
    leaving.inflight = 0
    assert reported(routes) == {"a": 0}
    assert build(table("a"), routes).leaving == ()


def test_endpoint_that_comes_back_keeps_its_state() -> None:
    """RTR-03: back in the table it is one endpoint again, counted once."""
    routes = build(table("a"))
    held = routes.live["a"]
    held.inflight = 1
    routes = build(table("a"), build(table(), routes))
    assert routes.live["a"] is held
    assert routes.leaving == ()
    assert reported(routes) == {"a": 1}


def test_idle_endpoint_that_leaves_is_forgotten() -> None:
    """Nothing is kept of it."""
    routes = build(table(), build(table("a")))
    assert routes.leaving == ()
    assert reported(routes) == {}


def test_a_retry_goes_to_no_endpoint_that_left_meanwhile(tmp_path: Path) -> None:
    """RTR-08, RTR-03: the table changed between the attempts. A replica that is being drained would get a new
    request, and be cut off with it."""
    first, second = FakeUpstream(), FakeUpstream()
    names = {first: "a", second: "b"}
    asked: list[FakeUpstream] = []
    release = threading.Event()

    def fail_later(exchange: Exchange) -> None:
        asked.append(exchange.upstream)
        release.wait(10)
        exchange.send(fake.json_answer(503, {"error": {"message": "busy"}}))

    def publish_only(one: FakeUpstream) -> RouteTable:
        return table_of(RoutedModel(name="m", state="ready", endpoints=(endpoint(one, names[one]),)), generation="g2")

    both = RoutedModel(name="m", state="ready", endpoints=tuple(endpoint(one, name) for one, name in names.items()))
    for one in names:
        one.script.append(fail_later)
    with Router(tmp_path, table_of(both)) as router, router.connect() as client:
        client.post('{"model":"m","messages":[]}')
        until(lambda: asked, 5, "the first attempt")
        assert router.control is not None
        router.control.publish(publish_only(asked[0]))
        until(lambda: "generation=g2" in router.log.read_text(), 5, "the new table")
        release.set()
        assert client.answer().code == "overloaded"
        assert len(asked) == 1
        assert sum(len(one.received) for one in names) == 1
    for one in names:
        one.stop()
