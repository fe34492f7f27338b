"""The agents' listener of a leader: their sessions, frame by frame (AGT-03, AGT-04).

Who may open one is ``services.identities``' business, what is said in one the writer's;
certificates are renewed here, between the two.
"""

import random
import secrets
from collections.abc import Callable
from typing import Any

import gevent

from controlplane.events import FrameReceived, SessionClosed, SessionOpened
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.listeners import registration, upgrade
from controlplane.listeners.connection import Connection, elsewhere
from controlplane.listeners.door import Arrived, Door
from controlplane.listeners.refusals import Refusals
from controlplane.listeners.turns import Turns
from controlplane.services.identities import Identities, NotAdmitted
from llmgw.identity.names import Identity, IdentityError
from llmgw.identity.pem import presented as presented_in
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address
from llmgw.wire.frames import Decoder, FrameError, up_decoder
from llmgw.wire.messages import Credential, Down, Goodbye, Hello, Refuse, Register, Renew, Unknown, Up, Welcome

log = Logger("llmgw.agents")

REGISTER_PAUSE = 0.1
"""Seconds that nothing more is read from a peer after a registration: each one is
written down, planned for and answered, so one peer's must not follow in a rush."""

RENEW_PAUSE = 0.5
"""The same after it asked for a certificate, which costs a signature or a line in the log."""

RETURNING = 400
"""Agents a second that are asked to come back after a goodbye: one core registers some more."""

RENEW_SPREAD = 60.0
"""Seconds over which sessions are asked to renew, so that a new issuer is not asked to sign
for the whole fleet at once; fewer if there are less than ``RENEW_RATE`` of them a second."""

RENEW_RATE = 50.0


class AgentListener:
    """Accepts agents on an address or a listening socket, and keeps their connections by session.

    ``silence`` and ``hello`` are seconds, ``max_pending`` bounds connections that have not
    said hello.
    """

    def __init__(
        self,
        address: Any,
        inbox: Inbox,
        credentials: Credentials,
        identities: Identities,
        clock: Clock,
        *,
        silence: float = 30.0,
        hello: float = 10.0,
        max_pending: int = 1024,
        renew_spread: float = RENEW_SPREAD,
    ) -> None:
        self._inbox = inbox
        self._credentials = credentials
        self._identities = identities
        self._clock = clock
        self._silence = silence
        self._renew_spread = renew_spread
        self._connections: dict[str, Connection] = {}
        self._turns = Turns()
        self._sweeper: gevent.Greenlet[..., None] | None = None
        self._door = Door(
            address, credentials.mutual, self._take, clock, silence=silence, hello=hello, max_pending=max_pending
        )
        self._ended = Refusals(log, clock)
        self.unknown_messages = 0

    def start(self) -> "AgentListener":
        """Begin to listen. Raises ``OSError`` if the address cannot be had."""
        self._door.start()
        self._sweeper = gevent.spawn(self._sweep)
        self._credentials.on_change(self._offer)
        return self

    @property
    def address(self) -> Address:
        """The address listened on, with the port that was chosen for port 0."""
        return self._door.address

    @property
    def sessions(self) -> int:
        """Connections past hello."""
        return len(self._connections)

    @property
    def pending(self) -> int:
        """Connections before hello."""
        return self._door.pending + self._door.handshakes

    @property
    def refused(self) -> int:
        """Connections turned away."""
        return self._door.refusals.count

    @property
    def bad_frames(self) -> int:
        """Sessions ended by a frame."""
        return self._ended.count

    def send(self, session: str, message: Down) -> None:
        """Queue a frame. A session that is gone takes nothing."""
        connection = self._connections.get(session)
        if connection is None:
            return
        connection.send(message)
        if isinstance(message, Welcome):  # before it an agent takes nothing but a refusal
            connection.welcomed = True
            self._offer_to(connection, connection.authorities)

    def close(self, session: str, refuse: Refuse | None) -> None:
        """End a session, telling why."""
        connection = self._connections.get(session)
        if connection is not None:
            reason = refuse.message if refuse else "closed by the control plane"
            connection.close(reason, refuse)

    def end(self, identity: Identity, code: str, message: str) -> None:
        """End the sessions of a node that may no longer speak."""
        if identity.kind != "node":
            return
        for connection in list(self._connections.values()):
            if connection.node_id == identity.name:
                connection.close(message, Refuse(code=code, message=message))

    def stop(self, timeout: float = 0.5, why: str = "the control plane is stopping") -> None:
        """Say goodbye to every agent, tell it why, and close. The spread grows with the fleet, so
        that it does not return in one instant."""
        self._door.close()
        if self._sweeper is not None:
            self._sweeper.kill(block=False)
        self._credentials.off_change(self._offer)
        goodbye = Goodbye(reason=why, spread_seconds=max(2.0, len(self._connections) / RETURNING))
        for connection in list(self._connections.values()):
            connection.close(why, goodbye)
        with gevent.Timeout(timeout, False):
            for connection in list(self._connections.values()):
                connection.flushed.wait()
        for connection in list(self._connections.values()):
            connection.cut()

    # ------------------------------------------------------------ one connection

    def _take(self, arrived: Arrived) -> Callable[[], None] | None:
        node = arrived.request.node_id
        self._admit(arrived, node)
        arrived.accept()
        opened = self._read_hello(arrived)
        if opened is None:
            return None
        self._admit(arrived, node)  # it may have been revoked since
        return lambda: self._live(*opened)

    def _admit(self, arrived: Arrived, node: str) -> None:
        try:
            self._identities.admit(arrived.presented, "node", node)
        except NotAdmitted as error:
            raise upgrade.forbidden(error.code, str(error)) from error

    def _read_hello(self, arrived: Arrived) -> tuple[Connection, Decoder[Up], Hello, list[Up | Unknown]] | None:
        connection = Connection(
            arrived.sock,
            arrived.peer,
            session=secrets.token_hex(8),
            presented=arrived.presented,
            silence=self._silence,
            turns=self._turns,
        )
        node, data = connection.node_id, arrived.rest
        decoder = up_decoder()
        messages: list[Up | Unknown] = []
        try:
            while not messages:
                messages += decoder.feed(data)
                if not messages:
                    data = connection.receive()
                    if not data:
                        log.info("left before hello", node=node, peer=connection.peer, unread=decoder.pending)
                        return None
        except FrameError as error:
            self._refuse(connection, error.code, str(error))
            return None
        hello, *rest = messages
        if not isinstance(hello, Hello):
            self._refuse(connection, "hello_expected", "the first frame must be hello")
            return None
        if hello.node_id != node:
            message = f"hello names the node {hello.node_id[:64]!r}, the certificate is that of {node!r}"
            self._refuse(connection, "unauthorised", message)
            return None
        return connection, decoder, hello, rest

    def _refuse(self, connection: Connection, code: str, message: str) -> None:
        self._tell("session refused", connection, code, message)
        connection.start()
        connection.close(message, Refuse(code=code, message=message))
        connection.drain()
        connection.over()

    def _live(self, connection: Connection, decoder: Decoder[Up], hello: Hello, messages: list[Up | Unknown]) -> None:
        session = connection.session
        self._connections[session] = connection
        connection.heard = self._clock.monotonic()
        connection.start()
        log.info("session opened", node=connection.node_id, peer=connection.peer, version=hello.version)
        try:
            connection.authorities = hello.authorities
            came_from = elsewhere(connection.peer, connection.sock)
            self._inbox.put(SessionOpened(session, connection.node_id, hello, came_from))
            self._deliver(connection, messages)
            self._read_frames(connection, decoder)
        except FrameError as error:
            self._end(connection, error.code, str(error))
        except OSError as error:
            if connection.closing:
                connection.drain()
            connection.reason = connection.reason or f"the connection broke: {error.strerror or error}"
        finally:
            del self._connections[session]
            reason = connection.reason or "the agent closed the connection"
            self._inbox.force(SessionClosed(session, reason))
            log.info("session closed", node=connection.node_id, peer=connection.peer, why=reason)
            connection.over()

    def _read_frames(self, connection: Connection, decoder: Decoder[Up]) -> None:
        while data := connection.receive():
            connection.heard = self._clock.monotonic()
            if connection.closing:
                connection.drain()
                return
            self._deliver(connection, decoder.feed(data))
        if decoder.pending and not connection.closing:
            log.warning(
                "a connection ended within a frame",
                node=connection.node_id,
                peer=connection.peer,
                unread=decoder.pending,
            )

    def _deliver(self, connection: Connection, messages: Any) -> None:
        for message in messages:
            if isinstance(message, Hello):
                raise FrameError("bad_frame", "hello was said already")
            if isinstance(message, Register) and (why := registration.fault(message)) is not None:
                raise FrameError("bad_frame", why)
            if isinstance(message, Renew):
                self._renew(connection, message)
                gevent.sleep(RENEW_PAUSE)
                continue
            if isinstance(message, Unknown):
                self.unknown_messages += 1
            self._inbox.put(FrameReceived(connection.session, message))
            if isinstance(message, Register):
                gevent.sleep(REGISTER_PAUSE)

    def _end(self, connection: Connection, code: str, message: str) -> None:
        if not connection.closing:
            self._tell("session ended", connection, code, message)
            connection.close(message, Refuse(code=code, message=message))
        connection.drain()

    def _tell(self, message: str, connection: Connection, code: str, why: str) -> None:
        whose = str(connection.presented.identity)
        self._ended.tell(message, peer=connection.peer, certificate=whose, code=code, why=why)

    def _sweep(self) -> None:
        """End the sessions that were silent for too long."""
        every, words = self._silence / 4, f"nothing was heard for {self._silence:g} s"
        before = resumed = self._clock.monotonic()
        while True:
            gevent.sleep(every)
            now = self._clock.monotonic()
            if now - before > 2 * every:
                resumed = now  # we stood still: what came meanwhile has yet to be read
            before = now
            late = now - self._silence
            if resumed > late:
                continue
            for connection in [each for each in self._connections.values() if each.heard <= late]:
                if not connection.closing:
                    log.warning(
                        "session ended", node=connection.node_id, peer=connection.peer, code="timeout", why=words
                    )
                    connection.close(words, Refuse(code="timeout", message=words))

    # ------------------------------------------------------------ certificates

    def _renew(self, connection: Connection, asked: Renew) -> None:
        """Sign a new certificate, apart: others may be waiting for theirs, and this one's
        heartbeats are read meanwhile. One at a time for each session."""
        if connection.renewing:
            connection.send(Credential(fault="a certificate is being made for this session already"))
            return
        connection.renewing = True
        gevent.spawn(self._make, connection, asked.request)

    def _make(self, connection: Connection, request: str) -> None:
        try:
            self._identities.admit(connection.presented, "node", connection.node_id)
            identity = connection.presented.identity
            after = self._identities.revoked_until(identity)  # our clock may have been set back since
            chain = self._credentials.sign(identity, request.encode(), after)
            made = presented_in(chain)
            self._identities.record(connection.presented, made)
            connection.presented = made
        except (NotAdmitted, IdentityError) as error:
            log.warning("a certificate was not renewed", node=connection.node_id, peer=connection.peer, why=error)
            connection.send(Credential(fault=str(error)))
        else:
            log.info("certificate renewed", node=connection.node_id, serial=connection.presented.serial)
            connection.send(Credential(certificate=chain.decode()))
        finally:
            connection.renewing = False

    def _offer_to(self, connection: Connection, known: str) -> None:
        """Tell a session whom to trust if that changed, and ask it to renew a certificate
        that is older than what we sign with."""
        current = self._credentials
        if known and known != current.digest:
            connection.send(Credential(authorities=current.authorities.decode()))
        if current.outdated(connection.presented):
            spread = min(self._renew_spread, max(1.0, len(self._connections) / RENEW_RATE))
            gevent.spawn_later(random.uniform(0.0, spread), self._ask_to_renew, connection)  # noqa: S311

    def _ask_to_renew(self, connection: Connection) -> None:
        if self._credentials.outdated(connection.presented):
            connection.send(Credential(renew=True))

    def _offer(self) -> None:
        """Our own authorities or our issuer changed."""
        for connection in list(self._connections.values()):
            if connection.welcomed:
                self._offer_to(connection, "changed")
            gevent.sleep(0)
