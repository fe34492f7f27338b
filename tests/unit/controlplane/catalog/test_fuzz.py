"""Whatever a body or a file holds: a catalog or faults, never another exception (CAT-01)."""

import copy
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.catalog.load import parse_catalog, parse_model
from controlplane.catalog.messages import _HOMES
from controlplane.catalog.schema import json_schema, known_fields
from llmgw.runtime.settings import SettingsError
from tests.unit.controlplane.catalog.test_schema import FULL
from tests.unit.controlplane.catalog.trees import tree

FIELDS = sorted({name for home, _ in _HOMES for name in known_fields(home)} | {"models", "aliases", "m", "", "x y"})
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 20)
    | st.sampled_from([10**30, 1.5, float("nan"), float("inf"), "sim:", "hf:o/m", "file:/m", "https://h/m.gguf", "sim"])
    | st.sampled_from(["vllm", "sglang", "llamacpp", "a-mig-1g", "mon-fri", "08:00", "m", "-", "--port", "guard"])
    | st.text(max_size=5)
)
KEYS = st.sampled_from(FIELDS) | st.integers(-1, 2) | st.none() | st.booleans() | st.text(max_size=3)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=25
)
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [*value.items()]
    return [*enumerate(value)] if isinstance(value, list) else []


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return [path, *(place for key, each in _items(value) for place in _places(each, (*path, key)))]


PLACES = [place for place in _places(tree(FULL)) if place]


def _told(value: Any) -> bool:
    """Whether there are faults; each is one bounded line."""
    try:
        parse_catalog({"store": value})
    except SettingsError as error:
        assert error.faults
        assert all("\n" not in str(fault) and fault.message for fault in error.faults)
        return True
    return False


@RELAXED
@given(VALUES)
def test_any_body_of_a_model(value: Any) -> None:
    """API-04: from a request."""
    try:
        parse_model("m", value)
    except SettingsError as error:
        assert error.faults


@RELAXED
@given(st.dictionaries(st.sampled_from(["models", "aliases", "model"]), VALUES, max_size=3))
def test_any_catalog(value: Any) -> None:
    """From a file."""
    _told(value)


@RELAXED
@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3))
def test_a_good_catalog_with_anything_in_it(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """Deep within, where one field meets another. And CAT-16: what loads, no editor underlines."""
    value = copy.deepcopy(tree(FULL))
    for place, new in changes:
        node = value
        for step in place[:-1]:
            found = [each for key, each in _items(node) if key == step]
            node = found[0] if found else None
        if isinstance(node, dict) or place[-1] in [key for key, _ in _items(node)]:
            node[place[-1]] = new
    if not _told(value):
        jsonschema.Draft202012Validator(json_schema()).validate(value)
