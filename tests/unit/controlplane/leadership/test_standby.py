"""A control plane that stands by, as it answers those who ask it (HA-01)."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from gevent import socket, ssl

from controlplane.identities import Credentials
from controlplane.leadership.driver import Leadership
from controlplane.leadership.lease import Holder
from controlplane.listeners.sockets import Sockets
from controlplane.settings import LISTENERS
from controlplane.standby import MAX_BODY, PIECE, Standby, _Answers
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.settings import Address
from tests.harness import identities


@pytest.fixture
def make() -> Callable[..., Standby]:
    """One that is unable to lead, for a reason, or able; it knows of no renewal unless that is given."""

    def standby(unable: str, **known: Any) -> Standby:
        unknown = {
            "leader": Holder("cp-1"),
            "failing": "",
            "takes_in": None,
            "unrenewed": None,
            "overdue": False,
            "namesake": None,
        }
        leadership = MagicMock(
            spec=Leadership,
            unable=unable,
            leading=False,
            sure=False,
            asked=1,
            unanswered=0,
            renew=5.0,
            holder=Holder("cp-3", {"admin": "127.0.0.1:7000"}),
            **(unknown | known),
        )
        made = Standby.__new__(Standby)
        made._leadership = leadership
        made._waiting_bytes = lambda: None
        return made

    return standby


class Endless:
    """A body that goes on and on."""

    def __init__(self) -> None:
        self.read_sizes: list[int] = []

    def read(self, size: int) -> bytes:
        self.read_sizes.append(size)
        return b"x" * size


@pytest.mark.parametrize("length", [0, 100, MAX_BODY, 10 * MAX_BODY])
def test_a_body_is_read_in_pieces_and_kept_nowhere(length: int) -> None:
    """SEC-02, HA-01: anybody may connect where nodes join, and a thousand large requests are to fill no memory."""
    standby = MagicMock(spec=Standby)
    standby.told.return_value = "w"
    standby.leader.return_value = ""
    body = Endless()
    environ: dict[str, Any] = {
        "CONTENT_LENGTH": str(length),
        "PATH_INFO": "/join/v1/certificate",
        "REQUEST_METHOD": "POST",
        "wsgi.input": body,
    }
    started = MagicMock()
    assert b"not_leader" in b"".join(_Answers("join", standby)(environ, started))
    assert started.call_args[0][0].startswith("503")
    assert sum(body.read_sizes) == min(length, MAX_BODY) and max(body.read_sizes, default=0) <= PIECE


def test_a_namesake_is_told_to_people(make: Callable[..., Standby]) -> None:
    """HA-01: two that bear one name are a mistake, which nobody else would notice."""
    assert "; another control plane bears the same name: " in make("", namesake=Holder("cp-3", {"admin": "x:1"})).words


def test_what_keeps_it_from_leading_is_told_to_people(make: Callable[..., Standby]) -> None:
    """HA-01: all of it on the admin API and in the log; whoever else asks learns no paths."""
    unable = make("/var/lib/llmgw/admin.token could be read by others: remove it")
    assert unable.words.endswith(
        "cp-1 leads; it cannot lead itself: /var/lib/llmgw/admin.token could be read by others: remove it"
    )
    assert unable.told("admin") == unable.words
    for listener in ("agents", "routers", "join"):
        assert unable.told(listener) == "this control plane stands by: cp-1 leads; it cannot lead itself: see its log"
    able = make("")
    assert able.told("join") == able.told("admin") == "this control plane stands by: cp-1 leads"


def test_whether_it_could_lead_is_a_metric(make: Callable[..., Standby]) -> None:
    """HA-01, OBS-01: so that somebody is woken before it is needed."""
    assert "llmgw_able_to_lead 1.0" in make("").metrics().decode()
    assert "llmgw_able_to_lead 0.0" in make("its schema is newer").metrics().decode()


AT = Holder("cp-2", {"admin": "10.0.0.2:7000"})


IF = "if it renews its lease no more, this one leads in"
LATE = ", but it did not renew its lease for 12 s, and should every 5 s: it is down, or does not reach the store"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"unrenewed": 4.2, "takes_in": 25.8}, f"; {IF} 26 s"),
        ({"unrenewed": 12.0, "takes_in": 18.0, "overdue": True}, f"{LATE}; {IF} 18 s"),
        ({"unrenewed": 30.0, "takes_in": 0.0}, f"; {IF} 1 s"),
    ],
    ids=["renewed", "overdue", "about to take over"],
)
def test_people_are_told_for_how_long_a_leader_is_silent(
    make: Callable[..., Standby], known: dict[str, Any], words: str
) -> None:
    """HA-01: after a crash nothing else says for the length of the lease what is happening."""
    standby = make("", leader=AT, **known)
    who = "this control plane stands by: cp-2 leads (10.0.0.2:7000)"
    assert standby.told("admin") == who + words and standby.told("join") == who
    assert standby.figures == {"leader_unrenewed_seconds": known["unrenewed"], "takeover_seconds": known["takes_in"]}
    assert f"llmgw_lease_unrenewed_seconds {known['unrenewed']}" in standby.metrics().decode()


def test_with_the_store_away_nobody_is_said_to_lead_for_certain(make: Callable[..., Standby]) -> None:
    """HA-01: who led may have been replaced; the reason, which may name places, stays in the log."""
    away = make("", leader=AT, failing="db.example: no route to host")
    for listener in ("admin", "routers"):
        assert away.told(listener) == (
            "this control plane stands by, and the store does not answer it (its log says why): who leads is not known "
            "for certain; cp-2 did when it last answered (10.0.0.2:7000)"
        )
    assert make("", leader=None, failing="x").words.endswith("who leads is not known for certain")
    assert away.figures == {} and "llmgw_lease_unrenewed" not in away.metrics().decode()


def test_when_nobody_leads_it_says_when_it_will(make: Callable[..., Standby]) -> None:
    """HA-01: such as after the store went back in time."""
    words = make("", leader=None, takes_in=20.0).words
    assert words == "this control plane stands by, and none leads yet: try again; this one leads in 20 s"


def test_nobody_is_sent_back_to_where_they_asked(make: Callable[..., Standby]) -> None:
    """HA-01: where the admin API is on loopback everywhere, the leader's address is our own."""
    standby = make("", leader=Holder("cp-2", {"admin": "127.0.0.1:7000", "agents": "10.0.0.2:7001"}))
    assert standby.words == "this control plane stands by: cp-2 leads (ask it on its own machine)"
    assert standby.leader("admin") == "" and standby.leader("agents") == "10.0.0.2:7001"


def test_whoever_joins_finds_no_more_room_than_where_one_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-02: the listener that strangers reach is as narrow on a control plane that stands by."""
    monkeypatch.setattr("controlplane.standby.MOST", 3)
    listens: Any = dict.fromkeys(LISTENERS, Address("127.0.0.1", 0))
    settings: Any = {"agents.silence": 30.0, "agents.hello": 10.0, "agents.max_pending": 8}
    sockets = Sockets(listens, LISTENERS)
    credentials = Credentials(identities.ours().controlplane(tmp_path / "cp-1"), SystemClock()).load()
    standby = Standby(
        settings,
        sockets,
        MagicMock(spec=Leadership),
        SystemClock(),
        credentials=credentials,
        admin_tls=None,
        waiting_bytes=lambda: None,
    ).start()
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    try:
        with ExitStack() as stack:

            def silent() -> Any:
                plain = stack.enter_context(socket.create_connection(sockets.address("join.listen"), timeout=5))
                return stack.enter_context(anybody.wrap_socket(plain))

            first = silent()
            for _ in range(3):
                silent()
            assert first.recv(12) == b"HTTP/1.1 503", "the longest silent goes"
    finally:
        standby.stop()
        sockets.close()
