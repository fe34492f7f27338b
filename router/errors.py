"""Failures as clients see them: OpenAI's error shape, from one table (RTR-02)."""

from http import HTTPStatus
from typing import Any

import msgspec

from llmgw.wire.errors import ROUTER, ApiError
from llmgw.wire.routing import RoutedModel

_encode = msgspec.json.Encoder().encode

RETRY_AFTER = {
    "request_timeout": 1,
    "rate_limit_exceeded": 5,
    "queue_full": 5,
    "internal_error": 2,
    "upstream_error": 1,
    "model_loading": 5,
    "model_unplaceable": 30,
    "overloaded": 2,
    "no_route_table": 2,
    "upstream_timeout": 5,
}
"""Seconds told to clients when nothing better is known. Every code that can be retried
has a row: without ``Retry-After`` the SDKs retry at once."""

STATE_CODES = {
    "ready": "model_loading",  # routed, but its last endpoint has just left
    "loading": "model_loading",
    "unplaceable": "model_unplaceable",
    "parked": "model_parked",
    "off": "model_off",
    "stopped": "system_stopped",
}
"""What a request for a model without endpoints is answered, by the model's state."""

_STATE_WORDS = {
    "model_loading": "The model {} is being loaded",
    "model_parked": "The model {} failed to start too often and is parked",
    "model_unplaceable": "The model {} finds no machine that can run it",
    "model_off": "The model {} is switched off",
    "system_stopped": "Serving is stopped, so the model {} is not available",
}

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii")) for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """Status line of an answer; an engine may use a status nobody has named."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d -\r\n" % status


class Refused(Exception):
    """The request is answered with an error of ours.

    ``code`` is one of ``errors.ROUTER``. ``close`` says that the connection cannot be
    used any more, because what follows on it is unknown.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        allow: bytes = b"",
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.error: ApiError = ROUTER[code]
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.allow = allow
        self.close = close

    @property
    def body(self) -> bytes:
        """The JSON body."""
        return _encode(payload(self.error, self.message, self.param))

    @property
    def headers(self) -> bytes:
        """Header fields particular to the error, as lines."""
        error = self.error
        lines = b"content-type: application/json\r\n"
        if error.retry:
            lines += b"retry-after: %d\r\n" % (self.retry_after or RETRY_AFTER[error.code])
        else:
            lines += b"x-should-retry: false\r\n"
        if error.status == HTTPStatus.UNAUTHORIZED:
            lines += b"www-authenticate: Bearer\r\n"
        if self.allow:
            lines += b"allow: " + self.allow + b"\r\n"
        return lines


def unready(model: RoutedModel, more: str = "") -> Refused:
    """What to answer when ``model`` has no endpoint: its state and the reason for it, and
    ``more`` words (a sentence)."""
    code = STATE_CODES[model.state]
    why = f": {model.reason}" if model.reason else ""
    return Refused(
        code,
        f"{_STATE_WORDS[code].format(model.name)}{why}.{more}",
        param="model" if code == "model_off" else None,
        retry_after=model.retry_after,
    )


def payload(error: ApiError, message: str, param: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": error.type, "param": param, "code": error.code}}


def event(code: str, message: str) -> bytes:
    """An error within a stream whose answer has begun (RTR-09). The blank lines ahead end
    an event that was cut; an empty one is ignored by readers."""
    return b"\n\ndata: " + _encode(payload(ROUTER[code], message)) + b"\n\n"
