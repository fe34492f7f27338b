"""When certificates are renewed (SEC-01)."""

from hypothesis import given
from hypothesis import strategies as st

from llmgw.identity.renewal import LONGEST_RETRY, OVERDUE_SPREAD, due, late, retry

DRAWS = st.floats(0, 1, exclude_max=True)
LIVES = st.floats(1, 1e9)


@given(LIVES, DRAWS, st.floats(0, 0.5))
def test_due_before_a_third_remains(life: float, draw: float, age: float) -> None:
    """SEC-01: with time left for other tries."""
    moment = due(1000.0, 1000.0 + life, 1000.0 + age * life, draw)
    assert 1000 + 0.5 * life <= moment <= 1000 + 0.61 * life
    assert not late(1000.0, 1000.0 + life, moment)


@given(LIVES, DRAWS, st.floats(0.6, 5))
def test_an_overdue_one_is_soon(life: float, draw: float, age: float) -> None:
    """SEC-01: after a long sleep, or an end, it is asked for at once, a fleet one by one."""
    now = 1000 + age * life + 1e-3
    assert now <= due(1000.0, 1000.0 + life, now, draw) <= now + OVERDUE_SPREAD


@given(st.floats(0, 1e9), st.floats(0, 1e9), DRAWS)
def test_tries_are_many_and_not_hasty(expires: float, now: float, draw: float) -> None:
    """SEC-01: at least ten tries fit before the end, and none follows within half a second."""
    wait = retry(expires, now, draw) - now
    assert 0.4 <= wait <= LONGEST_RETRY
    if expires - now > 20:
        assert wait <= (expires - now) / 10


def test_late() -> None:
    """SEC-01: a person is told when less than a third remains."""
    assert [late(0.0, 30.0, now) for now in (0.0, 19.9, 20.0, 31.0)] == [False, False, True, True]
