"""A request's way to an engine (RTR-08, RTR-11).

Endpoints are tried while the client has seen nothing of an answer: one, and once more
another.
"""

import random
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from llmgw.runtime.logs import Logger
from router.delivery import Delivery, Times
from router.errors import RETRY_AFTER, Refused
from router.http1 import ClientLink, Request
from router.link import Expired, Reactor
from router.pick import pick
from router.rewrite import Asked, splice
from router.table import Live, Route
from router.upstream import (
    Answer,
    Pool,
    Pools,
    Unreachable,
    UpstreamError,
    UpstreamLink,
    read_answer,
    request_head,
)

log = Logger("router.proxy")

ATTEMPTS = 2
AVOID_SECONDS = 5.0
"""How long an endpoint that could not be reached is tried last. A breaker per endpoint
(RTR-07) takes the place of this guard."""

ONE_SEND = 65536


class Failure(NamedTuple):
    """Why an attempt gave the client nothing. ``code`` is one of ``errors.ROUTER``."""

    code: str
    message: str
    retry_after: int | None = None


class Proxy:
    """Sends requests to engines and their answers to clients. ``current`` finds a model's
    route in the table as it is now."""

    def __init__(
        self,
        reactor: Reactor,
        pools: Pools,
        times: Times,
        rng: random.Random,
        current: Callable[[str], Route | None],
    ) -> None:
        self._reactor = reactor
        self._pools = pools
        self._times = times
        self._rng = rng
        self._current = current

    def serve(self, client: ClientLink, request: Request, route: Route, asked: Asked, body: bytes) -> bool:
        """Answer ``request`` from an endpoint of ``route``.

        Returns whether the client's connection can go on. Raises ``Refused`` while
        nothing was sent; ``ClientGone``, ``Expired`` or ``OSError`` when the client's
        side failed. Whatever happens, the endpoint's in-flight count is given back.
        """
        excluded: tuple[Live, ...] = ()
        failure = None
        for _ in range(ATTEMPTS):
            if failure is not None:
                # The first attempt took its time: an endpoint that left the table meanwhile
                # is not reported, so the control plane would stop it under the request.
                now_routed = self._current(asked.model)
                if now_routed is None:
                    break
                route = now_routed
            now = monotonic()
            live = pick(route.endpoints, self._rng, now, excluded)
            if live is None:
                break
            live.inflight += 1
            live.used_at = now
            try:
                outcome = self._attempt(client, request, live, asked, body)
            finally:
                live.inflight -= 1
            if not isinstance(outcome, Failure):
                return outcome
            failure = outcome
            log.info("attempt failed", endpoint=live.endpoint.id, why=failure.message, request=request.id.decode())
            if failure.code != "overloaded":
                live.failures += 1
            if failure.code == "upstream_timeout":
                break  # whoever waited this long is not helped by waiting again
            excluded += (live,)
        if failure is None:
            raise Refused("overloaded", f"Every replica of {route.model.name} has all the requests it can take.")
        said = f"{failure.message[:1].upper()}{failure.message[1:]}."
        raise Refused(failure.code, said, retry_after=failure.retry_after)

    def _attempt(self, client: ClientLink, request: Request, live: Live, asked: Asked, body: bytes) -> bool | Failure:
        """One endpoint: the client's connection can go on or not, or nothing was sent."""
        endpoint = live.endpoint
        head = live.heads.get(request.path)
        if head is None:
            head = live.heads[request.path] = request_head(endpoint, request.path)
        if endpoint.upstream_model != asked.model:
            body = splice(body, endpoint.upstream_model)
        head += b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request.id, len(body))
        until = monotonic() + (self._times.first_byte if asked.stream else self._times.answer)
        pool = self._pools.get(endpoint)
        link = pool.take()
        reusable = False
        try:
            data = self._ask(link, head, body, until) if link is not None else b""
            if link is None or not data:
                link = self._fresh(pool, link)
                data = self._ask(link, head, body, until)
                if not data:
                    return Failure("upstream_error", "the engine closed the connection without an answer")
            answer, rest = read_answer(link, data, until)
            refusal = _refusal(answer)
            if refusal is not None:
                return refusal
            live.avoid_until = 0.0
            delivery = Delivery(
                client, request, link, answer, rest, until=until, times=self._times, date=self._reactor.date
            )
            outcome = delivery.deliver()
            live.answered_at = monotonic()
            live.failures += outcome.failed
            reusable = outcome.reusable
            return outcome.go_on
        except Unreachable as error:
            live.avoid_until = monotonic() + AVOID_SECONDS
            return Failure("upstream_error", str(error))
        except UpstreamError as error:
            return Failure("upstream_timeout" if error.timeout else "upstream_error", str(error))
        finally:
            if link is not None:
                if reusable:
                    pool.give(link)
                else:
                    link.close()

    def _fresh(self, pool: Pool, stale: UpstreamLink | None) -> UpstreamLink:
        """A new connection. ``stale`` is a reused one that the engine had just closed:
        sending once more on a new one repeats nothing, since no byte of an answer came."""
        if stale is not None:
            stale.close()
        return pool.connect(self._times.connect)

    def _ask(self, link: UpstreamLink, head: bytes, body: bytes, until: float) -> bytes:
        """Send a request and wait for the first bytes of the answer; ``b""`` if the
        connection ended before one came. Raises ``UpstreamError`` on silence."""
        try:
            if len(body) < ONE_SEND:
                link.send_all(head + body, until)
            else:
                link.send_all(head, until)
                link.send_all(body, until)
            return link.receive(until)
        except Expired as error:
            raise UpstreamError("the engine was silent for too long", timeout=True) from error
        except OSError:
            return link.early()


def _refusal(answer: Answer) -> Failure | None:
    """Why an answer is the engine's own trouble rather than one to the request.

    4xx and 500 are answers: some engines tell an over-long prompt by 500, and trying it
    on every replica helps nobody. 401 and its like are about the router's key, since the
    client's never gets there.
    """
    status = answer.status
    if 200 <= status < 300:
        return None
    if status == 503:
        wait = answer.retry_after or RETRY_AFTER["overloaded"]
        return Failure("overloaded", "the engine cannot take the request now", wait)
    if status == 502:
        return Failure("upstream_error", "the engine could not be reached through its gateway")
    if status in (401, 403, 407):
        return Failure("upstream_error", "the engine refused the router's key")
    if status < 400:
        return Failure("upstream_error", f"the engine answered {status}, which is no answer")
    return None
