"""Requests of a router to its control plane (see ``llmgw.wire.routing``)."""

import http.client
from typing import NamedTuple

import gevent

from llmgw.runtime.settings import Address
from llmgw.wire.routing import (
    MAX_TABLE,
    REPORT_PATH,
    ROUTER_ID_HEADER,
    TABLE_PATH,
    USAGE_PATH,
    Report,
    RouteTable,
    decode_table,
    encode,
)

MAX_ANSWER = 4096


class ControlError(Exception):
    """The control plane did not do what was asked; the message says why and what helps."""


class BatchRefused(ControlError):
    """The control plane will never take this batch: sending it again helps nobody."""


class Control(NamedTuple):
    """Where the control plane is and how this router proves itself.

    Uses ``http.client``, which is cooperative in a patched process. ``token`` is a secret.
    """

    address: Address
    router_id: str
    token: str

    def __repr__(self) -> str:
        return f"Control({self.address}, {self.router_id!r})"

    def table(self, generation: str, wait: float) -> RouteTable | None:
        """A table of another generation, or ``None`` if there was none within ``wait``
        seconds. Raises ``ControlError``."""
        path = f"{TABLE_PATH}?generation={generation}&wait={wait:g}"
        status, body = self._send("GET", path, b"", wait + 10.0, MAX_TABLE)
        if status == 304:
            return None
        if status != 200:
            raise ControlError(self._why(status))
        try:
            return decode_table(body)
        except ValueError as error:
            raise ControlError(f"the route table cannot be read: {error}") from error

    def report(self, report: Report) -> None:
        """Tell the control plane what is in flight. Raises ``ControlError``."""
        status, _ = self._send("POST", REPORT_PATH, encode(report), 5.0, MAX_ANSWER)
        if status != 204:
            raise ControlError(self._why(status))

    def usage(self, batch: bytes) -> None:
        """Hand over a ``UsageBatch``; returns once it is durable there. Raises ``ControlError``,
        and ``BatchRefused`` if it is the batch that is wrong."""
        status, body = self._send("POST", USAGE_PATH, batch, 5.0, MAX_ANSWER)
        if status in (400, 413, 422):
            raise BatchRefused(f"it answered {status}: {body[:200].decode('utf-8', 'replace')!a}")
        if status != 204:
            raise ControlError(self._why(status))

    def _send(self, method: str, path: str, body: bytes, seconds: float, limit: int) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self.token}", ROUTER_ID_HEADER: self.router_id}
        if body:
            headers["Content-Type"] = "application/json"
        try:
            # The connection's own bound is on each read: one byte at a time would last for ever.
            with gevent.Timeout(seconds, TimeoutError("its answer took too long")):
                connection.request(method, path, body or None, headers)
                answer = connection.getresponse()
                data = answer.read(limit + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ControlError(f"the control plane at {self.address} does not answer: {error!r}") from error
        finally:
            connection.close()
        if len(data) > limit:
            raise ControlError(f"the control plane's answer is larger than {limit} bytes")
        return answer.status, data

    def _why(self, status: int) -> str:
        if status in (401, 403):
            return (
                "the control plane does not accept this router's token: see that its fleet tokens list"
                f" {self.router_id!r} with the token of token_file"
            )
        return f"the control plane answered {status}"
