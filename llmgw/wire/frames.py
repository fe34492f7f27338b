"""Frame codec: a 4-byte big-endian length, then one msgpack-encoded message.

Sans-IO. A frame that cannot be read ends the session with a code of
``errors.SESSION``; a message of an unknown kind is returned as ``Unknown`` so that a
newer peer may send what this build does not know.
"""

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from llmgw.wire.messages import Down, Message, Unknown, Up

MAX_FRAME = 8 * 1024 * 1024
"""Largest frame content in bytes. A registration of 256 devices and 256 shards with
their output tails stays below a tenth of it."""

MAX_KIND = 64
"""Characters of an unknown message's kind that are kept: it ends in logs."""

MAX_WORDS = 200
"""The same of why a frame cannot be read, which may repeat what it holds."""

_LENGTH = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


class FrameError(Exception):
    """A frame that cannot be read. ``code`` is one of ``errors.SESSION``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def encode(message: Message, max_frame: int = MAX_FRAME) -> bytes:
    """One frame holding ``message``. Raises ``FrameError`` if it cannot be sent: it is too
    large, or holds a number or text that no frame can."""
    try:
        body = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError) as error:
        raise FrameError("bad_frame", f"{type(message).__name__} cannot be encoded: {error}") from error
    if len(body) > max_frame:
        raise FrameError("frame_too_large", f"{type(message).__name__} has {len(body)} bytes; the limit is {max_frame}")
    return _LENGTH.pack(len(body)) + body


M = TypeVar("M")

_UNREADABLE = (msgspec.DecodeError, RecursionError)
"""What decoding raises. Deep nesting, even inside a field that would be skipped, is the latter."""


class _Tag(msgspec.Struct):
    type: str


class Decoder(Generic[M]):
    """Turns received bytes into messages of one direction.

    Feed it whatever arrived; it yields each complete message. It holds at most one
    frame's bytes beyond the read, and refuses a length over the limit before
    buffering it.
    """

    def __init__(self, kinds: object, max_frame: int = MAX_FRAME) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kinds)
        self._tag = msgspec.msgpack.Decoder(_Tag)
        self._tags = {kind.__struct_config__.tag for kind in kinds.__args__}  # type: ignore[attr-defined]
        self._max = max_frame
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M | Unknown]:
        """Messages completed by ``data``. Raises ``FrameError`` on a frame that is
        oversized or does not hold a message."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._max:
                raise FrameError("frame_too_large", f"a frame announces {length} bytes; the limit is {self._max}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            yield self._decode(body)

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame: more than 0 at end of stream means truncation."""
        return len(self._buffer)

    def _decode(self, body: bytes) -> M | Unknown:
        try:
            return self._decoder.decode(body)
        except _UNREADABLE as error:
            try:
                kind = self._tag.decode(body).type
            except _UNREADABLE:
                kind = None
            if kind is not None and kind not in self._tags:
                return Unknown(kind[:MAX_KIND])
            words = str(error)[:MAX_WORDS]
            raise FrameError("bad_frame", f"not a message of this protocol: {words}") from error


def up_decoder() -> "Decoder[Up]":
    """Decoder of what agents send."""
    return Decoder(Up)


def down_decoder() -> "Decoder[Down]":
    """Decoder of what the control plane sends."""
    return Decoder(Down)
