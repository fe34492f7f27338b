"""Every dependency is locked by hash and has its reason."""

import re
import tomllib

from tests.unit.project.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REASONS = (ROOT / "docs/contributing/dependencies.md").read_text()
LOCK = (ROOT / "requirements.lock").read_text()


def _name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _declared() -> set[tuple[str, str]]:
    groups = {"base": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {(group, _name(requirement)) for group, requirements in groups.items() for requirement in requirements}


def _rows() -> list[list[str]]:
    lines = [line for line in REASONS.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_dependency_has_its_reason_and_every_reason_its_dependency() -> None:
    """A dependency nobody can defend is removed."""
    documented = {(group, _name(row[0].strip("`"))) for row in _rows() for group in row[1].split(", ")}
    assert documented == _declared()
    for row in _rows():
        assert len(row[2]) > 20, f"{row[0]}: a reason is a sentence"


def test_every_dependency_is_locked_with_hashes() -> None:
    """DEP-04: versions and hashes of everything, also of what builds the package."""
    locked = {_name(line) for line in re.findall(r"^(\S+==\S+)", LOCK, re.MULTILINE)}
    assert {name for _, name in _declared()} <= locked
    assert "setuptools" in locked
    entries = re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE)
    for entry in entries:
        if entry.strip() and not entry.startswith("#"):
            assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_lock_names_no_index_and_no_path() -> None:
    """It works wherever the packages come from."""
    assert not re.search(r"^-|://|file:|@ ", LOCK, re.MULTILINE)
