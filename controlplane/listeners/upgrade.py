"""Reading the request that opens an agent session (AGT-03). Sans-IO.

Strict: one method, one path, no body, no folded or doubled header lines. What is not
exactly that is answered with a status, a code of ``errors.SESSION`` and words.
"""

import re
from dataclasses import dataclass

from llmgw.identity.names import valid_name
from llmgw.wire.versions import UPGRADE

PATH = "/agent/v1/session"
MAX_HEAD = 8192
MAX_HEADERS = 64
END = b"\r\n\r\n"

ACCEPTED = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n".encode()

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)")
_ONCE = {"host", "llmgw-node", "upgrade", "connection", "content-length"}


class UpgradeError(Exception):
    """The request is refused."""

    def __init__(self, status: str, code: str, message: str, headers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


@dataclass(frozen=True)
class UpgradeRequest:
    """Which node wants a session, as it says."""

    node_id: str


def bad(message: str) -> UpgradeError:
    """A request that cannot be read."""
    return UpgradeError("400 Bad Request", "bad_request", message)


def check_start(data: bytes) -> None:
    """Refuse what cannot become a request, from its first bytes on."""
    begin = b"GET "
    if not data.startswith(begin[: len(data)]):
        raise bad(f"this port takes only GET {PATH} with Upgrade: {UPGRADE}")
    if END not in data and len(data) >= MAX_HEAD:
        raise UpgradeError("431 Request Header Fields Too Large", "bad_request", f"the head exceeds {MAX_HEAD} bytes")


def parse(head: bytes) -> UpgradeRequest:
    """The request in ``head`` (up to and with the blank line). Raises ``UpgradeError``."""
    request_line, *lines = head.removesuffix(END).split(b"\r\n")
    parts = request_line.split(b" ")
    if len(parts) != 3 or parts[0] != b"GET" or parts[2] != b"HTTP/1.1":
        raise bad(f"the request line must be GET {PATH} HTTP/1.1")
    if parts[1] != PATH.encode():
        raise UpgradeError("404 Not Found", "bad_request", f"the only path here is {PATH}")
    headers = _headers(lines)
    if not headers.get("host"):
        raise bad("the header Host is missing")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise bad("the request must not have a body")
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    wanted = headers.get("upgrade", "")
    if "upgrade" not in options or wanted != UPGRADE:
        newer = re.fullmatch(r"llmgw-agent/[2-9]\d*|llmgw-agent/1\d+", wanted)
        raise UpgradeError(
            "426 Upgrade Required",
            "protocol_too_new" if newer else "bad_request",
            f"the headers must be Connection: Upgrade and Upgrade: {UPGRADE}",
            (f"Upgrade: {UPGRADE}",),
        )
    node_id = headers.get("llmgw-node", "")
    if not valid_name(node_id):
        raise bad("the header Llmgw-Node must hold the node's id (letters, digits, dots, dashes, underscores)")
    return UpgradeRequest(node_id)


def forbidden(code: str, message: str) -> UpgradeError:
    """The certificate is good, but not for this."""
    return UpgradeError("403 Forbidden", code, message)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise UpgradeError("431 Request Header Fields Too Large", "bad_request", f"more than {MAX_HEADERS} headers")
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if not match:
            raise bad(f"header line {number} cannot be read")
        name = match[1].decode().lower()
        if name in headers and name in _ONCE:
            raise bad(f"the header {name} is given twice")
        headers[name] = match[2].decode().strip()
    return headers
