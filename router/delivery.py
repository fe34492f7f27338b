"""Bringing an engine's answer to the client (RTR-08, RTR-09).

While nothing of it has reached the client an engine's failure is raised, and the request
may be tried elsewhere; from the first byte on it is told within the answer.
"""

from time import monotonic
from typing import NamedTuple

from llmgw.runtime.logs import Logger
from router.chunks import LAST_CHUNK, ChunkError, ChunkFollower, chunk
from router.errors import Refused, event, status_line
from router.http1 import ClientLink, Request
from router.relay import TAIL, Relay, close_with, is_finished
from router.upstream import Answer, Body, UpstreamError, UpstreamLink, receive
from router.usage import Done, count, count_tail

log = Logger("router.delivery")

_CUT = "the engine ended its stream before the answer was whole"
_EMPTY = "the engine ended its stream without an answer"


class Times(NamedTuple):
    """Bounds on engines, in seconds, and on what is held of an answer that is not a stream,
    in bytes."""

    connect: float
    first_byte: float
    answer: float
    between: float
    buffered: int


class Outcome(NamedTuple):
    """How an answer went: whether the engine's connection can be reused, whether the
    client's goes on, whether the engine failed in the middle."""

    reusable: bool
    go_on: bool
    failed: bool = False


class Delivery:
    """One answer. ``rest`` is what arrived of its body together with its head, ``until``
    the time (monotonic) for the first byte, ``extra`` the header lines to add. The tokens
    that the engine counted go into ``done``.

    ``deliver`` raises ``UpstreamError`` if the engine fails before the client has seen a
    byte; ``Expired``, ``OSError``, ``ClientGone`` if the client does.
    """

    __slots__ = ("_answer", "_client", "_done", "_extra", "_link", "_request", "_rest", "_times", "_until")

    def __init__(
        self,
        client: ClientLink,
        request: Request,
        link: UpstreamLink,
        answer: Answer,
        rest: bytes,
        *,
        done: Done,
        until: float,
        times: Times,
        extra: bytes,
    ) -> None:
        self._client = client
        self._request = request
        self._link = link
        self._answer = answer
        self._rest = rest
        self._until = until
        self._times = times
        self._extra = extra
        self._done = done

    def deliver(self) -> Outcome:
        """Send the answer to the client."""
        answer = self._answer
        if not answer.content_type.startswith(b"text/event-stream"):
            return self._whole()
        if answer.chunked and not self._request.old:
            return self._stream_chunked()
        return self._stream_plain()

    # ------------------------------------------------------------ whole answers

    def _whole(self) -> Outcome:
        answer = self._answer
        request = self._request
        if answer.length is not None and len(self._rest) == answer.length:
            content, reusable = self._rest, answer.keep
        else:
            body = Body(self._link, answer, self._rest)
            parts: list[bytes] = []
            held = 0
            while not body.ended and held <= self._times.buffered:
                part = body.read(monotonic() + self._times.between if held else self._until)
                parts.append(part)
                held += len(part)
            content = b"".join(parts)
            if not body.ended:
                return self._pass_whole(body, content)
            reusable = body.clean
        if answer.status < 300:
            count(self._done, content)
        headers = answer.headers
        if not content and answer.status < 400:
            raise UpstreamError("the engine's answer is empty")
        if not content:
            # An SDK retries at once when it finds neither body nor Retry-After.
            code = "rate_limit_exceeded" if answer.status == 429 else "upstream_error"
            said = f"The engine answered {answer.status} without saying why."
            self._done.code = code
            refused = Refused(code, said, retry_after=answer.retry_after)
            headers, content = refused.headers, refused.body
        self._client.respond(request, answer.status, headers + self._extra, content, request.keep)
        return Outcome(reusable, request.keep)

    def _pass_whole(self, body: Body, first: bytes) -> Outcome:
        """An answer too large to hold: committed, then passed on piece by piece."""
        try:
            count_tail(self._done, self._pass_pieces(body, first), False)
        except UpstreamError as error:
            # All that can be said now is said by the missing end.
            log.warning("answer cut", why=error, request=self._request.id.decode())
            self._done.code = "upstream_timeout" if error.timeout else "upstream_error"
            return Outcome(False, False, failed=True)
        return Outcome(body.clean, self._request.keep)

    def _pass_pieces(self, body: Body, piece: bytes) -> bytes:
        """Head and body in the client's framing. Returns the body's last bytes."""
        head, chunked = self._head()
        tail = piece[-TAIL:]
        self._client.send_answer(head + (chunk(piece) if chunked else piece))
        while piece := body.read(monotonic() + self._times.between):
            tail = (tail + piece)[-TAIL:]
            self._client.send_answer(chunk(piece) if chunked else piece)
        if chunked and is_whole(self._answer, tail):
            self._client.send_answer(LAST_CHUNK)
        return tail

    # ------------------------------------------------------------------ streams

    def _stream_chunked(self) -> Outcome:
        answer = self._answer
        follower = ChunkFollower()
        payload: list[bytes] = []
        try:
            out = follower.feed(self._rest, payload)
            while not any(payload) and not follower.ended:
                out += follower.feed(receive(self._link, self._until), payload)
        except ChunkError as error:
            raise UpstreamError("the engine's answer is cut wrongly into chunks") from error
        if not any(payload):
            raise UpstreamError(_EMPTY)
        head, _ = self._head()
        relay = Relay(self._link, self._client, follower, out, between=self._times.between)
        try:
            if follower.ended:
                relay.rest = out
            else:
                self._client.send_answer(head + out)
                head = b""
                relay.run()
            if is_whole(answer, relay.tail):
                self._client.send_answer(head + relay.rest)
                return Outcome(answer.keep and not follower.excess, self._request.keep)
            head += relay.rest[: len(relay.rest) - follower.closing]
            raise UpstreamError(_CUT)
        except UpstreamError as error:
            self._client.send_answer(head + close_with(follower, self._event(error)))
        finally:
            count_tail(self._done, relay.tail, True)
        return Outcome(False, False, failed=True)

    def _stream_plain(self) -> Outcome:
        """A stream whose framing must change on the way: slower, and rare."""
        answer = self._answer
        body = Body(self._link, answer, self._rest)
        piece = body.read(self._until)
        if not piece:
            raise UpstreamError(_EMPTY)
        try:
            tail = self._pass_pieces(body, piece)
            count_tail(self._done, tail, False)
            if not is_whole(answer, tail):
                raise UpstreamError(_CUT)
        except UpstreamError as error:
            told = self._event(error)
            if answer.length is None:
                self._client.send_answer(told if self._request.old else chunk(told))
            return Outcome(False, False, failed=True)
        return Outcome(body.clean, self._request.keep)

    def _event(self, error: UpstreamError) -> bytes:
        log.warning("stream cut", why=error, request=self._request.id.decode())
        text = str(error)
        self._done.code = code = "upstream_timeout" if error.timeout else "upstream_error"
        return event(code, f"{text[:1].upper()}{text[1:]}.")

    # ------------------------------------------------------------------ framing

    def _head(self) -> tuple[bytes, bool]:
        """Head of an answer that is passed on as it comes, and whether it is chunked."""
        answer = self._answer
        request = self._request
        chunked = answer.length is None and not request.old
        if answer.length is not None:
            framing = b"content-length: %d\r\n" % answer.length
        else:
            framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        end = b"\r\n" if request.keep else b"connection: close\r\n\r\n"
        told = b"x-request-id: %b\r\n" % request.id
        return status_line(answer.status) + answer.headers + self._extra + told + framing + end, chunked


def is_whole(answer: Answer, tail: bytes) -> bool:
    """Whether an answer that ended in good order may be taken for whole.

    An engine that is being stopped may end its stream cleanly, but short of ``[DONE]``.
    """
    if answer.status != 200 or not answer.content_type.startswith(b"text/event-stream"):
        return True
    return is_finished(tail)
