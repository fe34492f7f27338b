"""What is recorded of a request, and the tokens an engine says it took. PURE (TEN-06).

Only metadata is kept; of an answer only ``usage`` is read.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from llmgw.wire.routing import RequestRecord

CLIENT_LEFT = 499
"""Status recorded where the client went before its answer was whole."""

MAX_NAME = 512
MAX_RETRIED = 16
_PLAIN_LINE = 600
"""Bytes; a shorter line holds no name that is too long."""


class Done(msgspec.Struct, gc=False, omit_defaults=True):
    """One request that named a model, filled in as it goes.

    The fields are those of ``RequestRecord``, except that ``ago`` is when it began, in
    monotonic seconds, until it is written down.
    """

    ago: float
    id: str
    key: str
    model: str
    status: int
    asked: str = ""
    endpoint: str = ""
    code: str = ""
    stream: bool = False
    first_byte: float | None = None
    duration: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    retried: tuple[str, ...] = ()


# ----------------------------------------------------------- what engines say

_Tokens = Annotated[int, Meta(ge=0, le=2**40)]


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Whole(msgspec.Struct, gc=False):
    usage: _Usage | None = None


_decode_whole = msgspec.json.Decoder(_Whole).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode

_OBJECT = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\})")
_FRAMING = re.compile(rb"\r\n[0-9A-Fa-f]+\r\n")
_WORD = b'"usage"'

TAIL = 2048
"""Bytes of an answer's end in which its usage is looked for."""


def count(done: Done, body: bytes) -> None:
    """Note the tokens that a whole JSON answer names."""
    try:
        found = _decode_whole(body).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # passed on as it is; what it says of tokens is nothing we understand
    if found is not None:
        _note(done, found)


def count_tail(done: Done, tail: bytes, chunked: bool) -> None:
    """Note the tokens named last in the end of an answer, which may be cut at any byte and
    hold the framing of ``chunked`` transfer."""
    tail = tail[-TAIL:]
    if not _noted(done, tail) and chunked:
        _noted(done, _FRAMING.sub(b"", tail))  # framing may lie within it


def _noted(done: Done, text: bytes) -> bool:
    at = text.rfind(_WORD)
    while at >= 0:
        found = _OBJECT.match(text, at + len(_WORD))
        if found is not None:
            try:
                _note(done, _decode_usage(found[1]))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return False
            return True
        at = text.rfind(_WORD, 0, at)  # `"usage": null` of the events before
    return False


def _note(done: Done, found: _Usage) -> None:
    done.prompt_tokens = found.prompt_tokens
    done.completion_tokens = found.completion_tokens
    details = found.prompt_tokens_details
    if details is not None:
        done.cached_tokens = details.cached_tokens


# --------------------------------------------------------- lines and batches

_encoder = msgspec.json.Encoder()
_decode_record = msgspec.json.Decoder(RequestRecord).decode
_AGO = b'{"ago":'
_BASE = re.compile(rb'\{"base":([0-9]{1,12}\.[0-9]{3})\}')


def base_line(wall: float) -> bytes:
    """The line ahead of records whose times count from ``wall`` (Unix time)."""
    return b'{"base":%.3f}\n' % wall


def lines_of(dones: Sequence[Done], now: float) -> bytes:
    """A line of JSON for each record; ``now`` is monotonic seconds."""
    for done in dones:
        done.ago = now - done.ago
    lines = _encoder.encode_lines(dones)
    if len(max(lines.split(b"\n"), key=len)) < _PLAIN_LINE and all(len(done.retried) <= MAX_RETRIED for done in dones):
        return lines
    for done in dones:
        for name in ("id", "key", "model", "asked", "endpoint", "code"):
            setattr(done, name, getattr(done, name)[:MAX_NAME])
        done.retried = tuple(why[:MAX_NAME] for why in done.retried[:MAX_RETRIED])
    return _encoder.encode_lines(dones)


def joined(lines: bytes) -> bytes:
    """Lines that all count from the time of their batch as elements of a JSON array."""
    return lines.rstrip(b"\n").replace(b"\n", b",")


def read_back(data: bytes) -> tuple[list[tuple[bytes, float]], float]:
    """Lines of records in ``data``, each with the time that it counts from, and the time of
    the batch that they are: the last of these. They are not looked at yet."""
    found = []
    base = 0.0
    for line in data.split(b"\n"):
        told = _BASE.fullmatch(line)
        if told:
            base = float(told[1])
        elif line:
            found.append((line, base))
    return found, base


def shifted(lines: Sequence[tuple[bytes, float]], made: float) -> list[bytes]:
    """Those of ``lines`` that are whole, counting from ``made`` (Unix time). A line that a
    crash tore is none."""
    records = []
    for line, base in lines:
        comma = line.find(b",")
        try:
            if not line.startswith(_AGO) or comma < 0 or not base:
                continue
            ago = float(line[len(_AGO) : comma]) + made - base
            record = b'{"ago":%.3f%b' % (min(max(ago, 0.0), 1e9), line[comma:])
            _decode_record(record)
        except (msgspec.MsgspecError, ValueError):
            continue
        records.append(record)
    return records


def batch(boot: str, sequence: int, waited: float, records: bytes) -> bytes:
    """The JSON of a ``UsageBatch``. ``records`` are the elements of a JSON array."""
    head: dict[str, Any] = {"boot": boot, "sequence": sequence, "waited": round(min(max(waited, 0.0), 1e9), 3)}
    return _encoder.encode(head)[:-1] + b',"records":[' + records + b"]}"
