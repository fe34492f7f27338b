"""The commands that the documentation names exist, and each says what it does."""

import os
import re
import subprocess

import pytest

from tests.unit.project.tree import ROOT, documents

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))


def test_help_lists_every_target_with_one_line() -> None:
    """`make help` is where a newcomer starts."""
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert set(listed) == TARGETS
    assert len(listed) == len(done.stdout.splitlines())
    assert all(line[0].isupper() for line in listed.values())


def test_every_target_is_phony() -> None:
    """A file named ``test`` must not make `make test` do nothing."""
    assert set(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)) == TARGETS


def test_documents_name_only_targets_that_exist() -> None:
    """README and docs: every `make X`."""
    named = {
        (page.relative_to(ROOT), target)
        for page in documents()
        for target in re.findall(r"(?:^|[`$ ])make ([a-z][a-z0-9-]*)", "\n".join(_code(page.read_text())), re.MULTILINE)
    }
    assert {("make", target) for _, target in named if target not in TARGETS} == set()
    assert any(str(page) == "README.md" and target == "demo" for page, target in named)
    assert any(str(page) == "README.md" and target == "test" for page, target in named)


def _code(text: str) -> list[str]:
    """What is set as code: fenced blocks and inline."""
    return re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL) + re.findall(r"(`[^`\n]+`)", text)


@pytest.mark.parametrize("group", ["unit", "fleet", "sim", "e2e"])
def test_groups_of_tests_exist(group: str) -> None:
    """`make test` runs each; an empty one fails there (pytest's status 5), and here."""
    assert list((ROOT / "tests" / group).rglob("test_*.py"))
    assert re.search(rf"^GROUPS := .*\b{group}\b", MAKEFILE, re.MULTILINE)
    assert f"test-{group}" in TARGETS


@pytest.mark.parametrize(
    ("group", "arguments", "words"),
    [("no-such-group", "", "FAILED (status 4)"), ("unit", "--ignore-glob=*", "FAILED (no test was collected)")],
)
def test_an_empty_group_fails(group: str, arguments: str, words: str) -> None:
    """Seen to fail: a group without a test must not pass silently."""
    done = subprocess.run(
        ["tools/test.sh", group],
        cwd=ROOT,
        env={**os.environ, "ARGS": arguments},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert words in done.stdout
