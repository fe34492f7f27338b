"""What the command shows for 4 nodes and for 2,000, at 80 columns and at 120.

``python -m tests.unit.cli.test_pictures`` writes the pictures again, to be looked at.
"""

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import responses
from click.testing import CliRunner

from llmgw.cli import main
from tests.unit.cli.fleet import LARGE, SMALL, Fleet, page

FOLDER = Path(__file__).parent / "pictures"
URL = "http://127.0.0.1:7000"
COMMANDS = ("status", "nodes", "models", "replicas", "usage", "top", "explain vision-1")
SCREEN = 60
"""Lines of a picture; what follows is alike."""

CASES = [(size, columns, command) for size in (SMALL, LARGE) for columns in (80, 120) for command in COMMANDS]
FLEETS: dict[int, Fleet] = {}


def fleet(size: int) -> Fleet:
    return FLEETS.setdefault(size, Fleet(size))


def shown(size: int, columns: int | None, command: str, *options: str, encoding: str = "utf-8") -> str:
    """What ``ctl COMMAND`` writes for a fleet of that size."""
    asked: list[str] = []

    def answer(request: requests.PreparedRequest) -> tuple[int, dict[str, str], str]:
        parts = urlsplit(str(request.url))
        cursor = parse_qs(parts.query).get("cursor", [None])[0]
        path = parts.path.removeprefix("/api/v1/")
        asked.append(path)
        return 200, {}, json.dumps(page(fleet(size).answer(path), cursor))

    words = command.replace("vision-1", "vision") if size == SMALL else command
    with responses.RequestsMock(assert_all_requests_are_fired=False) as recorded:
        recorded.add_callback("GET", re.compile(f"{URL}/.*"), callback=answer, content_type="application/json")
        width = {"COLUMNS": str(columns)} if columns else {}
        done = CliRunner(charset=encoding).invoke(
            main, ["--api", URL, "ctl", *words.split(), *options], env=width, catch_exceptions=False
        )
    assert done.exit_code == 0, done.output
    if command == "nodes" and size == LARGE:
        assert len(asked) == 4, "every page was asked for"
    return done.output


def picture(size: int, columns: int, command: str) -> str:
    return "\n".join(shown(size, columns, command).splitlines()[:SCREEN]) + "\n"


def file(size: int, columns: int, command: str) -> Path:
    return FOLDER / f"{command.split(maxsplit=1)[0]}-{size}-{columns}.txt"


@pytest.mark.parametrize(("size", "columns", "command"), CASES)
def test_pictures(size: int, columns: int, command: str) -> None:
    """CLI-02, CLI-03: looked at by a person, and the same since."""
    assert picture(size, columns, command) == file(size, columns, command).read_text()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize(("size", "command"), [*((SMALL, command) for command in COMMANDS), (LARGE, "status")])
def test_nothing_is_wider_than_the_terminal(size: int, columns: int, command: str) -> None:
    """CLI-02: no line is broken by the terminal itself, and none ends in blanks."""
    lines = shown(size, columns, command).splitlines()
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if line != line.rstrip()]


def test_status_of_2000_nodes_is_one_screen() -> None:
    """CLI-02: 608 problems in so many lines that a person reads them, the worst first,
    each with all of its kind counted and the command that lists them."""
    text = shown(LARGE, 80, "status")
    problems = fleet(LARGE).status["problems"]
    assert len(problems) > 500 and len(text.splitlines()) <= SCREEN
    flat = " ".join(text.split())
    order = [flat.index(words) for words in ("store: ", "model: 10 (", "node: 5 lost", "node: 50 unreachable")]
    assert order == sorted(order)
    assert "node: 50 unreachable (a0008, a0013, a0014, … +47) llmgw ctl nodes --status unreachable" in flat
    counted = sum(int(number) for number in re.findall(r"^  \w+: (\d+) ", text, re.MULTILINE))
    assert counted + len(["the store"]) == len(problems)


def test_a_row_is_a_line_where_nobody_looks() -> None:
    """CLI-01: so that grep finds a node with everything that is wrong with it."""
    lines = shown(SMALL, None, "nodes").splitlines()
    assert len(lines) == 1 + SMALL
    (cordoned,) = [line for line in lines if line.startswith("a03")]
    assert "fan is failing" in cordoned
    (failed,) = [line for line in shown(SMALL, None, "replicas").splitlines() if "failed" in line]
    assert "CUDA error: out of memory" in failed


def test_bars_without_the_letters_for_them() -> None:
    """CLI-01: an encoding without blocks gets bars all the same."""
    assert re.search(r"memory +#+\.+ ", shown(SMALL, 80, "status", encoding="ascii"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in CASES:
        file(*each).write_text(picture(*each))
