"""What agents, administrators and the disk can do to a control plane, and what it costs."""

import time
from contextlib import suppress
from pathlib import Path

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from controlplane.api.base import Figure
from controlplane.events import Decision, FrameReceived
from controlplane.inbox import PER_SESSION, Inbox
from controlplane.journal import Journal
from controlplane.listeners.http import HttpListener
from controlplane.listeners.registration import fault
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.daemon import reload_when
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from llmgw.wire.messages import CommandResult, Device, EngineInstall, Inventory, Register

# ---------------------------------------------------------------- agents


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        (Inventory(address=""), "is neither an IP address nor a host name"),
        (Inventory(address="gpu-7/../x"), "is neither an IP address nor a host name"),
        (Inventory(address="gpu-7\r\nX: y"), "is neither an IP address nor a host name"),
        (Inventory(address="0.0.0.0"), "is no address of one machine"),
        (Inventory(address="169.254.169.254"), "is no address of one machine"),
        (Inventory(address="ff02::1"), "is no address of one machine"),
        (
            Inventory(address="127.0.0.1", devices=(Device(uuid="GPU-1"), Device(uuid="GPU-1"))),
            "'GPU-1' is named twice",
        ),
        (
            Inventory(address="127.0.0.1", engines=(EngineInstall(name="sim", state="ready"),) * 2),
            "an engine is named twice",
        ),
    ],
)
def test_registrations_that_are_not_taken(inventory: Inventory, words: str) -> None:
    """AGT-01, SEC-03: before anything is built on them."""
    assert words in (fault(Register(inventory=inventory)) or "")


def test_registrations_that_are_taken() -> None:
    """AGT-01: any address of a machine, devices with names of their own."""
    for address in ("127.0.0.1", "::1", "localhost", "192.0.2.7", "2001:db8::7", "gpu-7", "gpu-7.example.org"):
        devices = (Device(uuid="GPU-1"), Device(uuid="GPU-2"))
        assert fault(Register(inventory=Inventory(address=address, devices=devices))) is None


def test_one_session_cannot_fill_the_queue() -> None:
    """REC-01: a peer that floods waits for itself; others go on."""
    inbox = Inbox()
    frame = FrameReceived("loud", CommandResult(command_id="c", outcome="accepted"))
    flood = gevent.spawn(lambda: [inbox.put(frame) for _ in range(10 * PER_SESSION)])
    gevent.sleep(0.01)
    assert len(inbox) == PER_SESSION and not flood.ready()
    with gevent.Timeout(10):
        inbox.put(FrameReceived("quiet", frame.message))
    taken = 0
    while not (flood.ready() and len(inbox) == 0):
        taken += inbox.take() is not None
        assert len(inbox) <= PER_SESSION + 1
        gevent.sleep(0)
    assert taken == 10 * PER_SESSION + 1


# ---------------------------------------------------------------- administrators


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_figure_that_json_cannot_write_is_unknown(value: float | None) -> None:
    """API-01: answers are JSON, whatever was measured."""
    assert Figure()._serialize(value) is None


def test_reloads_run_one_at_a_time() -> None:
    """CAT-06: of two files the one read last counts; a burst of signals costs one more reading."""
    asked, running, longest, done = Event(), 0, 0, 0

    def reload() -> None:
        nonlocal running, longest, done
        running += 1
        longest = max(longest, running)
        gevent.sleep(0.01)
        running -= 1
        done += 1

    worker = gevent.spawn(reload_when, asked, reload)
    asked.set()
    gevent.sleep(0.002)
    for _ in range(50):
        asked.set()
    with gevent.Timeout(10):
        while done < 2:
            gevent.sleep(0.005)
    gevent.sleep(0.05)
    worker.kill()
    assert (longest, done) == (1, 2)


# ---------------------------------------------------------------- the disk


def test_a_journal_that_was_removed_begins_anew(tmp_path: Path) -> None:
    """REC-02: what is reported as durable is in a file that has a name."""
    committed: list[int] = []
    file = tmp_path / "decisions.jsonl"
    journal = Journal(file, SystemClock(), committed.append).start()
    for batch in (1, 2):
        journal.commit(batch, [Decision("place", f"decision {batch}")])
        with gevent.Timeout(5):
            while batch not in committed:
                gevent.sleep(0.005)
        assert f"decision {batch}" in file.read_text()
        file.unlink()
    journal.stop()


def test_a_head_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    """API-04: a byte now and then does not hold a connection for ever."""
    monkeypatch.setattr("controlplane.listeners.http.HEAD", 0.2)
    monkeypatch.setattr("controlplane.listeners.http.IDLE", 0.2)
    listener = HttpListener(Address("127.0.0.1", 0), lambda *_: [b""], Logger("test"), max_body=10).start()
    try:
        for first in (b"GET / HTTP/1.1\r\n", b"G"):
            sock = socket.create_connection(listener.address)
            sock.sendall(first)
            began = time.monotonic()
            with gevent.Timeout(20), suppress(OSError):
                while True:
                    sock.sendall(b"x")
                    gevent.sleep(0.05)
            assert time.monotonic() - began > 0.1
            sock.close()
    finally:
        listener.stop(0.1)
