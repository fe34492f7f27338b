"""A chunked stream passed from an engine to a client by the event loop (RTR-09, RTR-20).

Per arrival: one receive, one look at the chunk framing, one send, all in the hub's
callback. The request's greenlet is woken only by a slow client, the end, or an error.
Chunks pass through as they are.
"""

import re
from collections.abc import Callable
from time import monotonic

from router.chunks import ChunkError, ChunkFollower
from router.http1 import ClientLink
from router.link import READ_SIZE, Expired
from router.upstream import UpstreamError, UpstreamLink

TAIL = 1024
"""Bytes of the end of the stream that are looked at when it ends: the last event with
``usage``, ``[DONE]`` and their framing."""

PIECES = 16
"""Reads after which what is kept for that is cut to ``TAIL``: one by one would cost more."""

_ENDINGS = (b"data: [DONE]", b"data:[DONE]", b"error:")
_FRAMING = re.compile(rb"\r\n[0-9A-Fa-f]+\r\n")


class Relay:
    """One stream on its way.

    ``run`` returns when the engine's framing has ended cleanly and everything but its
    last ``rest`` was sent. Whether the answer is whole is for the caller to judge by
    ``tail``, its last bytes. ``between`` is the bound on the engine's silence, in seconds.
    """

    __slots__ = (
        "_between",
        "_client",
        "_feed",
        "_follower",
        "_latest",
        "_recv",
        "_send",
        "_upstream",
        "fault",
        "rest",
    )

    def __init__(
        self,
        upstream: UpstreamLink,
        client: ClientLink,
        follower: ChunkFollower,
        sent: bytes,
        *,
        between: float,
    ) -> None:
        self._upstream = upstream
        self._client = client
        self._follower = follower
        self._feed: Callable[[bytes], bytes] = follower.feed
        self._recv = upstream.recv
        self._send = client.send
        self._between = between
        self._latest = [sent]
        self.rest = b""
        self.fault = ""

    @property
    def tail(self) -> bytes:
        """The last bytes of the stream."""
        return b"".join(self._latest)

    def run(self) -> None:
        """Pass everything on. Raises ``UpstreamError`` when the engine's side fails,
        ``Expired`` or ``OSError`` when the client's does."""
        upstream = self._upstream
        upstream.divert(self._readable)
        try:
            while True:
                upstream.deadline = monotonic() + self._between
                try:
                    upstream.sleep()
                except Expired as error:
                    raise UpstreamError("the engine was silent for too long", timeout=True) from error
                if self.fault:
                    raise UpstreamError(self.fault)
                if self._follower.ended:
                    return
                upstream.pause()
                self._client.send_answer(self.rest)
                self.rest = b""
                upstream.divert(self._readable)
        finally:
            upstream.undivert()

    def _readable(self) -> None:
        upstream = self._upstream
        try:
            data = self._recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            self._fail("the engine reset the connection")
            return
        if not data:
            self._fail("the engine closed the connection before its answer ended")
            return
        try:
            out = self._feed(data)
        except ChunkError:
            self._fail("the engine's answer is cut wrongly into chunks")
            return
        latest = self._latest
        latest.append(out)
        if len(out) >= TAIL:
            self._latest = [out]
        elif len(latest) > PIECES:
            self._latest = [b"".join(latest)[-TAIL:]]
        if self._follower.ended:
            self.rest = out
            upstream.pause()
            upstream.wake(None)
            return
        try:
            sent = self._send(out)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = 0  # the greenlet meets the same error and deals with it
        if sent != len(out):
            self.rest = out[sent:]
            upstream.pause()
            upstream.wake(None)
            return
        upstream.deadline = monotonic() + self._between

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self._upstream.pause()
        self._upstream.wake(None)


def is_finished(tail: bytes) -> bool:
    """Whether the end of an event stream holds ``[DONE]`` or an error as an engine tells
    it; such words within a text do not count. Chunk framing in between is looked through."""
    text = _FRAMING.sub(b"", tail)
    return any(_begins_line(text, word) for word in _ENDINGS) or b'"error":' in text


def _begins_line(text: bytes, word: bytes) -> bool:
    # By hand: a pattern with alternatives costs more here than the rest of a short stream.
    at = text.rfind(word)
    return at == 0 or (at > 0 and text[at - 1] in b"\r\n")


def close_with(follower: ChunkFollower, event: bytes) -> bytes:
    """What to send so that ``event`` reaches the reader of a stream cut at any byte.

    Fills the chunk that is open. The last chunk is left out on purpose: the end of the
    connection then tells even a reader that ignores events that the answer is not whole.
    """
    left = follower.left
    if left >= len(event):
        return event + b"\n" * (left - len(event))
    closing = b"\n" * left + (b"\r\n" if follower.opened else b"")
    return closing + b"%x\r\n%b\r\n" % (len(event), event)
