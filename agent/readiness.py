"""One small HTTP GET, to ask an engine whether it is ready (AGT-08)."""

import json
import re
import socket

from agent.engines.base import ReadinessProbe

TIMEOUT = 3.0
MAX_ANSWER = 64 * 1024


def ask(probe: ReadinessProbe, timeout: float = TIMEOUT) -> tuple[bool, str]:
    """Whether the engine answers 200, and otherwise what it said, in words. Never
    raises for anything a network or an engine does. Run it in a greenlet."""
    try:
        with socket.create_connection((probe.host, probe.port), timeout=timeout) as connection:
            connection.sendall(_request(probe))
            answer = b""
            while not _complete(answer) and (data := connection.recv(MAX_ANSWER)):
                answer += data
    except ConnectionRefusedError:
        return False, "not listening yet"
    except TimeoutError:
        return False, f"no answer within {timeout:g} s"
    except OSError as error:
        return False, f"no answer: {error.strerror or error}"
    return read_answer(answer)


def _request(probe: ReadinessProbe) -> bytes:
    host = f"[{probe.host}]" if ":" in probe.host else probe.host
    lines = [f"GET {probe.path} HTTP/1.1", f"Host: {host}:{probe.port}", "Connection: close", "Accept: */*"]
    lines += [f"{name}: {value}" for name, value in probe.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _complete(answer: bytes) -> bool:
    """Whether enough is there to judge: not every engine closes when asked to."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length:\s*(\d{1,9})", head, re.IGNORECASE)
    return len(answer) >= MAX_ANSWER or bool(end and length and len(body) >= int(length[1]))


def read_answer(answer: bytes) -> tuple[bool, str]:
    """Judge the bytes of an HTTP answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    version, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        return False, "the port does not speak HTTP"
    status = int(rest[:3])
    if status == 200:
        return True, ""
    return False, f"HTTP {status}{_message(body)}"


def _message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f": {str(text)[:200]}"
