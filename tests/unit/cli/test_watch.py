"""--watch, Ctrl-C, and questions, in a real terminal and on a pipe (CLI-01)."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.fakes.controlplane import until
from tests.unit.cli.fleet import SMALL, Fleet
from tests.unit.cli.terminal import Terminal

CLEAR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Api:
    """An admin API whose answers a test changes. ``away``: it answers with a page."""

    def __init__(self) -> None:
        self.fleet = Fleet(SMALL)
        self.away = False
        self.asked = 0
        self.sent: list[bytes] = []
        self.resumed: list[str | None] = []
        self.released = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].removeprefix("/api/v1/")
                if path == "events" and "watch" in self.path:
                    self._stream()
                    return
                api.asked += 1
                body = api.fleet.answer(path) if path != "events" else {"events": []}
                data = b"<html>" if api.away else json.dumps(body).encode()
                self._head("text/html" if api.away else "application/json", len(data))
                self.wfile.write(data)

            def _head(self, kind: str, length: int | None = None) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()

            def _stream(self) -> None:
                api.resumed.append(self.headers.get("Last-Event-ID"))
                self._head("text/event-stream")
                if len(api.resumed) > 2:
                    api.released.wait(20)  # a stream in which nothing happens
                    return
                number = len(api.resumed)
                event = {
                    "id": f"e{number}",
                    "at": "2030-01-01T00:00:00Z",
                    "kind": "place",
                    "reason": f"reason {number}",
                }
                self.wfile.write(b": comment\n\n")
                self.wfile.write(f"id: e{number}\nevent: event\ndata: {json.dumps(event)}\n\n".encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    started = Api()
    yield started
    started.end()


def test_a_terminal_is_redrawn_in_place(api: Api) -> None:
    """What changes is seen; the window may change its size; Ctrl-C ends it with status 130
    and leaves the last picture."""
    with Terminal("--api", api.url, "ctl", "nodes", "--watch", "0.1") as terminal:
        first = terminal.until(lambda text: "\x1b[?1049h" in text and "a01" in text, "the other screen")
        assert "\u2588" in first, "bars are drawn as they are without --watch"
        api.fleet.nodes[0]["status"] = "lost"
        terminal.until(lambda text: "lost" in text, "the change")
        terminal.resize(40)
        narrow = terminal.until(lambda text: "location: r1" in text, "the location below its node")
        for line in CLEAR.sub("", narrow.rpartition("a01")[2]).splitlines():
            assert len(line) <= 40
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.ends() == 130
        assert "\x1b[?1049l" in terminal.text, "the screen of before is back"
        assert "location: r1" in terminal.text.rpartition("\x1b[?1049l")[2], "and the last picture stands below it"
        assert "Traceback" not in terminal.text and "Aborted" not in terminal.text


def test_an_api_that_goes_away_is_told_and_waited_for(api: Api) -> None:
    """The last picture stays; what is wrong stands above it; it goes away by itself."""
    with Terminal("--api", api.url, "ctl", "models", "-w", "0.1") as terminal:
        terminal.until(lambda text: "vision" in text, "the models")
        api.away = True
        told = terminal.until(lambda text: "trying again" in text and "vision" in text, "the words")
        assert "answered with a web page" in CLEAR.sub("", " ".join(told.split()))
        api.away = False
        terminal.until(
            lambda text: "vision" in text.rpartition("\x1b[H")[2] and "trying" not in text.rpartition("\x1b[H")[2],
            "health",
        )


def test_a_window_too_small_for_it(api: Api) -> None:
    """What does not fit is counted, not scrolled away."""
    with Terminal("--api", api.url, "ctl", "status", "-w", "0.1", lines=8) as terminal:
        terminal.until(lambda text: re.search(r"… \d+ more lines", text) is not None, "the count")


def test_a_pipe_gets_a_block_for_each_change(api: Api) -> None:
    """Ages and measurements are no change. -o json is a document a line."""
    command = [sys.executable, "-u", "-m", "llmgw.cli", "--api", api.url, "ctl", "nodes", "-o", "json", "-w", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        first = json.loads(process.stdout.readline())
        api.fleet.nodes[0]["status_seconds"] += 5
        api.fleet.nodes[0]["cpu"]["percent"] = 99.0
        before = api.asked
        until(lambda: api.asked > before + 2, "looks at what has only aged")
        api.fleet.nodes[1]["status"] = "lost"
        second = json.loads(process.stdout.readline())
        assert [node["status"] for node in first["nodes"]] == ["connected"] * 3 + ["unreachable"]
        assert [node["status"] for node in second["nodes"]] == ["connected", "lost", "connected", "unreachable"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stdout.read() == "" and "Traceback" not in process.stderr.read()


def test_events_go_on_where_the_connection_broke(api: Api) -> None:
    """API-04: with the id of the last one; nothing is shown twice."""
    with Terminal("--api", api.url, "ctl", "events", "--watch") as terminal:
        terminal.until(lambda text: "reason 2" in text, "the second event")
        until(lambda: len(api.resumed) == 3, "the third connection")
        assert api.resumed == [None, "e1", "e2"]
        assert terminal.text.count("reason 1") == 1
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.ends() == 130


@pytest.mark.parametrize(
    ("typed", "status", "words"), [("n\n", 1, "nothing was changed"), ("\x03", 130, ""), ("\x04", 1, "")]
)
def test_a_question_that_is_not_answered_with_yes(api: Api, typed: str, status: int, words: str) -> None:
    """REC-31: no, Ctrl-C and the end of the input change nothing."""
    with Terminal("--api", api.url, "stop") as terminal:
        terminal.until(lambda text: "[y/N]" in text, "the question")
        assert "4 ready replicas of 5 models" in " ".join(terminal.text.split())
        if typed == "\x03":
            os.kill(terminal.process.pid, signal.SIGINT)
        else:
            terminal.type(typed)
        assert terminal.ends() == status and words in terminal.text
        assert "Traceback" not in terminal.text


def test_where_watch_wants_seconds(api: Api) -> None:
    """CLI-01: a name behind --watch is not taken for a number without a word."""
    done = subprocess.run(
        [sys.executable, "-m", "llmgw.cli", "--api", api.url, "ctl", "explain", "--watch", "vision"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2 and "write --watch last" in done.stderr
