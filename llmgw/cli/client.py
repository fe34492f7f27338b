"""The admin API's client. ``requests`` is loaded here and nowhere else in the command.

Exit status: 1 the API refused, 2 wrong usage, 3 the API does not answer, or what
answers is not the API.
"""

import json
import os
import pwd
import re
from typing import Any
from urllib.parse import quote, urlsplit

import click

from llmgw import __version__
from llmgw.cli.output import clean

DEFAULT_API = "http://127.0.0.1:7000"
MAX_ANSWER = 256 * 1024 * 1024
CONNECT, READ = 5.0, 60.0


class Refused(click.ClickException):
    """The API said no."""

    exit_code = 1


class Unreachable(click.ClickException):
    """There is no API there."""

    exit_code = 3


def actor() -> str:
    """Who runs the command, for the record: also behind sudo."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    by = os.environ.get("SUDO_USER")
    text = f"cli:{user} (sudo by {by})" if by and by != user else f"cli:{user}"
    return re.sub(r"[^A-Za-z0-9@._+:()\- ]", "?", text)[:100]


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


class Client:
    """Asks the API at ``url``. Every failure is a ``ClickException`` in plain words."""

    def __init__(self, url: str) -> None:
        text = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid:
            raise click.UsageError(f"--api {url!r} is not an address such as {DEFAULT_API}")
        self.url = text.rstrip("/")

    def get(self, path: str, expect: str, **query: Any) -> dict[str, Any]:
        """Read a resource, whose answer has the field ``expect``."""
        return self._ask("GET", path, expect, query=query)

    def send(self, method: str, path: str, expect: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Change a resource."""
        return self._ask(method, path, expect, body=body or {})

    def _ask(
        self,
        method: str,
        path: str,
        expect: str,
        body: dict[str, Any] | None = None,
        query: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        import requests  # noqa: PLC0415 - not before a part had the chance to start
        from urllib3.exceptions import HTTPError  # noqa: PLC0415
        from urllib3.exceptions import TimeoutError as Late  # noqa: PLC0415

        session = requests.Session()
        session.trust_env = False  # neither proxies nor .netrc belong between us and the API
        headers = {"Accept": "application/json", "User-Agent": f"llmgw/{__version__}", "Llmgw-Actor": actor()}
        try:
            with session.request(
                method,
                f"{self.url}/api/v1/{path}",
                json=body,
                params={name: value for name, value in (query or {}).items() if value is not None},
                headers=headers,
                timeout=(CONNECT, READ),
                allow_redirects=False,
                stream=True,
            ) as answer:
                content = answer.raw.read(MAX_ANSWER + 1, decode_content=True)
                status, kind = answer.status_code, answer.headers.get("Content-Type", "")
        except (requests.exceptions.Timeout, Late) as error:
            raise Unreachable(f"the API at {self.url} does not answer in time") from error
        except (requests.exceptions.RequestException, HTTPError, OSError, ValueError) as error:
            raise Unreachable(
                f"the API at {self.url} does not answer ({_reason(error)}): is the control plane running there? "
                "Start it with: llmgw server. Another address is given by --api or LLMGW_API"
            ) from error
        if len(content) > MAX_ANSWER:
            raise Unreachable(f"the answer of {self.url} is larger than {MAX_ANSWER} bytes")
        return self._read(content, status, kind, expect)

    def _read(self, content: bytes, status: int, kind: str, expect: str) -> dict[str, Any]:
        try:
            parsed = json.loads(content, parse_constant=_no_number)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            what = (
                "a web page"
                if "html" in kind or content.lstrip()[:1] == b"<"
                else f"something else ({clean(kind or 'no type')})"
            )
            raise Unreachable(
                f"{self.url} answered with {what} (status {status}), not as the admin API: check --api or LLMGW_API"
            )
        if status >= 400 and isinstance(parsed.get("code"), str) and isinstance(parsed.get("message"), str):
            raise Refused(_refusal(parsed))
        if status >= 300 or expect not in parsed:
            raise Unreachable(
                f"{self.url} answered (status {status}), but not as a control plane of this version does: "
                "check --api or LLMGW_API"
            )
        return parsed


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _refusal(body: dict[str, Any]) -> str:
    lines = [clean(body["message"])]
    faults = body.get("faults")
    for fault in faults if isinstance(faults, list) else ():
        if isinstance(fault, dict):
            path, message = fault.get("path"), fault.get("message")
            lines.append(clean(f"  {path}: {message}" if path else f"  {message}"))
    lines.append(clean(f"({body['code']}, request {body.get('request_id', '-')})"))
    return "\n".join(lines)


def _reason(error: Exception) -> str:
    match = re.search(r"\[Errno \d+\] ([A-Za-z ]+)", str(error))
    if match:
        return match[1].strip().lower()
    return (
        "the connection broke" if "reset" in str(error).lower() or "aborted" in str(error).lower() else "no connection"
    )
