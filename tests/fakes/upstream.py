"""A working OpenAI-compatible upstream with scripted faults, on real sockets and threads.

By default it answers like an engine. ``script`` replaces what happens for the next
requests, one action each; an action is a function of the ``Exchange`` it is given::

    upstream.script.append(reset)
    upstream.script.append(lambda exchange: exchange.send(b"HTTP/1.1 500 ..."))
"""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

REPLY = "Hello there, this is a short reply."
WORDS = ("Hello", " there", ",", " this", " is", " a", " short", " reply", ".")
HEAD_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"X-Internal: secret\r\nAccess-Control-Allow-Origin: \r\n\r\n"
)
LAST = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


class Received:
    """One request as it came. Header names are in lower case; ``raw_head`` is untouched."""

    def __init__(self, raw_head: bytes, body: bytes) -> None:
        self.raw_head = raw_head
        self.body = body
        lines = raw_head.split(b"\r\n")
        self.method, self.path, _ = lines[0].split(b" ", 2)
        pairs = [line.partition(b":") for line in lines[1:] if line]
        self.header_list = [(name.lower(), value.strip()) for name, _, value in pairs]
        self.headers = dict(self.header_list)

    @property
    def json(self) -> dict:
        return json.loads(self.body)


class Exchange:
    """A request and the connection to answer it on."""

    def __init__(self, upstream: "FakeUpstream", connection: socket.socket, request: Received, nth: int) -> None:
        self.upstream = upstream
        self.connection = connection
        self.request = request
        self.nth_on_connection = nth
        self.open = True

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def close(self) -> None:
        """End the connection in good order."""
        self.open = False
        self.connection.shutdown(socket.SHUT_RDWR)

    def close_tls(self) -> None:
        """End TLS in good order, and then the connection."""
        self.open = False
        assert isinstance(self.connection, ssl.SSLSocket)
        self.connection.unwrap().close()

    def reset(self) -> None:
        """End the connection by RST."""
        self.open = False
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def wait_for_end(self, seconds: float = 10.0) -> bool:
        """Whether the peer ends the connection within ``seconds``."""
        self.connection.settimeout(seconds)
        try:
            ended = self.connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            ended = True
        finally:
            self.open = False
        self.upstream.ended_at.append(time.monotonic())
        return ended


Action = Callable[[Exchange], None]


class FakeUpstream:
    """Listens on a port of its own until ``stop``, for TLS if it is given a ``context``.

    ``received`` are the requests so far, ``connections`` counts accepted connections,
    ``ended_at`` the monotonic times at which a scripted wait saw the peer leave.
    """

    def __init__(self, name: str = "m", key: str = "", context: ssl.SSLContext | None = None) -> None:
        self.name = name
        self.key = key
        self.script: deque[Action] = deque()
        self.received: list[Received] = []
        self.ended_at: list[float] = []
        self.connections = 0
        self._context = context
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        """Refuse new connections and end the open ones."""
        # shutdown, since close alone leaves a thread blocked in accept holding the port.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        finally:
            self._listener.close()
        with self._lock:
            for connection in self._open:
                connection.close()

    def hang_up(self) -> None:
        """End the open connections in good order, and wait until the peers have ended theirs."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):  # one that is on its way out already
                    connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 5
        while self._open:
            assert time.monotonic() < deadline, "a peer holds on to an ended connection"
            time.sleep(0.001)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        nth = 0
        buffer = b""
        plain = connection
        try:
            if self._context is not None:
                plain.settimeout(10)
                connection = self._context.wrap_socket(plain, server_side=True)
                connection.settimeout(None)
                with self._lock:
                    self._open.discard(plain)
                    self._open.add(connection)
            while True:
                while b"\r\n\r\n" not in buffer:
                    data = connection.recv(65536)
                    if not data:
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                length = int(dict(Received(head, b"").header_list).get(b"content-length", b"0"))
                while len(buffer) < length:
                    buffer += connection.recv(65536)
                request, buffer = Received(head, buffer[:length]), buffer[length:]
                with self._lock:
                    self.received.append(request)
                    action = self.script.popleft() if self.script else answer
                exchange = Exchange(self, connection, request, nth)
                nth += 1
                action(exchange)
                if not exchange.open:
                    return
        except OSError:
            return  # the peer left; what a test needs to know of that is in ``ended_at``
        finally:
            with self._lock:
                self._open -= {plain, connection}
            connection.close()
            plain.close()


# ------------------------------------------------------------------- actions


def answer(exchange: Exchange) -> None:
    """What an engine does."""
    upstream, request = exchange.upstream, exchange.request
    if upstream.key and request.headers.get(b"authorization") != b"Bearer " + upstream.key.encode():
        exchange.send(json_answer(401, {"error": "Unauthorized"}))
        return
    asked = request.json
    if asked["model"] != upstream.name:
        exchange.send(json_answer(404, {"error": {"message": f"The model `{asked['model']}` does not exist."}}))
        return
    if asked.get("stream"):
        usage = (asked.get("stream_options") or {}).get("include_usage", False)
        exchange.send(HEAD_STREAM)
        for event in events(upstream.name, usage):
            exchange.send(chunked(event))
        exchange.send(chunked(DONE) + LAST)
    elif request.path.endswith(b"/completions") and not request.path.endswith(b"/chat/completions"):
        choice = {"index": 0, "text": REPLY, "finish_reason": "stop", "logprobs": None}
        exchange.send(
            json_answer(200, {**_base(upstream.name, "text_completion"), "choices": [choice], "usage": USAGE})
        )
    else:
        message = {"role": "assistant", "content": REPLY}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        exchange.send(
            json_answer(200, {**_base(upstream.name, "chat.completion"), "choices": [choice], "usage": USAGE})
        )


USAGE = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}


def _base(name: str, kind: str) -> dict:
    return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": name}


def events(name: str = "m", usage: bool = False) -> Iterable[bytes]:
    """The events of a stream, but for the last."""
    base = _base(name, "chat.completion.chunk")
    for word in WORDS:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield event({**base, "choices": [choice]})
    yield event({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        yield event({**base, "choices": [], "usage": USAGE})


def event(data: dict) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_answer(status: int, data: object, extra: bytes = b"") -> bytes:
    body = json.dumps(data).encode()
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(body))
    return head + extra + b"\r\n" + body


def reset(exchange: Exchange) -> None:
    """RST instead of an answer."""
    exchange.reset()


def close(exchange: Exchange) -> None:
    """FIN instead of an answer."""
    exchange.close()


def silent(exchange: Exchange) -> None:
    """Prefill without end: nothing is sent until the peer leaves."""
    exchange.wait_for_end()


def refuse(status: int, body: object = None, extra: bytes = b"") -> Action:
    """An error answer."""
    fault = {"error": {"message": "fake", "type": "fake", "code": status}} if body is None else body
    return lambda exchange: exchange.send(json_answer(status, fault, extra))


def raw(*pieces: bytes, close_after: bool = False, pause: float = 0.0) -> Action:
    """Bytes as they are, a little apart, so that they come in reads of their own."""

    def act(exchange: Exchange) -> None:
        for nth, piece in enumerate(pieces):
            if nth:
                time.sleep(pause)
            exchange.send(piece)
        if close_after:
            exchange.close()

    return act


def cut(sent: bytes, how: Action = reset) -> Action:
    """A stream that ends after ``sent``. The pause lets the bytes arrive before a reset,
    which would throw them away."""

    def act(exchange: Exchange) -> None:
        exchange.send(HEAD_STREAM + sent)
        time.sleep(0.03)
        how(exchange)

    return act


def hold(first: bytes, release: threading.Event, rest: bytes) -> Action:
    """A stream that waits in its middle until released."""

    def act(exchange: Exchange) -> None:
        exchange.send(HEAD_STREAM + first)
        release.wait(20)
        exchange.send(rest)

    return act
