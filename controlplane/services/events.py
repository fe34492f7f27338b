"""Decisions and events: those of the store, which has every leader's, with those of memory that
are not there yet; and new ones as they come (API-04)."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from gevent.event import Event

from controlplane.journal import Entry, Journal
from controlplane.services.errors import Refused
from controlplane.services.paging import bad_cursor, decode, encode
from controlplane.services.reading import filled, read
from controlplane.store.access import StoreAccess
from controlplane.store.values import EventEntry, Page
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.events")

MAX_WATCHERS = 64
MAX_OF_ONE = 16
"""Watchers that one user may have, so that nobody takes all."""

MAX_QUEUED = 1000
"""Events that may wait for one watcher."""

HEARTBEAT = 15.0
"""Seconds of silence after which a watcher is sent a comment."""

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events. ``since`` and ``until`` are Unix seconds. ``None``: all."""

    model: str | None = None
    node: str | None = None
    kind: str | None = None
    since: float | None = None
    until: float | None = None

    def takes(self, entry: Entry) -> bool:
        """Whether it is one of them."""
        return (
            (self.model is None or entry.model == self.model)
            and (self.node is None or entry.node == self.node)
            and (self.kind is None or entry.kind == self.kind)
            and (self.since is None or moment_of(entry) >= self.since)
            and (self.until is None or moment_of(entry) < self.until)
        )


class Watcher:
    """One client that waits for events: a bounded queue.

    ``dropped``: it did not read fast enough, and what was queued is gone. ``ended``: there
    will be no more.
    """

    def __init__(self, which: EventFilter, user: str = "") -> None:
        self.which = which
        self.user = user
        self.dropped = False
        self.ended = False
        self._queue: deque[Entry] = deque()
        self._wake = Event()

    def put(self, entry: Entry) -> None:
        """Queue an event, if it is one of those asked for."""
        if self.dropped or self.ended or not self.which.takes(entry):
            return
        if len(self._queue) >= MAX_QUEUED:
            self.dropped = True
            self._queue.clear()
        else:
            self._queue.append(entry)
        self._wake.set()

    def end(self) -> None:
        """There is nothing more to come."""
        self.ended = True
        self._wake.set()

    def take(self, timeout: float) -> list[Entry]:
        """What is queued; waits for at most ``timeout`` seconds if nothing is."""
        if not self._queue and not self.dropped and not self.ended:
            self._wake.wait(timeout)
        self._wake.clear()
        taken = list(self._queue)
        self._queue.clear()
        return taken


class EventService:
    """Reads of events, and the clients that watch."""

    def __init__(self, journal: Journal, store: StoreAccess, clock: Clock) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._watchers: set[Watcher] = set()
        self._closed = False
        journal.on_entries = self._told

    # ------------------------------------------------------------ lists

    def page(self, which: EventFilter, limit: int, cursor: str | None) -> Plain:
        """Events, newest first, of the store and of memory, which has those that the store does
        not have yet; and ``next``, the cursor after them. While the store is away: those of
        memory, and ``incomplete`` says so. Raises ``Refused``."""
        place = None if cursor is None else _place_of(cursor)
        ours = ((_place(entry), entry) for entry in self._journal.recent if which.takes(entry))
        found: dict[tuple[float, str], Entry | EventEntry] = {
            at: entry for at, entry in ours if place is None or at < place
        }
        incomplete = None
        try:
            stored = self._stored(which, limit, cursor)
        except Refused as refused:
            if refused.code != "store_unavailable" or not found:
                raise
            stored = Page((), None)
            incomplete = f"only what this control plane did since it leads: {refused}"
        found |= {(entry.at, entry.id): entry for entry in stored.items}
        if stored.next is not None and len(stored.items) < limit:  # it stopped early: it may have more beneath
            reached = _place_of(stored.next)
            found = {at: entry for at, entry in found.items() if at >= reached}
        places = sorted(found, reverse=True)
        shown = places[:limit]
        after = stored.next
        if len(places) > limit or (after is not None and len(shown) == limit):
            after = encode(*shown[-1])
        return {"events": [_plain(found[at]) for at in shown], "next": after, "incomplete": incomplete}

    def _stored(self, which: EventFilter, limit: int, cursor: str | None) -> Page[EventEntry]:
        def part(wanted: int, place: str | None) -> Page[EventEntry]:
            return read(
                self._store,
                lambda tx: tx.events.page(
                    wanted,
                    place,
                    model=which.model,
                    node=which.node,
                    kind=which.kind,
                    since=which.since,
                    until=which.until,
                ),
            )

        return filled(part, limit, cursor, self._clock)

    # ------------------------------------------------------------ watching

    def watch(self, which: EventFilter, after: str | None, user: str = "") -> tuple[Watcher, list[Entry], bool]:
        """A new watcher of ``user``, the events in memory after the one with the id ``after``, and
        whether that one was there; if not, all that memory has are given. Without
        ``after`` it begins with what comes. Raises ``Refused`` if there are too many."""
        if self._closed or len(self._watchers) >= MAX_WATCHERS:
            words = f"{len(self._watchers)} clients watch already: try again later, or read GET /api/v1/events"
            raise Refused("busy", words, status=503, retry_after=10)
        if sum(1 for watcher in self._watchers if watcher.user == user) >= MAX_OF_ONE:
            words = f"{user or 'you'} has {MAX_OF_ONE} streams open already, as many as one user may: end one of them"
            raise Refused("busy", words, status=503, retry_after=10)
        watcher = Watcher(which, user)
        self._watchers.add(watcher)
        if after is None:
            return watcher, [], True
        recent = list(self._journal.recent)
        place = next((index for index, entry in enumerate(recent) if entry.id == after), None)
        missed = recent if place is None else recent[place + 1 :]
        return watcher, [entry for entry in missed if which.takes(entry)], place is not None

    def forget(self, watcher: Watcher) -> None:
        """The client is gone."""
        self._watchers.discard(watcher)

    @property
    def watchers(self) -> int:
        """How many clients watch."""
        return len(self._watchers)

    def close(self) -> None:
        """End every stream; take no more."""
        self._closed = True
        for watcher in list(self._watchers):
            watcher.end()

    def _told(self, entries: tuple[Entry, ...]) -> None:
        for watcher in self._watchers:
            for entry in entries:
                watcher.put(entry)


def stream(
    service: EventService,
    watcher: Watcher,
    missed: list[Entry],
    *,
    complete: bool,
    good: Callable[[], bool],
    seconds: float | None,
    clock: Clock,
) -> Iterator[bytes]:
    """Server-sent events until the client goes, ``seconds`` are over, or ``good`` says that
    its token is good no more. Events carry ids, comments keep the connection alive."""
    deadline = None if seconds is None else clock.monotonic() + seconds
    try:
        yield b": llmgw events\n\n"
        if not complete:
            yield _last("gap", "events after that id are no longer in memory: GET /api/v1/events has the older ones")
        for entry in missed:
            yield _sse(entry)
        while True:
            left = HEARTBEAT if deadline is None else max(0.0, deadline - clock.monotonic())
            entries = watcher.take(min(HEARTBEAT, left))
            if not good():
                yield _last("end", "the token is no longer valid")
                return
            if watcher.dropped:
                yield _last("dropped", "you read too slowly: connect again, with Last-Event-ID to go on")
                return
            for entry in entries:
                yield _sse(entry)
            if watcher.ended:
                yield _last("end", "the control plane stops: connect again")
                return
            if deadline is not None and clock.monotonic() >= deadline:
                yield _last("end", "the time asked for is over")
                return
            if not entries:
                yield b": alive\n\n"
    finally:
        service.forget(watcher)


def moment_of(entry: Entry) -> float:
    """When it was, in Unix seconds; 0 if a damaged journal does not say."""
    try:
        return datetime.fromisoformat(entry.at).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _place(entry: Entry) -> tuple[float, str]:
    """What the order is by, as in the store."""
    return moment_of(entry), entry.id


def _place_of(cursor: str) -> tuple[float, str]:
    at, name = decode(cursor, 2)
    if not isinstance(at, int | float) or not isinstance(name, str):
        raise bad_cursor()
    return at, name


def _plain(entry: Entry | EventEntry) -> Plain:
    if isinstance(entry, EventEntry):
        return _plain_stored(entry)
    plain: Plain = msgspec.to_builtins(entry, enc_hook=str)
    plain.pop("batch", None)
    return {**plain, "at": entry.at, "kind": entry.kind, "reason": entry.reason}


def _plain_stored(entry: EventEntry) -> Plain:
    return {
        "id": entry.id,
        "at": datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="milliseconds"),
        "kind": entry.kind,
        "reason": entry.reason,
        "epoch": entry.epoch or None,
        "model": entry.model,
        "replica": entry.replica,
        "node": entry.node,
        "figures": dict(entry.figures) or None,
    }


_encoder = msgspec.json.Encoder(enc_hook=str)


def _sse(entry: Entry) -> bytes:
    return b"id: " + entry.id.encode() + b"\nevent: event\ndata: " + _encoder.encode(_plain(entry)) + b"\n\n"


def _last(kind: str, words: str) -> bytes:
    return f"event: {kind}\ndata: ".encode() + _encoder.encode({"message": words}) + b"\n\n"
