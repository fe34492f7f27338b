import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.routing import Endpoint
from router.pick import pick
from router.table import Live


def live(name, inflight=0, weight=1.0, max_inflight=None, avoid_until=float("-inf")):
    one = Live(Endpoint(id=name, host="h", port=1, upstream_model="m", weight=weight, max_inflight=max_inflight))
    one.inflight = inflight
    one.avoid_until = avoid_until
    return one


LIVES = st.lists(
    st.builds(
        live,
        st.text("abc", max_size=3),
        st.integers(0, 5),
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
        st.sampled_from([None, 1, 3]),
        st.sampled_from([0.0, 200.0]),
    ),
    max_size=6,
)


@given(LIVES, st.integers(0, 1000), st.sets(st.integers(0, 5)))
def test_only_an_endpoint_that_can_take_it_is_picked(lives, seed, out):
    """RTR-04, RTR-05: limits, weights and exclusions hold; there is a pick whenever one is possible."""
    excluded = tuple(one for nth, one in enumerate(lives) if nth in out)
    able = [
        one
        for one in lives
        if one.weight > 0 and one not in excluded and (one.max_inflight is None or one.inflight < one.max_inflight)
    ]
    chosen = pick(tuple(lives), random.Random(seed), 100.0, excluded)
    if not able:
        assert chosen is None
        return
    assert chosen in able
    # One that could not be reached lately comes last.
    if any(one.avoid_until <= 100.0 for one in able):
        assert chosen.avoid_until <= 100.0


def spread(lives, count=4000, hold=False):
    rng = random.Random(7)
    seen = Counter()
    for _ in range(count):
        one = pick(lives, rng, 0.0)
        seen[one.endpoint.id] += 1
        one.inflight += hold
    return seen


def test_of_two_the_less_loaded():
    """RTR-04: with two endpoints the one with less in flight takes every request."""
    assert spread((live("a", 3), live("b", 1))) == {"b": 4000}


def test_ties_are_random():
    """RTR-04: an idle fleet shares evenly."""
    seen = spread(tuple(live(name) for name in "abcd"))
    assert all(850 < seen[name] < 1150 for name in "abcd")


def test_load_evens_out():
    """RTR-04: two choices keep the difference small."""
    lives = tuple(live(str(nth)) for nth in range(10))
    spread(lives, hold=True)
    loads = [one.inflight for one in lives]
    assert sum(loads) == 4000
    assert max(loads) - min(loads) < 12


def test_weight():
    """RTR-04: a weight of three takes three times as much, idle or loaded."""
    idle = spread((live("a", weight=3.0), live("b", weight=1.0)))
    assert 2.6 < idle["a"] / idle["b"] < 3.4
    loaded = spread((live("a", weight=3.0), live("b", weight=1.0)), hold=True)
    assert 2.8 < loaded["a"] / loaded["b"] < 3.2
