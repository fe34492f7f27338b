"""The one way into the writer: a bounded queue of events.

Heartbeats coalesce: of a session only the newest waits; so do reports, of a router's
process. Frames wait for room, which holds back the connection they came on; people's
requests are turned away at once; what must not be lost goes in beyond the bound.
"""

from collections import Counter, deque

from gevent.event import Event as Signal

from controlplane.events import Event, FrameReceived, RouterReported
from llmgw.wire.messages import Heartbeat

_Key = tuple[str, ...]
"""Of whom only the newest event waits."""

CAPACITY = 8192

PER_SESSION = 16
"""Frames of one session that may wait: a peer that floods holds up itself, and fills
neither the queue nor the memory."""


class Inbox:
    """Events for the writer, in order of arrival.

    ``coalesced`` counts heartbeats that a newer one replaced, ``refused`` events that
    found no room.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._events: deque[Event | _Key] = deque()
        self._newest: dict[_Key, Event] = {}
        self._frames: Counter[str] = Counter()
        self._arrived = Signal()
        self._room = Signal()
        self._room.set()
        self._closed = False
        self.coalesced = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def closed(self) -> bool:
        """Whether there is no writer any more."""
        return self._closed

    def put(self, event: Event) -> None:
        """Add an event of the fleet; wait while there is no room."""
        if isinstance(event, FrameReceived) and isinstance(event.message, Heartbeat):
            key = ("session", event.session)
            if key in self._newest:
                self.coalesced += 1
            else:
                self._wait_for_room()
            self._coalesce(key, event)
            return
        self._wait_for_room(event.session if isinstance(event, FrameReceived) else "")
        self.force(event)

    def offer(self, event: Event) -> bool:
        """Add an event if there is room."""
        key = ("router", event.router_id, event.report.boot) if isinstance(event, RouterReported) else ()
        if key not in self._newest and len(self._events) >= self._capacity:
            self.refused += 1
            return False
        if key:
            self._coalesce(key, event)
        else:
            self.force(event)
        return True

    def force(self, event: Event) -> None:
        """Add an event that must not be lost, room or not."""
        if self._closed:
            return
        if isinstance(event, FrameReceived):
            self._frames[event.session] += 1
        self._events.append(event)
        self._arrived.set()

    def take(self) -> Event | None:
        """The oldest event; ``None`` if there is none."""
        if not self._events:
            return None
        entry = self._events.popleft()
        if len(self._events) < self._capacity:
            self._room.set()
        if isinstance(entry, tuple):
            return self._newest.pop(entry)
        if isinstance(entry, FrameReceived):
            self._frames[entry.session] -= 1
            if not self._frames[entry.session]:
                del self._frames[entry.session]
        return entry

    def close(self) -> None:
        """There is no writer any more: what comes is dropped, and nobody waits for room."""
        self._closed = True
        self._events.clear()
        self._newest.clear()
        self._room.set()

    def wait(self, timeout: float) -> None:
        """Until an event arrives, at most ``timeout`` seconds."""
        if not self._events:
            self._arrived.clear()
            self._arrived.wait(timeout)

    def _coalesce(self, key: _Key, event: Event) -> None:
        """Add an event, or put it in the place of an earlier one."""
        if self._closed:
            return
        if key not in self._newest:
            self._events.append(key)
        self._newest[key] = event
        self._arrived.set()

    def _wait_for_room(self, session: str = "") -> None:
        while not self._closed and (len(self._events) >= self._capacity or self._frames[session] >= PER_SESSION):
            self._room.clear()
            self._room.wait()
