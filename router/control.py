"""Requests of a router to its control planes (see ``llmgw.wire.routing``).

There are several, one of which leads: requests go to the one that answered last, and when
it does not answer, does not lead or is not to be followed, to where it says and to the
others, each once. Connections are TLS, both sides prove who they are (SEC-01), and they
are kept: one per purpose.
"""

import _socket
import contextlib
import http.client
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import gevent
import msgspec
from gevent.event import Event
from gevent.hub import get_hub
from gevent.lock import BoundedSemaphore

from llmgw.identity.holder import Holder
from llmgw.identity.names import IdentityError
from llmgw.identity.tls import explain
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import Address, SettingsError, parse_address
from llmgw.wire import epochs
from llmgw.wire.routing import (
    EPOCH_HEADER,
    IDENTITY_PATH,
    MAX_TABLE,
    REPORT_PATH,
    ROUTER_ID_HEADER,
    TABLE_PATH,
    USAGE_PATH,
    Renewal,
    Renewed,
    Report,
    RouteTable,
    decode_table,
    encode,
)
from router.offhub import off_hub

log = Logger("router.control")

MAX_ANSWER = 4096
MAX_IDENTITY = 1024 * 1024

CONNECT_SECONDS = 5.0
"""For a connection and its handshake."""

SILENT_SECONDS = 15
"""After which the kernel finds out that a host is gone, while nothing is sent."""

Answer = TypeVar("Answer")
Take = Callable[[int, bytes], Answer]


class ControlError(Exception):
    """No control plane did what was asked; the message says why and what helps."""


class BatchRefused(ControlError):
    """The control plane will never take this batch: sending it again helps nobody."""


class _Moved(ControlError):
    """It does not lead; ``leader`` is where it says to go, if it knows."""

    def __init__(self, why: str, leader: Address | None) -> None:
        super().__init__(why)
        self.leader = leader


class _Request(NamedTuple):
    """What is asked: ``seconds`` for all of the answer, of at most ``limit`` bytes."""

    purpose: str
    method: str
    path: str
    body: bytes
    seconds: float
    limit: int = MAX_ANSWER


class _Fault(msgspec.Struct, frozen=True):
    """What comes with a refusal."""

    code: str = ""
    message: str = ""
    leader: str | None = None


class _Connection(http.client.HTTPConnection):
    """A kept connection to ``address``. ``used`` once it has carried a request; ``over``
    once it must carry no more."""

    def __init__(self, address: Address, shake: Callable[[socket.socket], socket.socket], seconds: float) -> None:
        super().__init__(address.host, address.port, timeout=seconds)
        self.address = address
        self.used = False
        self.over = False
        self._shake = shake

    def connect(self) -> None:
        with gevent.Timeout(CONNECT_SECONDS, TimeoutError("the connection took too long")):
            plain = socket.create_connection((self.host, self.port), CONNECT_SECONDS)
            _tune(plain)
            self.sock = self._shake(plain)
        self.sock.settimeout(self.timeout)

    def cut(self) -> None:
        """End it under whoever waits for an answer: that one reads the end. Closing would
        take the file from under it."""
        self.over = True
        if self.sock is None:
            return
        try:
            twin = _socket.socket(fileno=os.dup(self.sock.fileno()))
        except OSError:
            return  # it has ended already
        with contextlib.suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)
        twin.close()


class Control:
    """Where the control planes are, and how this router asks them. Call ``refresh`` first.

    Uses ``http.client``, which is cooperative in a patched process. Each purpose is for one
    greenlet.
    """

    def __init__(self, addresses: tuple[Address, ...], router_id: str, holder: Holder) -> None:
        self._addresses = addresses
        self._router_id = router_id
        self._holder = holder
        self._leader = addresses[0]
        self._kept: dict[str, _Connection] = {}
        self._shown: tuple[str, ...] = ()
        self._refreshing = BoundedSemaphore()
        self.moved = Event()
        """Set when another control plane than before turned out to lead."""
        self.epoch = 0
        self.epoch_of = ""

    def __repr__(self) -> str:
        return f"Control({', '.join(map(str, self._addresses))}, {self._router_id!r})"

    # ------------------------------------------------------------ what is asked

    def table(self, generation: str, wait: float) -> RouteTable | None:
        """A table of another generation, or ``None`` if there was none within ``wait``
        seconds. One that a later leader has overtaken is not taken (HA-01). Raises
        ``ControlError``."""
        path = f"{TABLE_PATH}?generation={quote(generation, safe='')}&wait={wait:g}"
        return self._ask(_Request("table", "GET", path, b"", wait + 10.0, MAX_TABLE), self._table)

    def _table(self, status: int, body: bytes) -> RouteTable | None:
        if status == 304:
            return None
        _demand(status == 200, status, body)
        try:
            table = decode_table(body)
        except ValueError as error:
            raise ControlError(f"the route table cannot be read: {error}") from error
        if objection := epochs.objection(self.epoch, self.epoch_of, table.epoch, table.leader):
            raise ControlError(f"it is not followed: {objection}")
        self.follow(table)
        return table

    def follow(self, table: RouteTable) -> None:
        """Take no table of an earlier leader than this one's from now on."""
        self.epoch, self.epoch_of = table.epoch, table.leader

    def report(self, report: Report) -> None:
        """Tell the control plane what is in flight. Raises ``ControlError``."""
        self._ask(_Request("report", "POST", REPORT_PATH, encode(report), 5.0), _done)

    def usage(self, batch: bytes) -> None:
        """Hand over a ``UsageBatch``; returns once it is durable there. Raises ``ControlError``,
        and ``BatchRefused`` if it is the batch that is wrong."""
        self._ask(_Request("usage", "POST", USAGE_PATH, batch, 5.0), _counted)

    def identity(self, renewal: Renewal) -> Renewed:
        """What is new about certificate and authorities. Raises ``ControlError``."""
        return self._ask(_Request("identity", "POST", IDENTITY_PATH, encode(renewal), 30.0, MAX_IDENTITY), _renewed)

    def reconnect(self) -> None:
        """Have every purpose make a new connection with its next request: our certificate is
        another."""
        for connection in self._kept.values():
            connection.over = True

    # ------------------------------------------------------------ whom

    def _ask(self, request: _Request, take: Take[Answer]) -> Answer:
        """The answer of the first control plane that gives one which ``take`` accepts."""
        ahead = [self._leader, *(address for address in self._addresses if address != self._leader)]
        asked: list[Address] = []
        faults: list[str] = []
        while ahead:
            address = ahead.pop(0)
            asked.append(address)
            try:
                answer = take(*self._send(request, address))
            except BatchRefused:
                raise
            except _Moved as moved:
                faults.append(f"{address}: {moved}")
                if moved.leader is not None and moved.leader not in asked and len(asked) <= len(self._addresses):
                    ahead = [moved.leader, *(other for other in ahead if other != moved.leader)]
            except ControlError as error:
                faults.append(f"{address}: {error}")
            else:
                self._found(address)
                return answer
        raise ControlError("; ".join(faults))

    def _found(self, leader: Address) -> None:
        """Have every purpose go there: what still waits for another's answer may wait in vain."""
        if leader == self._leader:
            return
        log.info("following another control plane", address=leader)
        self._leader = leader
        self.moved.set()
        for connection in self._kept.values():
            if connection.address != leader:
                connection.cut()

    # ------------------------------------------------------------ how

    def _send(self, request: _Request, address: Address) -> tuple[int, bytes]:
        purpose, method, path, body, seconds, limit = request
        headers = {ROUTER_ID_HEADER: self._router_id, EPOCH_HEADER: f"{self.epoch} {self.epoch_of}".strip()}
        if body:
            headers["Content-Type"] = "application/json"
        while True:
            connection = self._connection(purpose, address, seconds)
            fresh, connection.used = not connection.used, True
            data: bytes | None = None
            try:
                # The connection's own bound is on each read: one byte at a time would last for ever.
                with gevent.Timeout(seconds, TimeoutError("its answer took too long")):
                    try:
                        connection.request(method, path, body or None, headers)
                    except ConnectionError:
                        if connection.sock is None:
                            raise
                        # Whoever refuses our certificate has said why: it is read below.
                    answer = connection.getresponse()
                    data = answer.read(limit + 1)
            except SettingsError as error:  # no identity that could be shown
                raise ControlError(str(error)) from error
            except (OSError, ValueError, IdentityError, http.client.HTTPException) as error:
                if fresh or connection.over or isinstance(error, TimeoutError | ValueError):
                    why = "another one leads by now" if connection.over else _no_answer(error)
                    raise ControlError(why) from error
                log.debug("a kept connection has ended", purpose=purpose, why=repr(error))
                continue  # whatever we ask may be asked twice
            finally:
                if data is None:
                    self._drop(purpose)
            if answer.will_close or connection.over or len(data) > limit:
                self._drop(purpose)
            if len(data) > limit:
                raise ControlError(f"its answer is larger than {limit} bytes")
            return answer.status, data

    def _connection(self, purpose: str, address: Address, seconds: float) -> _Connection:
        kept = self._kept.get(purpose)
        if kept is not None and kept.address == address and not kept.over:
            return kept
        self.refresh()  # who was refused may have been given another certificate
        self._drop(purpose)
        self._kept[purpose] = made = _Connection(address, self._shake, seconds)
        return made

    def _shake(self, plain: socket.socket) -> socket.socket:
        secure, _ = self._holder.tls.connect(plain, CONNECT_SECONDS)
        return secure

    def _drop(self, purpose: str) -> None:
        kept = self._kept.pop(purpose, None)
        if kept is not None:
            kept.close()

    def refresh(self) -> bool:
        """Use our certificate and authorities as they are on disk now; whether they are others
        than before."""
        try:
            with self._refreshing:  # each purpose asks for it, and two at once could leave the older one in use
                changed = off_hub(get_hub().threadpool, self._holder.refresh)
        except (SettingsError, OSError) as error:
            log.error("the identity on disk cannot be used, the one in use stays", why=error)
            return False
        shown = (self._holder.presented.serial, self._holder.authorities) if changed else self._shown
        if shown == self._shown:
            return False
        if self._shown:
            log.info("another identity is shown", serial=shown[0], authorities=shown[1][:16])
        self._shown = shown
        self.reconnect()
        return True


# ---------------------------------------------------------------- answers


def _done(status: int, body: bytes) -> None:
    _demand(status == 204, status, body)


def _counted(status: int, body: bytes) -> None:
    if status in (400, 413, 422):
        raise BatchRefused(f"it answered {status}: {body[:200].decode('utf-8', 'replace')!a}")
    _demand(status == 204, status, body)


def _renewed(status: int, body: bytes) -> Renewed:
    _demand(status == 200, status, body)
    try:
        return msgspec.json.decode(body, type=Renewed)
    except (ValueError, RecursionError) as error:
        raise ControlError(f"its answer about our certificate cannot be read: {error}") from error


def _demand(good: bool, status: int, body: bytes) -> None:
    """Raises ``ControlError``, with what the control plane said, unless ``good``."""
    if good:
        return
    try:
        fault = msgspec.json.decode(body, type=_Fault)
    except (ValueError, RecursionError):
        fault = _Fault()
    if fault.code == "not_leader":
        raise _Moved("it does not lead", _address(fault.leader))
    said = f": {fault.message[:300]} ({fault.code[:40]})" if fault.code else ""
    raise ControlError(f"it answered {status}{said}")


def _address(text: str | None) -> Address | None:
    try:
        return parse_address(text)
    except ValueError:
        return None


def _no_answer(error: Exception) -> str:
    if isinstance(error, TimeoutError) and error.errno is None and str(error):
        return f"it does not answer: {error}"
    return f"it does not answer: {explain(error) if isinstance(error, OSError | IdentityError) else repr(error)}"


def _tune(connection: Any) -> None:
    """Notice a host that vanished while a poll waits for its answer."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
