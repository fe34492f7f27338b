"""What the router reads of a request's body, and the one thing it changes. PURE (RTR-01).

The body goes to the engine byte for byte; only the value of the top-level ``model``
is replaced where the engine knows the model by another name.
"""

import re

import msgspec

MAX_MODELS = 4
"""Most times a body may give ``model``."""

MAX_PLACES = 10000
"""Most places anywhere in a body that are looked at for that."""

_MODEL = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"[ \t\n\r]*:[ \t\n\r]*'
    rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")',
    re.DOTALL,
)
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
    readers differ in which one they take. Raises ``BodyFault`` if it is given too often.
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
    """Start and end of each value of a top-level ``model`` (quotes included).

    All work is done by the pattern and the decoder: token by token, a large body would
    keep the event loop for seconds. Raises ``BodyFault`` if there are too many.
    """
    places = list(_MODEL.finditer(body))
    if len(places) > 1:
        places = _top_level(body, places)
    return [place.span(1) for place in places]


def _top_level(body: bytes, places: list[re.Match[bytes]]) -> list[re.Match[bytes]]:
    """Those of ``places`` that are not nested.

    The decoder knows: give each place a value of its own and see which one it takes, which
    is the last one at top level; take that one's name away, and look for the one before.
    """
    if len(places) > MAX_PLACES:
        raise BodyFault("invalid_request", "The body says `model` in too many places.")
    found: list[re.Match[bytes]] = []
    while places:
        parts: list[bytes] = []
        done = 0
        for number, place in enumerate(places):
            parts += (body[done : place.start(1)], b'"%d"' % number)
            done = place.end(1)
        parts.append(body[done:])
        taken = _decode(b"".join(parts)).model
        if not taken:
            break
        if len(found) == MAX_MODELS:
            raise BodyFault("invalid_request", f"The body gives `model` more than {MAX_MODELS} times.", "model")
        place = places[int(taken)]
        found.append(place)
        body = body[: place.start()] + b'"":' + body[place.start(1) :]
        places = places[: int(taken)]
    return found[::-1]
