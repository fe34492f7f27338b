import itertools
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from llmgw.wire.routing import Endpoint, RoutedModel
from router.pick import draw, pick, stick
from router.table import Live, Route


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


@given(LIVES, st.integers(0, 1000))
def test_one_that_could_not_be_reached_is_left_out_where_there_is_a_fallback(lives, seed):
    """CAT-10: another model comes before it."""
    chosen = pick(tuple(lives), random.Random(seed), 100.0, (), avoided=False)
    if chosen is None:
        assert not any(
            one.avoid_until <= 100.0
            and one.weight > 0
            and (one.max_inflight is None or one.inflight < one.max_inflight)
            for one in lives
        )
    else:
        assert chosen.avoid_until <= 100.0


def targets(**weights):
    return tuple((Route(RoutedModel(name=name, state="ready"), ()), weight) for name, weight in weights.items())


def test_a_draw_follows_the_weights():
    """CAT-13: each request by itself, each target as often as its weight says."""
    rng = random.Random(5)
    shares = targets(a=70.0, b=25.0, c=5.0)
    seen = Counter(draw(shares, rng).model.name for _ in range(20_000))
    for (route, weight), deviation in zip(shares, (65, 62, 31), strict=True):
        assert abs(seen[route.model.name] - weight * 200) < 4 * deviation
    changes = sum(1 for one, other in itertools.pairwise([draw(shares, rng) for _ in range(2000)]) if one is not other)
    assert 700 < changes < 1100  # 885 expected of independent draws
    assert draw(targets(only=0.001), rng).model.name == "only"


def test_a_key_stays_while_the_weights_do():
    """CAT-13: keys share by weight, the same in every process, and each alias by itself."""
    shares = targets(a=3.0, b=1.0)
    given_to = {key: stick(shares, "alias", key).model.name for key in map(str, range(4000))}
    assert abs(Counter(given_to.values())["b"] - 1000) < 110
    assert all(stick(shares[::-1], "alias", key).model.name == name for key, name in given_to.items())
    assert [stick(shares, "alias", key).model.name for key in ("k1", "k2", "k3", "k4", "k9")] == list("ababb")
    moved = sum(stick(shares, "other", key).model.name != name for key, name in given_to.items())
    assert 1300 < moved < 1700


def test_a_weight_that_changes_moves_no_more_keys_than_it_must():
    """CAT-13: a canary that grows takes keys, and gives none back; a target that is out leaves the others alone."""
    keys = list(map(str, range(4000)))

    def shared(**weights):
        return {key: stick(targets(**weights), "alias", key).model.name for key in keys}

    before, after = shared(a=9.0, b=1.0), shared(a=9.0, b=3.0)
    assert all(after[key] == "b" for key in keys if before[key] == "b")
    assert sum(before[key] != after[key] for key in keys) < 4000 * 0.2
    three, two = shared(a=1.0, b=1.0, c=1.0), shared(a=1.0, b=1.0)
    assert all(two[key] == three[key] for key in keys if three[key] != "c")
