"""What happens again and again floods no log."""

from typing import Any

from llmgw.runtime.repeated import AGAIN, REASONS, Repeated


def told() -> tuple[list[tuple[str, dict[str, Any]]], Repeated]:
    """What was told, and what tells it."""
    lines: list[tuple[str, dict[str, Any]]] = []
    return lines, Repeated(lambda message, **fields: lines.append((message, fields)), "it is away")


def test_the_same_is_told_once_a_minute_with_how_often() -> None:
    """STO-03: two reasons that take turns are two lines."""
    lines, repeated = told()
    for second in range(60):
        repeated.happened(1000.0 + second, ("broken", "locked")[second % 2], place="here")
    assert lines == [("it is away", {"why": why, "place": "here"}) for why in ("broken", "locked")]
    repeated.happened(1000.0 + AGAIN, "broken")
    assert lines[2:] == [("it is away", {"why": "broken", "times": 30})]


def test_it_is_told_at_once_after_it_was_over() -> None:
    """STO-03: another time is another matter."""
    lines, repeated = told()
    assert not repeated.over()
    repeated.happened(5.0)
    assert repeated.over() and not repeated.over()
    repeated.happened(6.0)
    assert lines == [("it is away", {})] * 2


def test_reasons_without_end_fill_no_memory() -> None:
    """STO-03: such as words that hold a number."""
    lines, repeated = told()
    for number in range(10 * REASONS):
        repeated.happened(5.0, f"reason {number}")
    assert len(repeated._told) <= REASONS and len(lines) == 10 * REASONS
