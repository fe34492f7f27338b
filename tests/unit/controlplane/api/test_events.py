"""Events as a list and as a stream."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event as Signal

from controlplane.events import Decision
from controlplane.journal import Journal
from controlplane.services import events as module
from controlplane.services.errors import Refused
from controlplane.services.events import EventFilter, EventService, stream
from controlplane.services.paging import decode, encode
from controlplane.store.errors import StoreUnavailable
from controlplane.store.values import EventEntry, Page
from llmgw.runtime.clock import ManualClock


class Store:
    """As much of a store as keeps events."""

    def __init__(self) -> None:
        self.kept: list[EventEntry] = []
        self.away = False
        self.most = 10**9
        """Entries after which a page stops early."""

    def read(self, work: Any, timeout: float | None = None) -> Any:
        if self.away:
            raise StoreUnavailable("the store is away")
        return work(type("Tx", (), {"events": self})())

    def page(self, limit: int, cursor: str | None = None, *, since: Any, until: Any, **which: Any) -> Page[EventEntry]:
        place = None if cursor is None else tuple(decode(cursor, 2))
        fits = sorted(
            (
                entry
                for entry in self.kept
                if (place is None or (entry.at, entry.id) < place)
                and (since is None or entry.at >= since)
                and (until is None or entry.at < until)
                and all(value is None or getattr(entry, name) == value for name, value in which.items())
            ),
            key=lambda entry: (entry.at, entry.id),
            reverse=True,
        )
        most = min(limit, self.most)
        return Page(tuple(fits[:most]), encode(fits[most - 1].at, fits[most - 1].id) if len(fits) > most else None)


class Impatient(ManualClock):
    """A clock by which every look takes long."""

    def monotonic(self) -> float:
        self.advance(10)
        return super().monotonic()


class Setting:
    """A journal that is not written, a store, and the service on both."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.journal = Journal(path / "decisions.jsonl", self.clock, lambda batch: None)
        self.store = Store()
        self.service = EventService(self.journal, self.store, self.clock)  # type: ignore[arg-type]

    def note(self, kind: str, **more: Any) -> str:
        """An event, now; its id."""
        self.journal.note(Decision(kind, f"because {kind}", **more))
        self.clock.advance(1)
        return self.journal.recent[-1].id

    def keep(self, number: int, kind: str = "old") -> None:
        """An event that only the store has."""
        at = self.clock.now().timestamp()
        self.store.kept.append(EventEntry(f"old-{number}", at, kind, f"because {kind}"))
        self.clock.advance(1)

    def hand_over(self) -> None:
        """The store has what memory has."""
        have = {entry.id for entry in self.store.kept}
        self.store.kept += [
            EventEntry(entry.id, module.moment_of(entry), entry.kind, entry.reason)
            for entry in self.journal.recent
            if entry.id not in have
        ]

    def read(self, limit: int, which: EventFilter | None = None) -> list[list[str]]:
        """The ids of all pages."""
        pages, cursor = [], None
        while True:
            answer = self.service.page(which or EventFilter(), limit, cursor)
            assert answer["incomplete"] is None
            pages.append([entry["id"] for entry in answer["events"]])
            cursor = answer["next"]
            if cursor is None:
                return pages


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


# ---------------------------------------------------------------- the list


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8, 100])
def test_pages_go_from_memory_into_the_store(setting: Setting, limit: int) -> None:
    """API-04: newest first, every event once, whatever the size of a page."""
    for number in range(4):
        setting.keep(number)
    ids = [setting.note("new") for _ in range(4)]
    setting.hand_over()
    flat = [each for page in setting.read(limit) for each in page]
    assert flat == [*reversed(ids), "old-3", "old-2", "old-1", "old-0"]


@pytest.mark.parametrize("most", [1, 2, 10**9])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8, 100])
def test_what_other_leaders_did_is_there(setting: Setting, limit: int, most: int) -> None:
    """API-04, HA-01: between two terms of ours and in their midst, where theirs came late; also where
    the store stops early, and what it does not have yet."""
    ids = [setting.note("place")]
    setting.hand_over()
    for number in range(3):
        setting.keep(number, "lease-in-doubt")
        ids += [f"old-{number}", setting.note("place")]
    setting.store.most = most
    assert [each for page in setting.read(limit) for each in page] == ids[::-1]
    doubts = setting.read(limit, EventFilter(kind="lease-in-doubt"))
    assert [each for page in doubts for each in page] == ["old-2", "old-1", "old-0"]


def test_what_the_store_has_beneath_is_not_skipped(setting: Setting) -> None:
    """API-04: a page of the store that stops early hides nothing between it and memory's."""
    oldest = setting.note("place")
    setting.keep(0)
    setting.keep(1)
    setting.store.most = 1
    setting.service = EventService(setting.journal, setting.store, Impatient())  # type: ignore[arg-type]
    assert [each for page in setting.read(100) for each in page] == ["old-1", "old-0", oldest]


def test_a_page_goes_on_where_it_was_although_memory_moved_on(setting: Setting) -> None:
    """API-04: what came since is not shown again, and nothing is left out."""
    first = [setting.note("new") for _ in range(4)]
    setting.hand_over()
    answer = setting.service.page(EventFilter(), 2, None)
    assert [entry["id"] for entry in answer["events"]] == [first[3], first[2]]
    for _ in range(1000):  # everything leaves memory
        setting.note("later")
    answer = setting.service.page(EventFilter(), 10, answer["next"])
    assert [entry["id"] for entry in answer["events"]] == [first[1], first[0]]
    assert answer["next"] is None


def test_the_latest_are_there_while_the_store_is_away(setting: Setting) -> None:
    """STO-03: with a word that there are others; none at all is no answer."""
    ids = [setting.note("new") for _ in range(3)]
    setting.store.away = True
    answer = setting.service.page(EventFilter(), 2, None)
    assert [entry["id"] for entry in answer["events"]] == ids[:0:-1]
    assert answer["incomplete"] == "only what this control plane did since it leads: the store is away"
    answer = setting.service.page(EventFilter(), 2, answer["next"])
    assert [entry["id"] for entry in answer["events"]] == ids[:1] and answer["next"] is None and answer["incomplete"]
    with pytest.raises(Refused) as refused:
        setting.service.page(EventFilter(kind="none"), 10, None)
    assert refused.value.code == "store_unavailable"


@pytest.mark.parametrize("cursor", ["x", "!!", "W10", "WyJtZW1vcnkiLDEsMl0", "WzEsMiwzXQ", "x" * 501, "\u00e4"])
def test_cursors_that_are_none(setting: Setting, cursor: str) -> None:
    """API-04: refused in words."""
    with pytest.raises(Refused) as refused:
        setting.service.page(EventFilter(), 10, cursor)
    assert refused.value.faults[0].path == "cursor"


def test_filters(setting: Setting) -> None:
    """API-04: of model, node and kind, and of time."""
    began = setting.clock.now().timestamp()
    one = setting.note("place", model="a", node="n1")
    two = setting.note("place", model="b", node="n1")
    three = setting.note("stop", model="a")
    for which, ids in (
        (EventFilter(model="a"), [three, one]),
        (EventFilter(node="n1"), [two, one]),
        (EventFilter(kind="stop"), [three]),
        (EventFilter(model="a", node="n1"), [one]),
        (EventFilter(since=began + 1), [three, two]),
        (EventFilter(until=began + 1), [one]),
    ):
        assert setting.read(10, which) == [ids]


# ---------------------------------------------------------------- the stream


def sent(chunks: Iterator[bytes]) -> list[dict[str, Any]]:
    """What a client makes of a stream; comments are left out."""
    found = []
    for block in b"".join(chunks).decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def follow(setting: Setting, which: EventFilter | None = None, after: str | None = None, **options: Any) -> Any:
    watcher, missed, complete = setting.service.watch(which or EventFilter(), after)
    options = {"good": lambda: True, "seconds": None, "clock": setting.clock, **options}
    return watcher, stream(setting.service, watcher, missed, complete=complete, **options)


def test_what_comes_is_sent_with_its_id(setting: Setting) -> None:
    """API-04: and only what was asked for."""
    setting.note("before")
    _, chunks = follow(setting, EventFilter(kind="place"))
    one = setting.note("place", model="a", figures={"nodes": 3})
    setting.note("stop")
    setting.service.close()
    first, last = sent(chunks)
    assert first["id"] == first["data"]["id"] == one and first["data"]["figures"] == {"nodes": 3}
    assert (last["event"], last["data"]["message"]) == ("end", "the control plane stops: connect again")
    assert setting.service.watchers == 0


def test_a_stream_goes_on_after_the_last_id(setting: Setting) -> None:
    """API-04: what came in between is sent first."""
    ids = [setting.note("place") for _ in range(3)]
    _, chunks = follow(setting, after=ids[0])
    ids.append(setting.note("place"))
    setting.service.close()
    assert [event.get("id") for event in sent(chunks)] == [*ids[1:], None]


def test_a_last_id_that_memory_lost_is_told(setting: Setting) -> None:
    """API-04: a client must know that it missed something."""
    ids = [setting.note("place") for _ in range(2)]
    _, chunks = follow(setting, after="long-gone")
    setting.service.close()
    events = sent(chunks)
    assert events[0]["event"] == "gap" and [event.get("id") for event in events[1:-1]] == ids


def test_a_slow_reader_is_dropped_and_told(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """API-04: its queue is bounded, others go on."""
    monkeypatch.setattr(module, "MAX_QUEUED", 3)
    slow, chunks = follow(setting)
    quick, others = follow(setting, EventFilter(kind="stop"))
    for _ in range(4):
        setting.note("place")
    setting.note("stop")
    assert slow.dropped and not quick.dropped
    (last,) = sent(chunks)
    assert last["event"] == "dropped" and "Last-Event-ID" in last["data"]["message"]
    setting.service.close()
    assert [event["event"] for event in sent(others)] == ["event", "end"]
    assert setting.service.watchers == 0


def test_a_silent_stream_stays_alive(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """API-04: with comments, which clients leave out and proxies count."""
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    _, chunks = follow(setting)
    assert next(chunks).startswith(b":")
    assert [next(chunks) for _ in range(2)] == [b": alive\n\n"] * 2
    chunks.close()
    assert setting.service.watchers == 0


def test_a_stream_ends_with_its_token(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """API-08: nothing is sent any more to whom it is not meant for."""
    good = True
    _, chunks = follow(setting, good=lambda: good)
    setting.note("place")
    good = False
    (last,) = sent(chunks)
    assert last["data"]["message"] == "the token is no longer valid"


def test_there_are_only_so_many_watchers(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """API-04: each is a connection and a queue."""
    monkeypatch.setattr(module, "MAX_WATCHERS", 2)
    streams = [follow(setting)[1] for _ in range(2)]
    with pytest.raises(Refused) as refused:
        follow(setting)
    assert refused.value.code == "busy" and refused.value.retry_after
    next(streams[0])
    streams[0].close()
    follow(setting)


def test_waiting_holds_nobody_up(setting: Setting) -> None:
    """A watcher sleeps until something comes."""
    _, chunks = follow(setting)
    next(chunks)
    came = Signal()
    found: list[bytes] = []

    def wait() -> None:
        found.append(next(chunks))
        came.set()

    waiting = gevent.spawn(wait)
    gevent.sleep(0)
    assert not found
    setting.note("place")
    assert came.wait(5) and found[0].startswith(b"id: ")
    waiting.join()
