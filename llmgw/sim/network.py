"""The simulated network: TCP connections between named hosts.

A connection carries bytes in order, cut anywhere, with delay. It may end at any
moment with any suffix undelivered, in one of these ways: closed by an end (the other
reads end of stream after the last byte), reset (both are told), dropped (a middlebox
forgot it: only who sends learns of it, or nobody), or held up for a while.
"""

from collections import Counter, deque
from collections.abc import Callable

from llmgw.sim.world import Timer, World

MAX_DELAY = 0.03
"""Upper bound of a packet's usual delay, in seconds."""

RETRANSMIT = 1.0
"""How often a sender tries again when nothing gets through."""

_PIECE = 1500


class End:
    """One end of a connection. The owner sets ``on_data``, ``on_end`` (the peer closed
    its half) and ``on_error`` (the connection broke, for a reason in words)."""

    def __init__(self, connection: "Connection", host: str) -> None:
        self.connection = connection
        self.host = host
        self.peer: End
        self.open = True
        self.held_until = 0.0
        """Nothing that this end sends gets through before this moment; nothing is lost."""
        self.user_timeout: float | None = None
        """Seconds after which sent data that nobody acknowledged breaks the connection."""
        self.on_data: Callable[[bytes], None] = _ignore
        self.on_end: Callable[[], None] = _ignore
        self.on_error: Callable[[str], None] = _ignore
        self._finished = False
        self._waiting: deque[bytes | None] = deque()
        self._sent_at: deque[float] = deque()
        self._pump: Timer | None = None
        self._last_arrival = 0.0

    def send(self, data: bytes) -> None:
        """Send bytes; they arrive later, or never."""
        if not self.open or self._finished:
            return
        rng = self.connection.network.rng
        while data:
            size = rng.randint(1, _PIECE) if rng.random() < 0.7 else len(data)
            self._queue(data[:size])
            data = data[size:]

    def shut_write(self) -> None:
        """Send end of stream after what was sent."""
        if self.open and not self._finished:
            self._finished = True
            self._queue(None)

    def close(self) -> None:
        """Close both halves; nothing is told to the owner any more. What was sent
        still arrives."""
        if self.open:
            self.shut_write()
            self.silence()

    def lose_some(self) -> None:
        """The last part of what was sent was never handed to the kernel."""
        for _ in range(self.connection.network.rng.randint(0, len(self._waiting))):
            self._waiting.pop()
            self._sent_at.pop()

    def reset(self) -> None:
        """Close at once: what is under way is lost, the peer is told."""
        self.silence()
        self._waiting.clear()
        self.connection.tell(self.peer, "reset by the peer")

    def silence(self) -> None:
        """The owner is gone or wants no more: no callback from now on."""
        self.open = False
        self.on_data = self.on_end = self.on_error = _ignore

    def break_with(self, reason: str) -> None:
        """The connection is broken as far as this end is concerned."""
        if self.open:
            self.open = False
            self._waiting.clear()
            told = self.on_error
            self.on_data = self.on_end = self.on_error = _ignore
            told(reason)

    def _queue(self, piece: bytes | None) -> None:
        self._waiting.append(piece)
        self._sent_at.append(self.connection.network.world.now)
        if self._pump is None:
            self._schedule(self.connection.network.delay())

    def _schedule(self, delay: float) -> None:
        self._pump = self.connection.network.world.after(delay, self._deliver)

    def _deliver(self) -> None:
        """Hand the oldest piece to the peer, if it gets through now."""
        self._pump = None
        connection = self.connection
        now = connection.network.world.now
        if not self._waiting or connection.dead:
            return
        held = self.held_until - now
        if held > 0:
            self._schedule(held)
            return
        if connection.black or connection.network.blocked(self.host, self.peer.host):
            if self.open and self.user_timeout is not None and now - self._sent_at[0] >= self.user_timeout:
                self._waiting.clear()
                self.break_with("timed out: nothing was acknowledged")
            elif self.open:
                self._schedule(RETRANSMIT)
            return
        piece = self._waiting.popleft()
        self._sent_at.popleft()
        if piece is None:
            self.peer.on_end()
        elif self.peer.open:
            self.peer.on_data(piece)
        else:
            connection.tell(self, "reset by the peer")
        if self._waiting and self._pump is None:
            self._schedule(connection.network.delay() * 0.1)


class Connection:
    """Two ends and what lies between."""

    def __init__(self, network: "Network", client: str, server: str) -> None:
        self.network = network
        self.client = End(self, client)
        self.server = End(self, server)
        self.client.peer, self.server.peer = self.server, self.client
        self.dead = False
        self.black = False

    @property
    def over(self) -> bool:
        """Whether no end has any use for it."""
        return not self.client.open and not self.server.open

    def tell(self, end: End, reason: str) -> None:
        """Break one end after a delay."""
        self.network.world.after(self.network.delay(), end.break_with, reason)

    def break_off(self) -> None:
        """Reset in between: both are told, what is under way is lost."""
        self.dead = True
        self.tell(self.client, "reset in between")
        self.tell(self.server, "reset in between")

    def drop(self, told: End | None) -> None:
        """A middlebox forgot the connection: nothing gets through any more. ``told``
        learns at once; the other one only when its own timeouts say so."""
        self.black = True
        if told is not None:
            self.tell(told, "reset in between")


class Network:
    """Who listens where, and who can reach whom."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("network")
        self.connections: list[Connection] = []
        self._listeners: dict[str, tuple[str, Callable[[End], None]]] = {}
        self._blocked: Counter[frozenset[str]] = Counter()
        self._refusing: dict[str, float] = {}

    def delay(self) -> float:
        """Delay of one packet: mostly short, now and then long."""
        return self.rng.uniform(0.0002, MAX_DELAY if self.rng.random() < 0.98 else MAX_DELAY * 20)

    def listen(self, address: str, host: str, accept: Callable[[End], None]) -> None:
        """Take connections to ``address`` from now on."""
        self._listeners[address] = (host, accept)

    def unlisten(self, address: str) -> None:
        """Take no connection any more."""
        self._listeners.pop(address, None)

    def refuse(self, address: str, seconds: float) -> None:
        """Turn connections away for a while, as a full backlog does."""
        self._refusing[address] = self.world.now + seconds

    def block(self, one: str, other: str) -> None:
        """A partition: nothing passes between two hosts, either way. Several add up."""
        self._blocked[frozenset((one, other))] += 1

    def unblock(self, one: str, other: str) -> None:
        """A partition between two hosts is over."""
        pair = frozenset((one, other))
        if self._blocked[pair] > 0:
            self._blocked[pair] -= 1

    def heal(self) -> None:
        """Every partition and refusal is over."""
        self._blocked.clear()
        self._refusing.clear()
        for connection in self.connections:
            connection.client.held_until = connection.server.held_until = 0.0

    def blocked(self, one: str, other: str) -> bool:
        """Whether two hosts cannot reach each other."""
        return self._blocked[frozenset((one, other))] > 0

    def connect(self, host: str, address: str, done: Callable[[End | str], None]) -> None:
        """Connect from ``host``; ``done`` gets the client's end, or why there is none.
        Into a partition there is no answer at all."""
        self.world.after(self.delay(), self._arrive, host, address, done)

    def live(self, *hosts: str) -> list[Connection]:
        """Connections in use that have an end on each of ``hosts``."""
        self.connections = [connection for connection in self.connections if not connection.over]
        return [
            connection
            for connection in self.connections
            if set(hosts) <= {connection.client.host, connection.server.host} and not connection.dead
        ]

    def _arrive(self, host: str, address: str, done: Callable[[End | str], None]) -> None:
        server, accept = self._listeners.get(address, ("", None))
        if accept is None or self._refusing.get(address, 0.0) > self.world.now:
            self.world.after(self.delay(), done, "connection refused")
            return
        if self.blocked(host, server):
            return
        connection = Connection(self, host, server)
        self.connections.append(connection)
        accept(connection.server)
        self.world.after(self.delay(), done, connection.client)


def _ignore(*_: object) -> None:
    """Nobody wants to know."""
