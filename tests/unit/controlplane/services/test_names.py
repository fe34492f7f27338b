"""Names that people give."""

import csv
import io

import pytest

from controlplane.services.csvtext import csv_text
from controlplane.services.names import content_version, domain, key_fault, location, path_fault, value_fault


@pytest.mark.parametrize("key", ["tier", "a", "example.com/tier", "llmgw.io/rack", "A-b_c.9", "x" * 63])
def test_names_of_labels(key: str) -> None:
    """PLC-09: as Kubernetes has them."""
    assert key_fault(key) is None


@pytest.mark.parametrize(
    "key", ["", "-a", "a-", "a b", "x" * 64, "Example.com/a", "/a", "a/", "a/b/c", "llmgw.io/rak", "ä", "a\n"]
)
def test_what_is_no_name_of_a_label(key: str) -> None:
    """PLC-09: also what only looks like one of ours."""
    assert key_fault(key)


def test_values_of_labels() -> None:
    """PLC-09: empty is a value."""
    assert value_fault("") is None and value_fault("r12") is None
    assert all(value_fault(value) for value in ("a b", "-a", "a.", "x" * 64, "a\n", "ä"))


def test_domains_for_short() -> None:
    """PLC-15: location labels need not be spelled out."""
    assert domain("rack=r12") == domain("llmgw.io/rack=r12") == ("llmgw.io/rack", "r12")
    assert domain("example.com/cage=7") == ("example.com/cage", "7")
    for text in ("rack", "rack=", "=r1", "ra ck=1", "rack=r 1", "llmgw.io/rak=1"):
        assert isinstance(domain(text), str), text


def test_a_location_is_what_labels_say() -> None:
    """PLC-09: unknown places are left out, not empty."""
    assert location({"llmgw.io/rack": "r1", "llmgw.io/row": "", "rack": "x"}) == {"rack": "r1"}


@pytest.mark.parametrize("path", ["acme", "acme/ml", "acme/ml/chat-2", "9.a_b"])
def test_paths_of_scopes(path: str) -> None:
    """TEN-01."""
    assert path_fault(path) is None


@pytest.mark.parametrize("path", ["", "a/b/c/d", "A", "a//b", "/a", "a/", "a b", "-a", "x" * 64, "a\n"])
def test_what_is_no_path_of_a_scope(path: str) -> None:
    """TEN-01."""
    assert path_fault(path)


def test_versions_of_content() -> None:
    """API-04: order does not count, content does."""
    assert content_version({"a": "1", "b": "2"}) == content_version({"b": "2", "a": "1"}) > 0
    assert content_version({"a": "1"}) != content_version({"a": "2"})


def test_cells_that_a_spreadsheet_must_not_run() -> None:
    """TEN-06: text is marked as text, numbers stay numbers, unknown is empty."""
    dangerous = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"]
    text = csv_text(["a"], [[value] for value in [*dangerous, "plain", -5, None, True, 'quo"te', "two\nlines"]])
    rows = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
    assert rows == ["a", *(f"'{value}" for value in dangerous), "plain", "-5", "", "true", 'quo"te', "two\nlines"]
