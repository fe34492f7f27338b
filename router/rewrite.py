"""What the router reads of a request's body, and the one thing it changes. PURE (RTR-01).

The body goes to the engine byte for byte; only the value of the top-level ``model``
is replaced where the engine knows the model by another name.
"""

import re

import msgspec

_MARK = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*")
_encode = msgspec.json.Encoder().encode


class Asked(msgspec.Struct):
    """The fields a request is routed by; the rest is checked to be JSON and left alone.

    ``model`` is the name as the client wrote it.
    """

    model: str = ""
    stream: bool | None = None


class BodyFault(Exception):
    """The body cannot be routed. ``code`` is one of ``errors.ROUTER``."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


_decode = msgspec.json.Decoder(Asked).decode


def read(body: bytes) -> Asked:
    """Model and stream flag of a JSON body. Raises ``BodyFault``."""
    try:
        asked = _decode(body)
    except msgspec.ValidationError as error:
        field = next((name for name in ("model", "stream") if f"$.{name}`" in str(error)), None)
        raise BodyFault("invalid_request", f"The body is not a valid request: {error}", field) from error
    except msgspec.DecodeError as error:
        raise BodyFault("invalid_json", f"The body is not valid JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise BodyFault("invalid_json", "The body is not valid UTF-8.") from error
    except RecursionError as error:
        raise BodyFault("invalid_json", "The body is nested too deeply.") from error
    if not asked.model:
        raise BodyFault("missing_model", "Name a model: the body has no `model`.", "model")
    return asked


def splice(body: bytes, model: str) -> bytes:
    """``body`` with the top-level ``model`` replaced; every other byte stays.

    ``body`` must have passed ``read``. If the key is given twice each is replaced, since
    readers differ in which one they take.
    """
    value = _encode(model)
    parts: list[bytes] = []
    done = 0
    for start, end in model_spans(body):
        parts += (body[done:start], value)
        done = end
    parts.append(body[done:])
    return b"".join(parts)


def model_spans(body: bytes) -> list[tuple[int, int]]:
    """Start and end of each value of a top-level ``model`` (quotes included)."""
    spans: list[tuple[int, int]] = []
    depth = 0
    at = 0
    while (mark := _MARK.search(body, at)) is not None:
        at = mark.end()
        token = mark[0]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        else:
            end = _string_end(body, at)
            if depth == 1 and _is_model(body[at : end - 1]) and (colon := _COLON.match(body, end)):
                start = colon.end()
                end = _string_end(body, start + 1)
                spans.append((start, end))
            at = end
    return spans


def _string_end(body: bytes, start: int) -> int:
    """Index after the quote that ends the string whose content begins at ``start``."""
    at = start
    while True:
        quote = body.index(b'"', at)
        back = quote
        while back > start and body[back - 1] == 0x5C:
            back -= 1
        if (quote - back) % 2 == 0:
            return quote + 1
        at = quote + 1


def _is_model(key: bytes) -> bool:
    if b"\\" not in key:
        return key == b"model"
    return bool(msgspec.json.decode(b'"%b"' % key, type=str) == "model")
