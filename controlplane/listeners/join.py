"""The join listener: first certificates for who has a token, and nothing else (SEC-02).

It asks for no client certificate, so anybody may connect: two paths, small bodies, and what
is wrong is told to the peer and to the log, never a token.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from gevent.lock import BoundedSemaphore

from controlplane.identities import Credentials
from controlplane.listeners.http import sender
from controlplane.listeners.refusals import Refusals
from controlplane.services.joining import Joining, JoinRefused
from controlplane.store.errors import StoreUnavailable
from llmgw.identity.joining import (
    AUTHORITIES_PATH,
    CERTIFICATE_PATH,
    Authorities,
    JoinAnswer,
    JoinRefusal,
    JoinRequest,
)
from llmgw.identity.names import IdentityError, identity
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger

log = Logger("llmgw.join")

MAX_REQUEST = 32 * 1024
"""Longest body that is taken, in bytes."""

MOST = 128
"""Connections at once: people join machines, a fleet does not."""

LOOKUPS = 4
"""Tokens that are looked up at once: made-up ones, from however many peers, must not stand
before what else the store is asked."""

PATIENCE = 20.0
"""Seconds that a request waits for its turn to be looked up."""

Answer = tuple[str, bytes]
_encode = msgspec.json.Encoder().encode

_REFUSED = {"join_refused": "403 Forbidden", "no_issuer": "503 Service Unavailable", "bad_request": "400 Bad Request"}


class JoinApplication:
    """WSGI application of the join listener."""

    def __init__(self, credentials: Credentials, joining: Joining, clock: Clock) -> None:
        self._credentials = credentials
        self._joining = joining
        self._refusals = Refusals(log, clock)
        self._decoder = msgspec.json.Decoder(JoinRequest)
        self._lookups = BoundedSemaphore(LOOKUPS)

    @property
    def refused(self) -> int:
        """Requests that were turned away."""
        return self._refusals.count

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            status, body = self._answer(environ)
        except Exception:
            log.exception("a request to join failed")
            status, body = _no("500 Internal Server Error", "internal_error", "see the log of the control plane")
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store"), ("Connection", "close")]
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def _answer(self, environ: dict[str, Any]) -> Answer:
        views: dict[tuple[str, str], Callable[[dict[str, Any]], Answer]] = {
            ("GET", AUTHORITIES_PATH): self._authorities,
            ("POST", CERTIFICATE_PATH): self._certificate,
        }
        view = views.get((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if view is not None:
            return view(environ)
        words = f"here are only GET {AUTHORITIES_PATH} and POST {CERTIFICATE_PATH}: use llmgw join"
        return self._refuse(environ, "404 Not Found", "bad_request", words)

    def _authorities(self, _environ: dict[str, Any]) -> Answer:
        return "200 OK", _encode(Authorities(self._credentials.authorities.decode()))

    def _certificate(self, environ: dict[str, Any]) -> Answer:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length > MAX_REQUEST:
            return self._refuse(
                environ, "413 Content Too Large", "bad_request", f"the body may have {MAX_REQUEST} bytes"
            )
        try:
            body = environ["wsgi.input"].read(length)
        except OSError:
            return self._refuse(environ, "400 Bad Request", "bad_request", "the body ended before its announced length")
        try:
            asked = self._decoder.decode(body)
            who = identity(asked.kind, asked.name)
        except (msgspec.DecodeError, RecursionError, IdentityError) as error:
            return self._refuse(environ, "400 Bad Request", "bad_request", str(error))
        if not self._lookups.acquire(timeout=PATIENCE):
            words = "too many others ask at this moment: try again later"
            return self._refuse(environ, "503 Service Unavailable", "overloaded", words, who=str(who))
        try:
            joined = self._joining.join(asked.token, who, asked.request.encode(), sender(environ))
        except JoinRefused as error:
            self._tell(environ, error.reason, error.own, who=str(who))
            return _no(_REFUSED[error.code], error.code, str(error))
        except StoreUnavailable as error:
            words = f"the store does not answer, so no token can be looked up: try again later ({error})"
            return self._refuse(environ, "503 Service Unavailable", "overloaded", words, who=str(who))
        finally:
            self._lookups.release()
        return "200 OK", _encode(JoinAnswer(joined.certificate.decode(), joined.authorities.decode()))

    def _refuse(self, environ: dict[str, Any], status: str, code: str, message: str, **more: str) -> Answer:
        self._tell(environ, code, message, **more)
        return _no(status, code, message)

    def _tell(self, environ: dict[str, Any], code: str, why: str, **more: str) -> None:
        self._refusals.tell("a request to join was refused", peer=sender(environ), **more, code=code, why=why)


def _no(status: str, code: str, message: str) -> Answer:
    return status, _encode(JoinRefusal(code, message))
