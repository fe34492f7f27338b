"""Which batches of a router process count, in whatever order they come (STO-03)."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from controlplane.store.queries import sequences
from controlplane.store.queries.sequences import MOST_GAPS, Sequences, flat, read

NUMBERS = st.lists(st.one_of(st.integers(1, 25), st.integers(2**53 - 5, 2**53)), max_size=80)


class Model:
    """The same with sets, for numbers of which there are few. ``most`` gaps are remembered."""

    def __init__(self, most: int, among: list[int]) -> None:
        self.most = most
        self.among = sorted(set(among))
        self.counted: set[int] = set()
        self.given_up: set[int] = set()

    def take(self, number: int) -> bool:
        """Whether it counts."""
        if number in self.counted | self.given_up:
            return False
        self.counted.add(number)
        return True

    def learn(self, lowest: int) -> None:
        """Below ``lowest`` nothing is a gap any more."""
        self.given_up |= {number for number in self.among if number < lowest} - self.counted


def walk(numbers: list[int], most: int) -> int:
    """Take them all, compare each time; how many were given up."""
    model, now, lost = Model(most, numbers), Sequences(), 0
    with patch.object(sequences, "MOST_GAPS", most):
        for number in numbers:
            taken = now.take(number)
            assert (taken is not None) == model.take(number)
            if taken is None:
                continue
            if taken.given_up:
                assert len(taken.sequences.gaps) == most, "none is given up before there is no room"
                model.learn(taken.sequences.gaps[0][0] if taken.sequences.gaps else taken.sequences.highest)
            now, lost = taken.sequences, lost + taken.given_up
            assert now == read(now.highest, flat(now)), "as it is stored"
            check(now, model)
            open_still = sum(last - first + 1 for first, last in now.gaps)
            assert now.highest == len(model.counted) + open_still + lost, "each number is one of these"
    return lost


def check(now: Sequences, model: Model) -> None:
    """The gaps are those of the model, in order, and apart from each other."""
    assert len(now.gaps) <= model.most and now.highest == max(model.counted)
    edges = [0, *(edge for first, last in now.gaps for edge in (first, last)), now.highest]
    assert all(first <= last for first, last in now.gaps) and edges == sorted(edges)
    assert all(one[1] + 1 < other[0] for one, other in zip(now.gaps, now.gaps[1:], strict=False))
    for number in model.among:
        open_still = number > now.highest or any(first <= number <= last for first, last in now.gaps)
        assert open_still == (number not in model.counted | model.given_up), number


@given(NUMBERS)
def test_each_counts_once_in_any_order(numbers: list[int]) -> None:
    """STO-03: with room for every gap: exactly the set of what came."""
    assert walk(numbers, MOST_GAPS) == 0


@given(NUMBERS, st.integers(1, 4))
def test_what_is_given_up_never_counts_twice(numbers: list[int], most: int) -> None:
    """STO-03: without room the lowest gap goes: what was in it is not counted, and how much that may be is told."""
    walk(numbers, most)


def test_a_change_of_leader_is_one_gap() -> None:
    """HA-01: the new leader's come first, those on the disk of the one before later, and then it closes."""
    now, room = Sequences(), 0
    for number in [1, 2, 3, 9, 10]:
        now = now.take(number).sequences
    assert now == Sequences(10, ((4, 8),)) and flat(now) == [4, 8]
    for number in range(4, 9):
        assert now.take(number - 1 if number > 4 else 3) is None
        now = now.take(number).sequences
        room = max(room, len(now.gaps))
    assert now == Sequences(10) and flat(now) is None and room == 1


def test_one_that_skips_without_end_is_bounded() -> None:
    """STO-03: a router that lies takes no more room than others; the figures are exact."""
    now, lost = Sequences(), 0
    for number in range(3, 3 * MOST_GAPS + 31, 3):
        taken = now.take(number)
        now, lost = taken.sequences, lost + taken.given_up
    assert len(now.gaps) == MOST_GAPS and lost == 2 * 10
    assert now.take(1) is None and now.take(31) is not None
    assert now.take(2**53).sequences.gaps[-1] == (now.highest + 1, 2**53 - 1)
