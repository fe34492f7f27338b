"""The command in odd surroundings: no terminal, no room, other people's text."""

import io
import json
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import responses
from click.testing import CliRunner, Result

from llmgw.cli import main
from llmgw.cli.output import folded
from tests.unit.cli.terminal import Terminal

URL = "http://127.0.0.1:7000"
STEERS = "\x1b]0;own\x07 \u009b31m \u202e \u2028"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"LLMGW_API": URL})


def events(**changes: Any) -> dict[str, Any]:
    return {"events": [{"at": "2030-01-01T00:00:00Z", "kind": "failed", "reason": f"é {STEERS}", **changes}]}


def steers(text: str) -> set[str]:
    return {character for character in text if character in STEERS} - {" "} - set("]0;own31m")


@pytest.mark.parametrize("form", ["table", "json", "yaml"])
@responses.activate
def test_text_of_others_does_not_steer_the_terminal(form: str) -> None:
    """CLI-04: an engine's last words pass through agents, the API and the command."""
    responses.get(f"{URL}/api/v1/events", json=events())
    result = run("ctl", "events", "-o", form)
    assert result.exit_code == 0 and not steers(result.output)
    if form == "json":
        assert json.loads(result.output) == events(), "escaped, not changed"


@responses.activate
def test_refusals_do_not_steer_the_terminal() -> None:
    """CLI-04: whatever answers at the address."""
    body = {"code": STEERS, "message": STEERS, "faults": [{"path": STEERS, "message": STEERS}]}
    responses.get(f"{URL}/api/v1/log-level", json=body, status=400)
    result = run("ctl", "log-level")
    assert result.exit_code == 1 and not steers(result.output)


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["ctl", "nodes"], {"nodes": 5}),
        (["ctl", "nodes"], {"nodes": [{"id": "n"}]}),
        (["ctl", "status"], {"problems": 5}),
        (["ctl", "events"], {"events": [None]}),
        (["keys", "list"], {"keys": "text"}),
    ],
)
@responses.activate
def test_answers_of_another_shape(arguments: list[str], body: Any) -> None:
    """CLI-01: another program's API, or one of another version: words and status 3, no traceback."""
    responses.get(f"{URL}/api/v1/{arguments[1] if arguments[0] == 'ctl' else 'keys'}", json=body)
    result = run(*arguments)
    assert result.exit_code == 3, result.output
    assert "cannot be read" in result.output and "LLMGW_API" in result.output
    assert isinstance(result.exception, SystemExit)


@responses.activate
def test_not_a_number_is_not_json() -> None:
    """CLI-04: what is written as JSON can be read as JSON."""
    responses.get(f"{URL}/api/v1/events", body='{"events": [NaN]}', content_type="application/json")
    assert run("ctl", "events", "-o", "json").exit_code == 3


@pytest.mark.parametrize(
    ("columns", "name"), [("40", "m"), ("80", "x" * 64), ("1000", "x" * 300), ("80", "m"), ("7", "m")]
)
@responses.activate
def test_nothing_is_cut_off(columns: str, name: str) -> None:
    """CLI-02: a narrow terminal or a long name hides neither state nor reason."""
    model = {"name": name, "state": "unplaceable", "ready": 0, "wanted": 1, "scaling": {"mode": "on-demand"}}
    responses.get(f"{URL}/api/v1/models", json={"models": [{**model, "reason": "needs 3 more cores"}]})
    result = CliRunner().invoke(main, ["ctl", "models"], env={"LLMGW_API": URL, "COLUMNS": columns})
    shown = "".join(result.output.split())
    for text in (name, "unplaceable", "0/1", "on-demand", "needs3morecores"):
        assert text in shown
    assert max(map(len, result.output.splitlines())) <= int(columns)
    assert ("MODEL" in result.output.splitlines()[0]) == (
        columns == "1000" or (columns, name) in (("80", "m"), ("40", "m"))
    )


def test_what_is_waited_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-02: a control plane that is halted takes connections and says nothing; the wait has an end."""
    halted = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{halted.getsockname()[1]}"
    monkeypatch.setattr("llmgw.cli.ctl.status.PATIENCE", 0.2)
    quiet = CliRunner().invoke(main, ["--api", url, "status"])
    assert quiet.exit_code == 3 and "does not answer in time" in quiet.output and "waiting" not in quiet.output
    with Terminal("--api", url, "status") as terminal:
        terminal.until(lambda text: f"waiting for {url} to answer …" in text, "the notice")
        halted.close()
        assert terminal.ends() == 3
    assert terminal.text.index("\r\x1b[K") < terminal.text.index("Error: the API at")


def test_sentences_are_broken_between_words() -> None:
    """CLI-02: a refusal on a terminal too; an indented line stays indented, a word stays whole."""
    with Terminal("--api", "http://127.0.0.1:1", "ctl", "catalog", "reload", columns=50) as terminal:
        assert terminal.ends() == 3
    lines = terminal.text.splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 50
    assert lines[0].startswith("Error: the API at ")
    assert "Start it with: llmgw server." in " ".join(lines)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("ctl node here", "show here"),
        ("ctl node shwo", "show"),
        ("ctl user zoe", "show zoe"),
        ("expain", "ctl explain"),
    ],
)
def test_what_may_have_been_meant(words: str, hint: str) -> None:
    """CLI-01: a name where a command belongs is most likely one to be shown."""
    done = run(*words.split())
    assert done.exit_code == 2 and f"Did you mean {hint!r}?" in done.output


@pytest.mark.parametrize("group", [[], ["ctl"], ["ctl", "model"]])
def test_lists_of_commands_are_whole(group: list[str]) -> None:
    """DOC-03: what a command does is not cut off where the terminal is narrow."""
    shown = CliRunner().invoke(main, [*group, "--help"], terminal_width=80).output
    assert "..." not in shown.partition("Commands:")[2].partition("Example:")[0]
    assert max(map(len, shown.splitlines())) <= 80


def test_folded() -> None:
    """Nothing is lost; what others fold or search gets the line as it is."""
    pipe, screen = io.StringIO(), Screen()
    text = "  file:/srv/" + "m" * 90 + ": is there too\n\nand a sentence of words" + " that go on" * 12
    assert folded(text, pipe) == text
    shown = folded(text, screen, 7).split("\n")
    assert shown[0] == "  file:/srv/" + "m" * 90 + ":" and shown[1] == "  is there too" and shown[2] == ""
    assert " ".join(shown[3:]) == text.rpartition("\n")[2]


class Screen(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(events()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize(
    ("redirect", "status", "words"),
    [
        ("> /dev/full", 1, "cannot write: No space left on device"),
        (">&-", 0, ""),
        ("| true", 0, ""),
        ("", 0, "\\xe9"),
    ],
)
def test_places_to_write_to(server: str, redirect: str, status: int, words: str) -> None:
    """CLI-04: a full disk, a closed output, a reader that left, an encoding without the letter."""
    command = f'"{sys.executable}" -m llmgw.cli ctl events {redirect}'
    environment = {**os.environ, "LLMGW_API": server, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment, timeout=30, check=False
    )
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
