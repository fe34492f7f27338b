"""Parts of lists, and how they are written."""

import json
from typing import Any

import gevent
import marshmallow as ma
import pytest

from controlplane.api import slices
from controlplane.api.base import Schema, items
from controlplane.services.errors import Refused
from controlplane.services.paging import decode, encode, page_by_name


def whole(names: list[str], limit: int) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        page, cursor = page_by_name(names, limit, cursor)
        pages.append(page)
        if cursor is None:
            return pages


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 100])
def test_pages_are_the_whole(limit: int) -> None:
    """API-04: each once, in order, and no empty page at the end."""
    names = ["a", "b", "b c", "d\u00e9", "e\0f"]
    pages = whole(names, limit)
    assert [name for page in pages for name in page] == names
    assert all(len(page) == limit for page in pages[:-1]) and pages[-1]


def test_an_empty_list_is_one_page() -> None:
    """API-04: without a cursor."""
    assert page_by_name([], 10, None) == ([], None)


def test_what_comes_and_goes_neither_repeats_nor_hides() -> None:
    """API-04: a cursor is a place, not a count."""
    page, cursor = page_by_name(["b", "c", "d", "e"], 2, None)
    assert page == ["b", "c"]
    assert page_by_name(["a", "c", "d", "e"], 2, cursor) == (["d", "e"], None)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "===",
        "W10",
        encode("a", "b"),
        encode(3),
        "bnVsbA",
        "e30",
        "W1tdXQ",
        "W3RydWVd",
        "\u00e4",
        "x" * 501,
        "[" * 400,
    ],
)
def test_cursors_that_are_none(cursor: str) -> None:
    """API-04: refused in words, whatever they are."""
    with pytest.raises(Refused) as refused:
        page_by_name(["a"], 1, cursor)
    (fault,) = refused.value.faults
    assert fault.path == "cursor" and "leave it out to begin" in fault.message


def test_a_cursor_has_room_for_the_longest_name() -> None:
    """API-04: 253 characters, of two places at once."""
    assert decode(encode("n" * 253, 1.5), 2) == ("n" * 253, 1.5)


# ---------------------------------------------------------------- slices


class RowSchema(Schema):
    """An entry."""

    name = ma.fields.String(required=True)
    size = ma.fields.Integer()


class RowsSchema(Schema):
    """A list and more. ``keys`` and ``items`` are names that mappings have for themselves."""

    rows = items(RowSchema)
    keys = ma.fields.List(ma.fields.Nested(RowSchema))
    items = ma.fields.String()
    next = ma.fields.String()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"rows": []}, {"rows": []}),
        ({"rows": [{"name": "a", "size": None}]}, {"rows": [{"name": "a"}]}),
        (
            {"rows": iter([{"name": "a"}, {"name": "b"}]), "next": "x"},
            {"rows": [{"name": "a"}, {"name": "b"}], "next": "x"},
        ),
        (
            {"rows": [], "keys": ({"name": n} for n in "xy"), "next": None},
            {"rows": [], "keys": [{"name": "x"}, {"name": "y"}]},
        ),
        ({"rows": [], "items": "\u00e9\u2028"}, {"rows": [], "items": "\u00e9\u2028"}),
        ({}, {}),
    ],
)
def test_slices_make_a_whole(value: dict[str, Any], shown: dict[str, Any]) -> None:
    """API-04: the same JSON as in one piece."""
    assert json.loads(slices.render(RowsSchema(), value)) == shown


def test_a_long_list_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: between its entries, as soon as they took long enough."""
    monkeypatch.setattr(slices, "SLICE", 0.0)
    turns = 0

    def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            gevent.sleep(0)

    other = gevent.spawn(count)
    slices.render(RowsSchema(), {"rows": ({"name": str(n)} for n in range(20))})
    other.kill()
    assert turns >= 20
