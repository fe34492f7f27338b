"""What routers fill together, and what join tokens cost: bounded, and not by the loudest (RTR-13, SEC-02)."""

from io import BytesIO
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import gevent
import msgspec
import pytest
from gevent.event import Event

from controlplane.events import RouterReported
from controlplane.inbox import Inbox
from controlplane.listeners import join, routers
from controlplane.listeners.http import PEER
from controlplane.listeners.join import JoinApplication
from controlplane.listeners.routers import FORGET_AFTER, PROCESS, RouterApplication
from controlplane.listeners.shares import Shares
from controlplane.services.identities import NotAdmitted
from controlplane.services.joining import JoinRefused
from llmgw.identity.joining import CERTIFICATE_PATH, JoinRequest
from llmgw.identity.names import MAX_NAME, Identity, Presented
from llmgw.runtime.clock import SystemClock
from llmgw.wire.routing import MAX_LOADS, REPORT_PATH, EndpointLoad, Report, encode
from tests.unit.controlplane.edges.peers import until


def test_nobody_holds_more_than_it_leaves_free() -> None:
    """RTR-13: one takes half of it, the next half of the rest; what is given back can be taken."""
    shares = Shares(100)
    assert not shares.take("a", 51) and shares.take("a", 50) and not shares.take("a", 1)
    assert not shares.take("b", 26) and shares.take("b", 25) and shares.take("c", 12)
    assert shares.take("a", -40) and shares.take("b", 10) and not shares.take("b", 9)
    shares.give("b", 35)
    assert shares.take("b", 39) and not shares.take("b", 1)
    for who, amount in (("a", 10), ("b", 39), ("c", 12)):
        shares.give(who, amount)
    assert shares.take("d", 50)


class Routers:
    """A listener's application with an inbox, a clock that is set, and routers that are let in."""

    def __init__(self) -> None:
        self.now = 0.0
        self.inbox = Inbox()
        self.application = RouterApplication(
            MagicMock(),
            self.inbox,
            credentials=MagicMock(),
            identities=MagicMock(),
            clock=SimpleNamespace(monotonic=lambda: self.now),  # type: ignore[arg-type]
            leads=lambda: (1, "l"),
            superseded=MagicMock(),
            take_usage=MagicMock(),
        )

    def post(self, router: str, body: Any, length: int) -> str:
        """The status that a report is answered with."""
        told: list[str] = []
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": REPORT_PATH,
            "HTTP_LLMGW_ROUTER": router,
            PEER: Presented(Identity("router", router[:MAX_NAME]), "0A", 1.0, 2.0),
            "CONTENT_LENGTH": str(length),
            "wsgi.input": body,
        }
        self.application(environ, lambda status, _headers: told.append(status))
        return told[0][:3]

    def report(self, router: str, boot: str, endpoints: int, sequence: int = 1) -> str:
        """The same, of one that names so many."""
        loads = tuple(EndpointLoad(id=str(number)) for number in range(endpoints))
        body = encode(Report(boot=boot, sequence=sequence, version="1", endpoints=loads))
        return self.post(router, BytesIO(body), len(body))


def test_reports_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """RTR-13: a router that names a new process with each report takes nothing from others, and little memory; what
    a process reports anew replaces what it reported, and one that is silent counts no more."""
    monkeypatch.setattr(routers, "MAX_ENDPOINTS", 100 * PROCESS)
    plane = Routers()
    answers = [plane.report("loud", f"b{number}", 2 * PROCESS) for number in range(30)]
    assert answers == ["204"] * 16 + ["503"] * 14
    assert "report refused" in caplog.text
    assert plane.report("quiet", "b", 2 * PROCESS) == "204"
    assert plane.report("loud", "b0", 2 * PROCESS, 2) == "204" and plane.report("loud", "b0", 9 * PROCESS, 3) == "503"
    assert len(plane.application.current()) == 17
    plane.now += FORGET_AFTER + 1
    assert plane.report("loud", "new", 40 * PROCESS) == "204"
    assert [seen.boot for seen in plane.application.current()] == ["new"]


def test_a_report_names_a_bounded_number_of_endpoints() -> None:
    """RTR-13: small ones are cheap to write and not to keep."""
    plane = Routers()
    assert plane.report("r", "b", MAX_LOADS) == "204" and plane.report("r", "b", MAX_LOADS + 1) == "400"


def test_bodies_that_are_read_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """RTR-13: a router whose requests stop in the middle fills half of what there is for all."""
    monkeypatch.setattr(routers, "MAX_BODIES", 1000)
    plane, go_on = Routers(), Event()

    class Slow:
        def read(self, _length: int) -> bytes:
            go_on.wait(20)
            raise OSError("the end")

    held = [gevent.spawn(plane.post, "loud", Slow(), 100) for _ in range(7)]
    until(lambda: len([each for each in held if each.ready()]) == 2)
    assert plane.report("quiet", "b", 0) == "204"
    go_on.set()
    assert sorted(each.get(timeout=20) for each in held) == ["400"] * 5 + ["503"] * 2
    assert plane.post("loud", Slow(), 500) == "400", "what was read is free again"


def test_a_name_that_never_ends_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """SEC-02: what a peer sent is repeated to it and to the log in part."""
    plane, names = Routers(), []

    def admit(_presented: Presented, _kind: str, name: str) -> None:
        names.append(name)
        raise NotAdmitted("unauthorised", f"not of router {name} {'x' * 5000}")

    plane.application._identities.admit = admit  # type: ignore[method-assign]
    assert plane.report("r" * 8000, "b", 0) == "403"
    assert names == ["r" * 254], "one more than a name may have, so that it is none"
    (record,) = caplog.records
    assert len(str(record.__dict__["fields"])) < 1500


def test_of_a_process_only_the_newest_report_waits() -> None:
    """RTR-13: while the writer is at work a flood of them is one event of each process."""
    inbox = Inbox(capacity=2)
    for sequence in (1, 2, 3):
        for boot in ("a", "b"):
            assert inbox.offer(RouterReported("r", Report(boot=boot, sequence=sequence, version="1")))
    assert not inbox.offer(RouterReported("r", Report(boot="c", sequence=1, version="1")))
    assert len(inbox) == 2 and inbox.refused == 1
    taken = [inbox.take() for _ in range(3)]
    assert [(event.report.boot, event.report.sequence) for event in taken if isinstance(event, RouterReported)] == [
        ("a", 3),
        ("b", 3),
    ]
    assert taken[2] is None and inbox.offer(RouterReported("r", Report(boot="a", sequence=4, version="1")))


def test_made_up_join_tokens_are_looked_up_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-02: nobody needs a certificate to send one, and each is a question to the store."""
    monkeypatch.setattr(join, "PATIENCE", 0.05)
    go_on, running, most = Event(), 0, 0

    def looked_up(*_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        go_on.wait(20)
        running -= 1
        raise JoinRefused("join_refused", "there is no such join token")

    application = JoinApplication(MagicMock(), SimpleNamespace(join=looked_up), SystemClock())  # type: ignore[arg-type]
    body = encode_request()

    def ask() -> str:
        told: list[str] = []
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": CERTIFICATE_PATH, "CONTENT_LENGTH": str(len(body))}
        application({**environ, "wsgi.input": BytesIO(body)}, lambda status, _headers: told.append(status[:3]))
        return told[0]

    asking = [gevent.spawn(ask) for _ in range(20)]
    until(lambda: len([each for each in asking if each.ready()]) == 20 - join.LOOKUPS)
    go_on.set()
    assert sorted(each.get(timeout=20) for each in asking) == ["403"] * join.LOOKUPS + ["503"] * (20 - join.LOOKUPS)
    assert most == join.LOOKUPS and ask() == "403"


def encode_request() -> bytes:
    """A request with a token that was never made."""
    return msgspec.json.encode(JoinRequest(f"llmgw-join-abcd.{'x' * 43}.{'y' * 43}", "node", "n1", "csr"))
