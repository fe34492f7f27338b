"""What the files of the tree must not hold, and that the pages point somewhere."""

import re
from pathlib import Path

import pytest

from tests.unit.project.tree import ROOT, documents, project_files, text_files

HOSTS = re.compile(r"\b(?:https?|wss?|ftp)://(?:[^\s/@'\"`]*@)?(\[[0-9A-Fa-f:.]*\]|[A-Za-z0-9.{}_$-]+)")
KNOWN_HOSTS = {
    # placeholders and loopback
    "127.0.0.1",
    "[::1]",
    "localhost",
    "example.com",
    "example.org",
    # names that are identifiers, not places to fetch from
    "json-schema.org",
    # where hf: sources come from unless a setting says otherwise
    "huggingface.co",
    # documents that pages refer to
    "keepachangelog.com",
    "semver.org",
    "www.apache.org",
}
BUILD_PATHS = re.compile(r"(?<![\w.-])/(?:work|root)/[\w.]|/home/\w+/|/opt/(?:pypi|wheels)\b")
LICENCES = "controlplane/api/static/swagger-ui/LICENSE"
"""Of what others wrote, word by word."""

SELF = {"tests/unit/project/test_tree.py", "LICENSE"}


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """Absolute paths of a checkout work on one machine only."""
    found = []
    for file in text_files():
        if _name(file) in SELF:
            continue
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if BUILD_PATHS.search(line):
                found.append(f"{_name(file)}:{number}: {line.strip()[:120]}")
    assert found == []


def test_files_name_only_known_hosts() -> None:
    """A package index, a mirror or a private host in a file ties the project to one site."""
    found = []
    for file in text_files():
        if _name(file) in SELF or _name(file).startswith(LICENCES):
            continue
        for host in HOSTS.findall(file.read_text(errors="replace")):
            bare = host.rstrip(".").lower()
            placeholder = any(mark in bare for mark in "{}$") or "." not in bare.strip("[]")
            reserved = bare.endswith(
                (".example", ".example.com", ".example.org", ".test", ".invalid", ".local", ".internal")
            )
            loopback = re.fullmatch(r"127\.\d+\.\d+\.\d+|0\.0\.0\.0|10\.\d+\.\d+\.\d+|192\.0\.2\.\d+", bare)
            if bare not in KNOWN_HOSTS and not (placeholder or reserved or loopback):
                found.append(f"{_name(file)}: {host}")
    assert found == []


def test_no_file_is_large() -> None:
    """Models, engines and recordings are made or fetched, not committed."""
    assert [_name(file) for file in project_files() if file.stat().st_size > 512 * 1024] == []


def test_scripts_can_be_run() -> None:
    """What starts with #! has its executable bit."""
    found = []
    for file in project_files():
        with file.open("rb") as stream:
            if stream.read(2) == b"#!" and not file.stat().st_mode & 0o100:
                found.append(_name(file))
    assert found == []


@pytest.mark.parametrize("page", documents(), ids=_name)
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    """Relative links, and the headings they name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{_name(page)} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
            assert heading in slugs, f"{_name(page)} links to {target}"


def test_changelog_knows_the_version() -> None:
    """Keep a Changelog: an Unreleased section, and one per release."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[Unreleased\]", text, re.MULTILINE)
