"""The agents' listener on the simulated network: what ``listeners.agents`` does on
sockets, with its own request parser and frame decoder. There is no TLS: who a node is
its name alone says.

A standby's (``instead``) answers each hello with what ``instead`` says, and ends it."""

from collections.abc import Callable, Iterable

from controlplane.events import FrameReceived, SessionClosed, SessionOpened
from controlplane.listeners import upgrade
from llmgw.sim.network import End
from llmgw.sim.world import Process, Timer
from llmgw.wire.frames import FrameError, encode, up_decoder
from llmgw.wire.messages import Down, Goodbye, Hello, Refuse, Unknown, Up

LINGER = 1.0
HELLO = 10.0


class SimConnection:
    """One agent's connection. ``reason`` is why it ended, once it does."""

    def __init__(self, listener: "SimAgentListener", end: End) -> None:
        self._listener = listener
        self._end = end
        self._head: bytes | None = b""
        self._decoder = up_decoder()
        self._over = False
        self.session = ""
        self.node_id = ""
        self.opened = False
        self.closing = False
        self.reason = ""
        run = listener.process.run
        end.user_timeout = listener.silence
        end.on_data = lambda data: run(self._data, data)
        end.on_end = lambda: run(self._finish, "")
        end.on_error = lambda reason: run(self._finish, f"the connection broke: {reason}")
        self._silent: Timer = listener.process.later(HELLO, self._too_late)

    def send(self, message: Down) -> None:
        """Queue a frame."""
        if not self.closing:
            self._end.send(encode(message))

    def close(self, reason: str, last: Down | None = None) -> None:
        """Send what is queued and ``last``, then end the connection."""
        if self.closing:
            return
        self.reason = self.reason or reason
        if last is not None:
            self.send(last)
        self.closing = True
        self._end.shut_write()
        self._listener.process.later(LINGER, self._finish, "")

    def cut(self) -> None:
        """The process ended: the kernel closes."""
        self._over = True
        self._silent.cancel()
        self._end.close()

    def _data(self, data: bytes) -> None:
        if self._over or self.closing:
            return
        try:
            if self._head is not None:
                self._head += data
                upgrade.check_start(self._head)
                head, end, data = self._head.partition(upgrade.END)
                if not end:
                    return
                self._head = None
                self._accept(upgrade.parse(head + end))
            self._frames(self._decoder.feed(data))
        except upgrade.UpgradeError as error:
            self._end.send(f"HTTP/1.1 {error.status}\r\nConnection: close\r\n\r\n".encode())
            self._finish(str(error))
        except FrameError as error:
            self.close(str(error), Refuse(code=error.code, message=str(error)))
        if self.opened:
            self._silent.cancel()
            self._silent = self._listener.process.later(self._listener.silence, self._too_late)

    def _accept(self, request: upgrade.UpgradeRequest) -> None:
        if not self._listener.admits(request.node_id):
            raise upgrade.UpgradeError("403 Forbidden", "revoked", f"node {request.node_id} was removed")
        self.node_id = request.node_id
        self._end.send(upgrade.ACCEPTED)

    def _frames(self, messages: Iterable[Up | Unknown]) -> None:
        for message in messages:
            if not self.opened:
                if not isinstance(message, Hello) or message.node_id != self.node_id:
                    raise FrameError("hello_expected", "the first frame must be the node's hello")
                if self._listener.instead is not None:
                    refuse = self._listener.instead()
                    self.close(refuse.message, refuse)
                    return
                self.opened = True
                self.session = self._listener.add(self)
                self._listener.put(SessionOpened(self.session, self.node_id, message))
                continue
            if isinstance(message, Hello):
                raise FrameError("bad_frame", "hello was said already")
            self._listener.put(FrameReceived(self.session, message))

    def _too_late(self) -> None:
        if self._over:
            return
        if not self.opened:
            self._finish("no hello in time")
            return
        message = f"nothing was heard for {self._listener.silence:g} s"
        self.close(message, Refuse(code="timeout", message=message))

    def _finish(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._silent.cancel()
        self._end.close()
        if self.opened:
            self._listener.remove(self)
            self._listener.put(SessionClosed(self.session, self.reason or reason or "the agent closed the connection"))


class SimAgentListener:
    """All connections of one term, or of a standby, by session."""

    def __init__(
        self,
        process: Process,
        *,
        put: Callable[[SessionOpened | FrameReceived | SessionClosed], None],
        admits: Callable[[str], bool],
        silence: float,
        boot: str,
        instead: Callable[[], Refuse] | None = None,
    ) -> None:
        self.process = process
        self.put = put
        self.admits = admits
        self.silence = silence
        self.instead = instead
        self._boot = boot
        self._count = 0
        self._connections: dict[str, SimConnection] = {}
        self._pending: list[SimConnection] = []

    def accept(self, end: End) -> None:
        """A connection came in; the kernel takes it even if the process is paused."""
        connection = SimConnection(self, end)
        self._pending = [other for other in self._pending if not other.opened]
        self._pending.append(connection)

    def send(self, session: str, message: Down) -> None:
        """Queue a frame. A session that is gone takes nothing."""
        connection = self._connections.get(session)
        if connection is not None:
            connection.send(message)

    def close(self, session: str, refuse: Refuse | None) -> None:
        """End a session, telling why."""
        connection = self._connections.get(session)
        if connection is not None:
            connection.close(refuse.message if refuse else "closed by the control plane", refuse)

    def drop_refused(self) -> None:
        """End the sessions of nodes that people removed."""
        for connection in list(self._connections.values()):
            if not self.admits(connection.node_id):
                message = "the node's identity was revoked"
                connection.close(message, Refuse(code="revoked", message=message))

    def goodbye(self, last: Goodbye) -> None:
        """Say goodbye to every agent and close; whoever comes yet is turned away."""
        self.instead = self.instead or (lambda: Refuse(code="shutting_down", message=last.reason))
        for connection in list(self._connections.values()):
            connection.close(last.reason, last)

    def cut(self) -> None:
        """The process is no more."""
        for connection in [*self._connections.values(), *self._pending]:
            connection.cut()

    def add(self, connection: SimConnection) -> str:
        """Give a connection past hello its session."""
        self._count += 1
        session = f"{self._boot}.{self._count}"
        self._connections[session] = connection
        return session

    def remove(self, connection: SimConnection) -> None:
        """Its connection is gone."""
        self._connections.pop(connection.session, None)
