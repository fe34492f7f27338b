"""The admin API's client. ``requests`` is loaded here and nowhere else in the command.

Exit status: 1 the API refused, 2 wrong usage, 3 the API does not answer, or what
answers is not the API, 4 it does not know who asks, or does not let them.
"""

import json
import os
import pwd
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from math import ceil
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, urlsplit

import click

from llmgw import __version__
from llmgw.cli import sse
from llmgw.cli.credentials import WAYS, Credential, find
from llmgw.cli.output import clean, waiting_aloud
from llmgw.cli.words import BROKE, no_number, reason, tls

DEFAULT_API = "http://127.0.0.1:7000"
MAX_ANSWER = 256 * 1024 * 1024
CONNECT, READ, WHOLE = 5.0, 60.0, 300.0
"""Seconds to connect, between two pieces of an answer, and for the whole of it."""

PIECE = 64 * 1024
SLOW = 1.0
"""Seconds after which the pages of a long list are counted aloud."""

PAGE = 1000
"""Entries of a page, where a number of entries is asked for."""

MAX_PAGES = 100_000

_API_WAY = re.compile(r": (send a token as|an administrator can change that with) ")
"""Where the API tells programs how to get in; people are told the command."""

_MAKES_SCOPE = "POST /api/v1/scopes"
"""The API's remedy for a scope that is missing; people are told the command."""


class Refused(click.ClickException):
    """The API said no. ``faults`` are path and message of each fault."""

    exit_code = 1

    def __init__(self, message: str, code: str = "", faults: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.faults = faults


class Denied(Refused):
    """The API does not know who asks, or does not let them."""

    exit_code = 4


class Unreachable(click.ClickException):
    """There is no API there."""

    exit_code = 3


class Answer(NamedTuple):
    """An answer's JSON, and its ETag if it has one."""

    body: dict[str, Any]
    tag: str | None = None


class _Reply(NamedTuple):
    status: int
    headers: Any
    content: bytes


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
    """Asks the API at ``url``. Every failure is a ``ClickException`` in plain words.

    ``ca`` is a file of certificates that are trusted instead of the system's. With
    ``within`` all of it may take so many seconds, and nothing is said aloud.
    """

    def __init__(
        self, url: str, token_file: str | None = None, ca: str | None = None, within: float | None = None
    ) -> None:
        text = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(text)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            valid = False
        if not valid or parts.username is not None or parts.query or parts.fragment:
            shown = re.sub(r"//[^/@]*@", "//…@", url)  # what stands there may be a password
            raise click.UsageError(f"--api {shown!r} is not an address such as {DEFAULT_API}")
        if ca is not None and not os.access(ca, os.R_OK):
            raise click.UsageError(f"--ca {ca!r} cannot be read: is it the file of the certificate authority?")
        self.url = text.rstrip("/")
        self._ca = ca
        self._credential: Credential = find(token_file, self.url, quiet=within is not None)
        self._until = None if within is None else time.monotonic() + within
        self._session: Any = None
        self._quiet = within is not None
        self.patience = READ
        """Seconds that an answer may take to begin, and to go on."""

    # ------------------------------------------------------------ asking

    def get(self, path: str, expect: str, **query: Any) -> dict[str, Any]:
        """Read a resource, whose answer has the field ``expect``."""
        return self.read(path, expect, **query).body

    def read(self, path: str, expect: str, **query: Any) -> Answer:
        """The same with its ETag, for a change of just this version."""
        reply = self._ask("GET", path, query=query)
        return Answer(self._parsed(reply, expect), reply.headers.get("ETag"))

    def all(self, path: str, field: str, limit: int | None = None, **query: Any) -> dict[str, Any]:
        """A list, whole: every page of it, or the first ``limit`` entries."""
        whole: dict[str, Any] = {}
        cursor: str | None = None
        seen: set[str] = set()
        began, told = time.monotonic(), False
        try:
            while True:
                wanted = None if limit is None else min(PAGE, limit - len(whole.get(field, ())))
                page = self.get(path, field, cursor=cursor, limit=wanted, **query)
                if not isinstance(page[field], list):
                    raise ValueError(f"{field} is not a list")
                cursor = page.pop("next", None)
                whole |= page | {field: [*whole.get(field, ()), *page[field]]}
                if cursor is None or (limit is not None and len(whole[field]) >= limit):
                    break
                if not isinstance(cursor, str) or cursor in seen or len(seen) >= MAX_PAGES:
                    raise Unreachable(f"{self.url} answered with pages that do not end: check --api or LLMGW_API")
                seen.add(cursor)
                if time.monotonic() - began > SLOW and sys.stderr.isatty() and self._until is None:
                    sys.stderr.write(f"\r{len(whole[field])} {clean(field)} read … ")
                    sys.stderr.flush()
                    told = True
        finally:
            if told:
                sys.stderr.write("\r\x1b[K")
        if limit is not None:
            whole[field] = whole[field][:limit]
        return whole

    def send(
        self,
        method: str,
        path: str,
        expect: str,
        body: Any = None,
        *,
        match: str | None = None,
        query: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Change a resource; with ``match`` (an ETag) only if it is still that version."""
        return self._parsed(
            self._ask(method, path, query=query, body={} if body is None else body, match=match), expect
        )

    def text(self, path: str, kind: str, **query: Any) -> str:
        """A resource in another form than JSON, such as ``text/csv``."""
        reply = self._ask("GET", path, query=query, accept=kind)
        if reply.status >= 300 or not reply.headers.get("Content-Type", "").startswith(kind):
            self._parsed(reply, "")
            raise Unreachable(f"{self.url} did not answer with {kind}: is it of version {__version__}?")
        return reply.content.decode(errors="replace")

    def events(self, path: str, last: str | None = None, **query: Any) -> Iterator[sse.Sent]:
        """Server-sent events until the connection ends. Raises ``Unreachable`` when it breaks."""
        headers = {"Last-Event-ID": last} if last else {}
        try:
            with self._open("GET", path, query=query, accept="text/event-stream", extra=headers) as answer:
                kind = answer.headers.get("Content-Type", "")
                if answer.status_code != 200 or not kind.startswith("text/event-stream"):
                    self._parsed(_Reply(answer.status_code, answer.headers, self._content(answer)), "")
                    raise Unreachable(f"{self.url} sends no events: is it of version {__version__}?")
                yield from sse.read(self._pieces(answer, None))
        except _Broken as error:
            self._away(error.cause)
        except sse.TooLong as error:
            raise Unreachable(f"{self.url} sent {error}") from error

    # ------------------------------------------------------------ the connection

    def _ask(self, method: str, path: str, **options: Any) -> _Reply:
        """One request; a broken connection is tried once more. The Idempotency-Key keeps
        a change that was carried out all the same from being made twice."""
        extra = {} if method == "GET" else {"Idempotency-Key": str(uuid.uuid4())}
        for again in (True, False):
            try:
                with self._open(method, path, extra=extra, **options) as answer:
                    return _Reply(answer.status_code, answer.headers, self._content(answer))
            except _Broken as error:
                if not again:
                    self._away(error.cause)
        raise AssertionError  # pragma: no cover - the loop returns or raises

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: Any = None,
        match: str | None = None,
        accept: str = "application/json",
        extra: dict[str, str] | None = None,
    ) -> Any:
        import requests  # noqa: PLC0415 - not before a part had the chance to start

        if self._session is None:
            self._session = requests.Session()
            self._session.trust_env = False  # neither proxies nor .netrc belong between us and the API
            if self._ca is not None:
                self._session.verify = self._ca
        headers = {"Accept": accept, "User-Agent": f"llmgw/{__version__}", "Llmgw-Actor": actor(), **(extra or {})}
        if self._credential.token:
            headers["Authorization"] = f"Bearer {self._credential.token}"
        if match is not None:
            headers["If-Match"] = match
        try:
            # Only until it answered once: what is redrawn in place must not be written over.
            with nullcontext() if self._quiet else waiting_aloud(f"waiting for {self.url} to answer …"):
                answer = self._session.request(
                    method,
                    f"{self.url}/api/v1/{path}",
                    json=body,
                    params={name: value for name, value in (query or {}).items() if value is not None},
                    headers=headers,
                    timeout=(self._at_most(CONNECT), self._at_most(self.patience)),
                    allow_redirects=False,
                    stream=True,
                )
            self._quiet = True
            return answer
        except (requests.exceptions.RequestException, OSError, ValueError) as error:
            self._failed(error)

    def _at_most(self, seconds: float) -> float:
        """Seconds that the next step may take. Raises ``Unreachable`` if none are left."""
        if self._until is None:
            return seconds
        left = self._until - time.monotonic()
        if left <= 0:
            raise Unreachable(f"the API at {self.url} does not answer in time")
        return min(seconds, left)

    def _content(self, answer: Any) -> bytes:
        content = bytearray()
        for piece in self._pieces(answer, time.monotonic() + self._at_most(WHOLE)):
            content += piece
            if len(content) > MAX_ANSWER:
                raise Unreachable(f"the answer of {self.url} is larger than {MAX_ANSWER} bytes")
        return bytes(content)

    def _pieces(self, answer: Any, until: float | None) -> Iterator[bytes]:
        """What comes, as it comes: a peer that sends a byte now and then is not waited for."""
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

        try:
            while piece := answer.raw.read1(PIECE, decode_content=True):
                yield piece
                if until is not None and time.monotonic() > until:
                    raise Unreachable(f"the API at {self.url} does not answer in time")
        except (HTTPError, OSError, ValueError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> NoReturn:
        import requests  # noqa: PLC0415 - as above
        from urllib3.exceptions import TimeoutError as Late  # noqa: PLC0415

        words = str(error)
        if isinstance(error, requests.exceptions.SSLError) or "SSL" in words:
            raise Unreachable(tls(self.url, words)) from error
        if isinstance(error, requests.exceptions.Timeout | Late | TimeoutError):
            raise Unreachable(f"the API at {self.url} does not answer in time") from error
        if re.search(r"reset|aborted|broken|disconnected|closed|IncompleteRead", words, re.IGNORECASE):
            raise _Broken(error) from error
        self._away(error)

    def _away(self, error: Exception) -> NoReturn:
        why = reason(error)
        if why == BROKE and self.url.startswith("http://"):
            why += "; if it speaks TLS, write https://"
        raise Unreachable(
            f"the API at {self.url} does not answer ({why}): is the control plane running there? "
            "Start it with: llmgw server. Another address is given by --api or LLMGW_API"
        ) from error

    # ------------------------------------------------------------ the answer

    def _parsed(self, reply: _Reply, expect: str) -> dict[str, Any]:
        status, kind, content = reply.status, reply.headers.get("Content-Type", ""), reply.content
        if 300 <= status < 400:
            where = clean(reply.headers.get("Location", "nowhere"))[:200]
            raise Unreachable(
                f"{self.url} sends elsewhere (status {status}, to {where}), as a login page or a proxy does, not the "
                "admin API: check --api or LLMGW_API"
            )
        if status == 204 and not expect:
            return {}
        try:
            parsed = json.loads(content, parse_constant=no_number)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            what = (
                "a web page"
                if "html" in kind or content.lstrip()[:1] == b"<"
                else f"something else ({clean(kind or 'no type')[:100]})"
            )
            raise Unreachable(
                f"{self.url} answered with {what} (status {status}), not as the admin API: check --api or LLMGW_API"
            )
        if status >= 400 and isinstance(parsed.get("code"), str) and isinstance(parsed.get("message"), str):
            raise self._refusal(status, parsed)
        if status >= 300 or (expect and expect not in parsed):
            raise Unreachable(
                f"{self.url} answered (status {status}), but not as a control plane of this version does: "
                "check --api or LLMGW_API"
            )
        return parsed

    def _refusal(self, status: int, body: dict[str, Any]) -> Refused:
        lines = [_API_WAY.split(_for_people(body["message"]), maxsplit=1)[0]]
        listed = body.get("faults")
        faults = tuple(
            (clean(fault.get("path") or ""), _for_people(fault.get("message")))
            for fault in (listed if isinstance(listed, list) else ())
            if isinstance(fault, dict)
        )
        lines += [f"  {path}: {message}" if path else f"  {message}" for path, message in faults]
        code = clean(body["code"])
        if status == 401:
            lines.append(
                f"The token of {self._credential.origin} is not accepted here: it may be revoked, expired, or of "
                f"another control plane; {WAYS}"
                if self._credential.token
                else f"No token was found: {WAYS}"
            )
        elif status == 403 and code == "forbidden":
            lines.append(
                "Who you are and what you may do: llmgw ctl whoami. An administrator can change it with: "
                "llmgw ctl user set"
            )
        elif code == "not_leader":
            lines += _ask_again(body)
        elif status == 412:
            lines.append("Nothing was changed. Look at it again, then repeat the command.")
        lines.append(f"({code}, request {clean(body.get('request_id', '-'))})")
        return (Denied if status in (401, 403) else Refused)("\n".join(lines), code, faults)


def _for_people(words: Any) -> str:
    return clean(words).replace(_MAKES_SCOPE, "llmgw ctl scope add")


def _ask_again(body: dict[str, Any]) -> list[str]:
    """What to do when a control plane does not lead and says where the one is that does."""
    if not body.get("leader"):
        return []
    takes_in = body.get("takeover_seconds")
    when = f"this one again in {max(1, ceil(takes_in))} s" if isinstance(takes_in, int | float) else "again"
    return [f"Ask the one that leads: --api URL, or LLMGW_API. If it does not answer, ask {when}."]


class _Broken(Exception):
    """The connection ended before the answer did."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
