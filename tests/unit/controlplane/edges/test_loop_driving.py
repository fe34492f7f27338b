"""Inbox, driver, journal and publisher, driven by hand in this process."""

import errno
import json
import os
import stat
import time
from pathlib import Path

import gevent
import msgspec
import pytest

from controlplane.driver import BATCH, Driver
from controlplane.events import (
    CloseSession,
    Commit,
    Committed,
    Decision,
    FrameReceived,
    Note,
    PublishRoutes,
    RetryRequested,
    Send,
    SessionClosed,
)
from controlplane.inbox import Inbox
from controlplane.journal import KEPT, Journal
from controlplane.planning.work import LONG
from controlplane.publish.table import Publisher
from llmgw.runtime.clock import ManualClock, SystemClock
from llmgw.wire.messages import CommandResult, Heartbeat, HeartbeatAck
from llmgw.wire.routing import RoutedKey, RoutedModel, decode_table
from tests.unit.controlplane.store.places import hub_is_free


def beat(session: str, sequence: int) -> FrameReceived:
    return FrameReceived(session, Heartbeat(sequence=sequence))


def result(session: str) -> FrameReceived:
    return FrameReceived(session, CommandResult(command_id="c", outcome="accepted"))


def drained(inbox: Inbox) -> list:
    found = []
    while (event := inbox.take()) is not None:
        found.append(event)
    return found


def settle(condition, what: str = "the condition") -> None:
    with gevent.Timeout(20, AssertionError(f"{what} did not come true")):
        while not condition():
            gevent.sleep(0.005)


# ---------------------------------------------------------------- inbox


def test_heartbeats_of_a_session_coalesce_and_nothing_else_does() -> None:
    """STO-03: of a session the newest heartbeat waits; everything else keeps its order."""
    inbox = Inbox()
    for event in (beat("a", 1), result("a"), beat("b", 1), beat("a", 2), result("a"), beat("a", 3)):
        inbox.put(event)
    assert drained(inbox) == [beat("a", 3), result("a"), beat("b", 1), result("a")]
    assert inbox.coalesced == 2
    inbox.put(beat("a", 4))
    assert drained(inbox) == [beat("a", 4)]


def test_a_full_inbox_holds_back_frames_turns_away_people_and_loses_nothing() -> None:
    """STO-03: bounded; heartbeats of a waiting session still coalesce; a close always fits."""
    inbox = Inbox(capacity=3)
    inbox.put(beat("a", 1))
    inbox.put(result("a"))
    inbox.put(result("a"))
    assert not inbox.offer(RetryRequested("m", "ada")) and inbox.refused == 1
    inbox.put(beat("a", 2))
    inbox.force(SessionClosed("b", "gone"))
    waiting = [gevent.spawn(inbox.put, result("c")), gevent.spawn(inbox.put, beat("c", 1))]
    gevent.sleep(0.01)
    assert not any(waiter.ready() for waiter in waiting)
    taken = []
    while len(taken) < 6:
        event = inbox.take()
        if event is None:
            gevent.sleep(0)
        else:
            taken.append(event)
    gevent.joinall(waiting, timeout=5, raise_error=True)
    assert taken[:4] == [beat("a", 2), result("a"), result("a"), SessionClosed("b", "gone")]
    assert set(map(str, taken[4:])) == set(map(str, [result("c"), beat("c", 1)]))


# ---------------------------------------------------------------- driver


class FakeLoop:
    """A loop whose passes take ``slices`` slices of ``hold`` seconds, and that fails when told to."""

    def __init__(self, slices: int = 1, hold: float = 0.0) -> None:
        self.hold = hold
        self.dirty = False
        self.next_wake = float("inf")
        self.handled: list = []
        self.during_pass = 0
        self.in_pass = False
        self.slices = slices
        self.passes = 0

    def handle(self, event, now: float, *, more: bool = False) -> list:
        if isinstance(event, RetryRequested) and event.model == "boom":
            raise RuntimeError("boom")
        self.handled.append(event)
        self.during_pass += self.in_pass
        if isinstance(event, RetryRequested):
            self.dirty = True
        return [Send(event.session, HeartbeatAck(sequence=1))] if isinstance(event, FrameReceived) else []

    def run_pass(self, now: float):
        self.passes += 1
        self.dirty = False
        self.in_pass = True
        for _ in range(self.slices):
            time.sleep(self.hold)
            yield
        self.in_pass = False
        if self.slices == 0:
            raise RuntimeError("pass")
        return [Commit(self.passes, (Decision("place", "why"),))]


@pytest.fixture
def carried() -> list:
    return []


@pytest.fixture
def driven(carried: list):
    drivers = []

    def start(loop: FakeLoop, send=carried.append) -> tuple[Driver, Inbox]:
        inbox = Inbox()
        carriers = {**dict.fromkeys((CloseSession, Commit, Note), carried.append), Send: send}
        driver = Driver(loop, inbox, SystemClock(), carriers).start()
        drivers.append(driver)
        return driver, inbox

    yield start
    for driver in drivers:
        driver.stop()


def test_a_fault_in_one_event_harms_no_other(driven, carried: list) -> None:
    """REC-25: logged, counted, and the next event is handled."""
    loop = FakeLoop()
    driver, inbox = driven(loop)
    inbox.force(RetryRequested("boom", "x"))
    inbox.force(result("a"))
    settle(lambda: carried)
    assert driver.faults == 1 and loop.handled == [result("a")]


def test_a_carrier_that_fails_harms_no_other_effect(driven, carried: list) -> None:
    """REC-25: an effect that cannot be carried out does not take the rest with it."""
    loop = FakeLoop()

    def broken(effect: Send) -> None:
        raise OSError("no")

    driver, inbox = driven(loop, broken)
    inbox.force(result("a"))
    inbox.force(RetryRequested("m", "x"))
    settle(lambda: carried)
    assert driver.faults == 1 and isinstance(carried[0], Commit)


def test_events_are_handled_between_the_slices_of_a_pass(driven, carried: list) -> None:
    """STO-03: a long pass holds up neither heartbeats nor the hub."""
    loop = FakeLoop(slices=50, hold=0.02)  # a second: together they would be seen
    driver, inbox = driven(loop)
    with hub_is_free():
        inbox.force(RetryRequested("m", "x"))
        settle(lambda: loop.in_pass)
        for number in range(10):
            inbox.put(beat(f"s{number}", 1))
            gevent.sleep(0.002)
        settle(lambda: driver.passes)
    assert loop.during_pass == 10 and loop.passes == 1


def test_a_pass_that_fails_is_tried_again_later(driven) -> None:
    """REC-25: not at once for ever, and not never."""
    loop = FakeLoop(slices=0)
    driver, inbox = driven(loop)
    inbox.force(RetryRequested("m", "x"))
    settle(lambda: driver.faults)
    loop.dirty = True
    gevent.sleep(0.05)
    assert loop.passes == 1
    driver._not_before = 0.0
    inbox.force(result("a"))
    settle(lambda: loop.passes == 2)


def test_a_pass_is_due_without_any_event(driven) -> None:
    """REC-24: next_wake alone starts one."""
    loop = FakeLoop()
    loop.next_wake = SystemClock().monotonic() + 0.05
    driver, _ = driven(loop)
    settle(lambda: driver.passes)


# ---------------------------------------------------------------- journal


@pytest.fixture
def journal(tmp_path: Path):
    made = []

    def start(committed=lambda batch: None, **options) -> Journal:
        made.append(Journal(tmp_path / "decisions.jsonl", ManualClock(), committed, epoch=3, **options).start())
        return made[-1]

    yield start
    for one in made:
        one.stop(0.1)


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines() if line]


def test_a_batch_is_committed_after_it_is_on_disk(journal, tmp_path: Path) -> None:
    """STO-03: commit is an event: what it reports is in the file; mode 0600."""
    seen: list[tuple[int, int]] = []
    file = tmp_path / "decisions.jsonl"
    one = journal(lambda batch: seen.append((batch, len(lines(file)))))
    one.commit(1, [Decision("place", "fits", model="m", figures={"gb": 1.5})])
    one.note(Decision("seen", "x"))
    one.commit(2, [])
    one.commit(3, [Decision("stop", "why", node="n")])
    assert seen == [], "the caller does not wait"
    settle(lambda: len(seen) == 3)
    assert [batch for batch, _ in seen] == [1, 2, 3] and all(count == 3 for _, count in seen)
    first = lines(file)[0]
    assert first["kind"] == "place" and first["figures"] == {"gb": 1.5} and first["epoch"] == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.kind for entry in one.recent] == ["place", "seen", "stop"]


def test_a_journal_that_cannot_be_begun_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03, HA-01: a control plane tries again and again."""
    file = tmp_path / "decisions.jsonl"
    file.write_bytes(b"cut sh")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        Journal(file, ManualClock(), lambda _: None).start()
    monkeypatch.undo()
    assert not any(descriptor.resolve() == file for descriptor in Path("/proc/self/fd").iterdir())


def test_a_full_disk_holds_actions_back_and_leaves_no_half_lines(
    journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STO-03: tried again until it works; a partial write is undone."""
    seen: list[int] = []
    one = journal(seen.append)
    one.commit(1, [Decision("place", "first")])
    settle(lambda: seen == [1])
    real = os.write
    calls = []

    def full(descriptor: int, data: bytes) -> int:
        if len(calls) < 3:
            calls.append(len(data))
            if len(calls) == 1:
                return real(descriptor, bytes(data)[:10])
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("controlplane.journal.os.write", full)
    monkeypatch.setattr("controlplane.journal._FIRST_WAIT", 0.01)
    one.commit(2, [Decision("place", "second")])
    settle(lambda: one.failures)
    assert seen == [1] and "No space" in one.failing
    settle(lambda: seen == [1, 2])
    assert [line["reason"] for line in lines(tmp_path / "decisions.jsonl")] == ["first", "second"]
    assert one.failing == ""


def test_a_line_cut_by_a_crash_is_mended(journal, tmp_path: Path) -> None:
    """STO-03: the next process begins a line of its own. Older entries are the store's to show: they
    may be another installation's."""
    file = tmp_path / "decisions.jsonl"
    file.write_text('{"at":"t","kind":"old","reason":"kept"}\n{"at":"t","kind":"cu')
    one = journal()
    one.commit(1, [Decision("new", "x")])
    assert [entry.kind for entry in one.recent] == ["new"]
    settle(lambda: len(file.read_text().splitlines()) == 3)
    assert json.loads(file.read_text().splitlines()[2])["kind"] == "new"


def test_the_journal_is_rotated_and_bounded(journal, tmp_path: Path) -> None:
    """STO-03: older files are kept, but not for ever."""
    seen: list[int] = []
    one = journal(seen.append, max_bytes=4096)
    for batch in range(200):
        one.commit(batch, [Decision("place", "x" * 200)])
        settle(lambda batch=batch: len(seen) == batch + 1)
    files = sorted(tmp_path.glob("decisions.jsonl*"))
    assert len(files) == KEPT + 1
    assert all(file.stat().st_size <= 4096 for file in files)
    assert json.loads(files[0].read_text().splitlines()[-1])["batch"] == 199


# ---------------------------------------------------------------- publisher


def test_the_generation_changes_with_the_content_only() -> None:
    """RTR-03: the same routes again wake nobody."""
    publisher = Publisher("boot")
    model = RoutedModel(name="m", state="loading", aliases=("n",))
    publisher.set_keys([RoutedKey(id="k", digest="d")])
    assert publisher.body is None, "keys alone are no table: routers would forget their routes"
    publisher.set_routes(PublishRoutes((model,), settling=True))
    assert publisher.generation == "boot-1"
    publisher.set_routes(PublishRoutes((RoutedModel(name="m", state="loading", aliases=("n",)),), settling=True))
    publisher.set_keys([RoutedKey(id="k", digest="d")])
    assert publisher.generation == "boot-1"
    publisher.set_routes(PublishRoutes((model,), settling=False))
    assert publisher.generation == "boot-2"
    table = decode_table(publisher.body)
    assert table.generation == "boot-2" and not table.settling and table.keys[0].id == "k"
    assert publisher.model("n") == publisher.model("m") == model and publisher.model("x") is None


def test_pollers_wait_for_the_first_table_and_are_woken_together() -> None:
    """RTR-03: also those that know a generation of an earlier process; closing frees everybody."""
    publisher = Publisher("b")
    pollers = [gevent.spawn(publisher.wait, generation, 60) for generation in ("", "old-7")]
    gevent.sleep(0.01)
    assert not any(poller.ready() for poller in pollers)
    publisher.set_routes(PublishRoutes((), settling=False))
    gevent.joinall(pollers, timeout=20)
    assert all(msgspec.json.decode(poller.value)["generation"] == "b-1" for poller in pollers)
    late = gevent.spawn(publisher.wait, "b-1", 60)
    gevent.sleep(0.01)
    publisher.close()
    late.join(20)
    assert late.ready() and late.value is None
    assert publisher.wait("b-1", 5) is None


def test_what_the_loop_is_told_of_a_commit() -> None:
    """STO-03: the number of the batch, as an event."""
    inbox = Inbox()
    inbox.force(Committed(7))
    assert drained(inbox) == [Committed(7)]


def test_events_that_take_long_are_taken_in_part() -> None:
    """STO-03: not a whole batch of them in a row; each but the last of all knows that more come."""
    clock, inbox = ManualClock(), Inbox()
    taken: list[bool] = []

    class Slow(FakeLoop):
        def handle(self, event, now: float, *, more: bool = False) -> list:
            taken.append(more)
            clock.advance(0.6 * LONG)
            return []

    driver = Driver(Slow(), inbox, clock, {})
    for number in range(5):
        inbox.force(result(f"s{number}"))
    assert driver._take_events() == BATCH and taken == [True, True]
    assert driver._take_events() == BATCH and taken == [True] * 4
    assert driver._take_events() == 1 and taken == [True] * 4 + [False]
