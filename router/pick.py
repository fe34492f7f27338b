"""Which endpoint a request goes to, and which model where a name stands for several. PURE
(RTR-04, CAT-13).

Power of two choices: two candidates at random (by weight), the one with less in flight
for its weight takes it. Affinity, scraped load and queues come on top of this.
"""

import hashlib
import math
import random
from collections.abc import Sequence

from router.table import Live, Route


def pick(
    candidates: Sequence[Live], rng: random.Random, now: float, excluded: Sequence[Live] = (), avoided: bool = True
) -> Live | None:
    """The endpoint for the next request, or ``None`` if none can take one.

    ``now`` is monotonic seconds. An endpoint of weight 0, at its ``max_inflight``, or in
    ``excluded`` is not picked; one that could not be reached lately only if all others
    are out, and not at all without ``avoided``.
    """
    count = len(candidates)
    if count > 1 and not excluded:
        first = int(rng.random() * count)
        second = int(rng.random() * (count - 1))
        if second >= first:
            second += 1
        a, b = candidates[first], candidates[second]
        if _plain(a, now) and _plain(b, now):
            return b if b.inflight < a.inflight else a
    return _pick_slow(candidates, rng, now, excluded, avoided)


def _plain(live: Live, now: float) -> bool:
    """Whether nothing about the endpoint needs a closer look."""
    return live.weight == 1.0 and live.max_inflight is None and live.avoid_until <= now


def _pick_slow(
    candidates: Sequence[Live], rng: random.Random, now: float, excluded: Sequence[Live], avoided: bool
) -> Live | None:
    able = [
        live
        for live in candidates
        if live.weight > 0 and (live.max_inflight is None or live.inflight < live.max_inflight) and live not in excluded
    ]
    able = [live for live in able if live.avoid_until <= now] or (able if avoided else [])
    if len(able) < 2:
        return able[0] if able else None
    a = _draw(able, rng)
    b = _draw([live for live in able if live is not a], rng)
    return b if b.inflight / b.weight < a.inflight / a.weight else a


def _draw(lives: Sequence[Live], rng: random.Random) -> Live:
    point = rng.random() * sum(live.weight for live in lives)
    for live in lives:
        point -= live.weight
        if point < 0:
            return live
    return lives[-1]


def draw(targets: Sequence[tuple[Route, float]], rng: random.Random) -> Route:
    """One of ``targets`` (not empty) by weight."""
    point = rng.random() * sum(weight for _, weight in targets)
    for route, weight in targets:
        point -= weight
        if point < 0:
            return route
    return targets[-1][0]


def stick(targets: Sequence[tuple[Route, float]], alias: str, key: str) -> Route:
    """One of ``targets`` (not empty) for the key of id ``key``: the same in every process
    while the weights stay, and shares of keys by weight. Weighted rendezvous hashing: a
    weight that changes moves only as many keys as it must."""
    return max(targets, key=lambda target: _claim(alias, key, *target))[0]


def _claim(alias: str, key: str, route: Route, weight: float) -> float:
    named = "\0".join((alias, key, route.model.name)).encode()
    number = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big")
    return -weight / math.log((number + 0.5) / 2**64)
