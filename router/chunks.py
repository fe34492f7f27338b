"""HTTP/1.1 chunked framing (RFC 9112, section 7.1), followed as bytes arrive. PURE.

Looking for ``0\\r\\n\\r\\n`` at the end of a read is wrong: ``data: 10\\r\\n\\r\\n`` matches,
and a pooled connection would hand leftovers to its next user.
"""

import re

MAX_LINE = 1024
"""Longest size line in bytes, extensions included."""

MAX_TRAILERS = 8192
"""Most bytes of trailer fields."""

_LINE = re.compile(rb"(?:\r\n)?([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_BEGUN = re.compile(rb"(?:[0-9A-Fa-f]{1,15}(?:[ \t]*|[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)\r?)?")
_TRAILERS = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)+")
_KNOWN_LIMIT = 4096

# Size lines seen lately, with their leading CRLF, and the sizes they stand for: a
# look-up costs a fifth of the parse. Cleared when full.
_known: dict[bytes, int] = {}


class ChunkError(Exception):
    """The bytes are not chunked framing."""


class ChunkFollower:
    """Where the chunks of one message begin and end.

    ``feed`` takes what arrived and returns what may be passed on as it is: never a
    part of a delimiter, so that between two feeds the receiver is always inside chunk
    data (``left`` bytes of it to come) or exactly at its end. ``ended`` is true once
    the last chunk and the trailers were seen: they are the last ``closing`` bytes of what
    may be passed on. ``excess`` is what came after them and belongs to nobody.
    """

    __slots__ = ("_held", "_lead", "closing", "ended", "excess", "left")

    def __init__(self) -> None:
        self.left = 0
        self.ended = False
        self.closing = 0
        self.excess = b""
        self._held = b""
        self._lead = 0  # 2 once a chunk's data went before: its CRLF leads the next size line

    @property
    def opened(self) -> bool:
        """Whether the receiver has a chunk that its CRLF has not closed yet."""
        return self._lead == 2

    def feed(self, data: bytes, payload: list[bytes] | None = None) -> bytes:
        """What may be passed on of all that was fed. Chunk data is appended to
        ``payload`` if one is given. Raises ``ChunkError``. Not to be called once ``ended``."""
        if self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        at = self.left
        lead = self._lead
        if payload is not None and at:
            payload.append(data[:at])
        while at < size:
            end = data.find(b"\r\n", at + lead, at + lead + MAX_LINE)
            if end < 0:
                return self._hold(data, at, lead)
            line = data[at:end]
            length = _known.get(line)
            if length is None or not lead:
                length = _parse(line, lead)
            if length == 0:
                return self._finish(data, at, lead, end + 2)
            at = end + 2 + length
            lead = 2
            if payload is not None:
                payload.append(data[end + 2 : at])
        self.left = at - size
        self._lead = lead
        return data

    def _hold(self, data: bytes, at: int, lead: int) -> bytes:
        start = data[at : at + lead]
        begun = _BEGUN.fullmatch(data, at + lead) or len(data) < at + lead
        if len(data) - at > lead + MAX_LINE or start != b"\r\n"[: len(start)] or not begun:
            raise ChunkError("no chunk size where one must be")
        self._held = data[at:]
        self._lead = lead
        self.left = 0
        return data[:at]

    def _finish(self, data: bytes, at: int, lead: int, trailers: int) -> bytes:
        if data.startswith(b"\r\n", trailers):
            end = trailers + 2
        else:
            end = data.find(b"\r\n\r\n", trailers) + 4
            if len(data) - trailers > MAX_TRAILERS:
                raise ChunkError("too many trailer fields")
            if end < 4:
                self._held = data[at:]
                self._lead = lead
                self.left = 0
                return data[:at]
            if not _TRAILERS.fullmatch(data, trailers, end - 2):
                raise ChunkError("a trailer field is malformed")
        self.ended = True
        self.closing = end - at
        self.left = 0
        self._lead = lead
        self.excess = data[end:]
        return data[:end] if self.excess else data


def _parse(line: bytes, lead: int) -> int:
    match = _LINE.fullmatch(line)
    if match is None or line.startswith(b"\r\n") != bool(lead):
        raise ChunkError("a chunk size is malformed")
    length = int(match[1], 16)
    if lead and len(line) < 12:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        _known[line] = length
    return length


def chunk(data: bytes) -> bytes:
    """``data`` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
