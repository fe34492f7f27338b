"""A request's way to an engine (RTR-08, RTR-11).

Endpoints are tried while the client has seen nothing of an answer: one, and once more
another; then those of the model's fallbacks, in order (CAT-10).
"""

import random
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from llmgw.runtime.logs import Logger
from router.delivery import Delivery, Times
from router.errors import RETRY_AFTER, Refused, unready
from router.external import Pools
from router.http1 import ClientLink, Request
from router.link import Expired, Reactor
from router.pick import pick
from router.rewrite import Asked, splice
from router.table import Live, Route
from router.upstream import (
    Answer,
    Pool,
    Unreachable,
    UpstreamError,
    UpstreamLink,
    read_answer,
    request_head,
)
from router.usage import Done

log = Logger("router.proxy")

ATTEMPTS = 2
AVOID_SECONDS = 5.0
"""How long an endpoint that could not be reached is tried last. A breaker per endpoint
(RTR-07) takes the place of this guard."""

ONE_SEND = 65536


Call = tuple[ClientLink, Request, Asked, bytes, Done]
"""One request on its way: who asks, its head, what it asks for, its body, its record."""


class Failure(NamedTuple):
    """Why an attempt gave the client nothing. ``code`` is one of ``errors.ROUTER``; ``more``
    are sentences about what else was tried."""

    code: str
    message: str
    retry_after: int | None = None
    more: str = ""


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

    def serve(self, call: Call, route: Route, tell: bool) -> bool:
        """Answer ``call`` from an endpoint of ``route``, or of its fallbacks. ``tell``
        says that the client is told which model answered; of a fallback it always is.

        Returns whether the client's connection can go on. Raises ``Refused`` while
        nothing was sent; ``ClientGone``, ``Expired`` or ``OSError`` when the client's
        side failed. Whatever happens, the endpoint's in-flight count is given back.
        """
        told = route.told if tell else b""
        outcome = self._try(call, route, told, avoided=not route.fallbacks)
        if not isinstance(outcome, bool) and route.fallbacks:
            outcome = self._fall_back(call, route, told, outcome)
        if isinstance(outcome, bool):
            return outcome
        call[4].model = route.model.name
        more = "" if outcome is None else outcome.more
        if not route.endpoints:
            raise unready(route.model, more)
        if outcome is None:
            raise Refused("overloaded", _sentence(_full(route)))
        raise Refused(outcome.code, f"{_sentence(outcome.message)}{more}", retry_after=outcome.retry_after)

    def _fall_back(self, call: Call, route: Route, told: bytes, first: Failure | None) -> bool | Failure | None:
        """What became of ``call`` after ``route`` could not answer it (``first``)."""
        said = ""
        # Endpoints that could not be reached lately are for when nobody else was tried.
        for chain, avoided in ((route.fallbacks, False), ((route, *route.fallbacks), True)):
            for model in chain:
                if first is not None and first.code == "upstream_timeout":
                    return first  # whoever waited this long is not helped by waiting again
                current = self._current(model.model.name)
                if current is None:
                    continue
                outcome = self._try(call, current, told if model is route else current.told, avoided=avoided)
                if isinstance(outcome, bool):
                    return outcome
                if outcome is None:
                    continue
                if model is route:
                    first = outcome
                    continue
                said += f" Its fallback {model.model.name} did not answer either: {outcome.message}."
                if first is None:
                    first = Failure("overloaded", _full(route))
                if outcome.code == "upstream_timeout":
                    return first._replace(more=said)
            if first is not None:
                return first._replace(more=said)
        return None

    def _try(self, call: Call, route: Route, told: bytes, *, avoided: bool) -> bool | Failure | None:
        """One model: the client's connection can go on or not, why it failed, or ``None`` if
        no endpoint can take the request. ``avoided`` says whether one will do that could not
        be reached lately."""
        done = call[4]
        excluded: tuple[Live, ...] = ()
        failure = None
        for _ in range(ATTEMPTS):
            if failure is not None:
                # The first attempt took its time: an endpoint that left the table meanwhile
                # is not reported, so the control plane would stop it under the request.
                now_routed = self._current(route.model.name)
                if now_routed is None:
                    break
                route = now_routed
            now = monotonic()
            live = pick(route.endpoints, self._rng, now, excluded, avoided)
            if live is None:
                break
            live.inflight += 1
            live.used_at = now
            done.model = route.model.name
            done.endpoint = live.endpoint.id
            try:
                outcome = self._attempt(call, live, told)
            finally:
                live.inflight -= 1
            if not isinstance(outcome, Failure):
                return outcome
            failure = outcome
            if live.endpoint.external:
                failure = failure._replace(message=failure.message.replace("the engine", "the provider"))
            done.retried += (f"{live.endpoint.id}: {failure.message}",)
            log.info("attempt failed", endpoint=live.endpoint.id, why=failure.message, request=call[1].id.decode())
            if failure.code != "overloaded":
                live.failures += 1
            if failure.code == "upstream_timeout":
                break  # whoever waited this long is not helped by waiting again
            excluded += (live,)
        return failure

    def _attempt(self, call: Call, live: Live, told: bytes) -> bool | Failure:
        """One endpoint: the client's connection can go on or not, or nothing was sent."""
        endpoint = live.endpoint
        client, request, asked, body, done = call
        until = monotonic() + (self._times.first_byte if asked.stream else self._times.answer)
        link = None
        reusable = False
        try:
            head = live.heads.get(request.path)
            if head is None:
                head = live.heads[request.path] = request_head(endpoint, request.path)
            if endpoint.upstream_model != asked.model:
                body = splice(body, endpoint.upstream_model)
            head += b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request.id, len(body))
            pool = self._pools.get(endpoint)
            link = pool.take()
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
            extra = self._reactor.date + told
            delivery = Delivery(
                client, request, link, answer, rest, done=done, until=until, times=self._times, extra=extra
            )
            outcome = delivery.deliver()
            live.answered_at = monotonic()
            live.failures += outcome.failed
            done.status = answer.status
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


def _full(route: Route) -> str:
    return f"every replica of {route.model.name} has all the requests it can take"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
