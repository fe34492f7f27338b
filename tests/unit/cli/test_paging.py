"""Whole lists, changes that are made once, and versions (API-04)."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import responses
from click.testing import CliRunner, Result
from responses.matchers import header_matcher, query_param_matcher

from llmgw.cli import main
from llmgw.cli.client import Client, Unreachable

URL = "http://127.0.0.1:7000"


def run(*arguments: str, url: str = URL) -> Result:
    return CliRunner().invoke(main, ["--api", url, *arguments])


def page(cursor: str | None, entries: list[int], following: Any = None) -> None:
    body: dict[str, Any] = {"keys": entries, **({} if following is None else {"next": following})}
    responses.get(f"{URL}/api/v1/keys", json=body, match=[query_param_matcher({"cursor": cursor} if cursor else {})])


@responses.activate
def test_a_list_is_whole() -> None:
    """API-04: every page is asked for, and programs get one list."""
    page(None, [1, 2], "a b&c")
    page("a b&c", [3], "d")
    page("d", [4])
    assert Client(URL).all("keys", "keys") == {"keys": [1, 2, 3, 4]}


@pytest.mark.parametrize("following", ["same", 7, {}])
@responses.activate
def test_pages_that_do_not_end(following: Any) -> None:
    """CLI-01: something that is not the API is not followed for ever."""
    responses.get(f"{URL}/api/v1/keys", json={"keys": [1], "next": following})
    with pytest.raises(Unreachable, match="pages that do not end"):
        Client(URL).all("keys", "keys")


@responses.activate
def test_events_that_are_not_all_are_told_as_such() -> None:
    """API-04: whichever page it was that the store did not answer for; programs get the word too."""
    event = {"at": "2030-01-01T00:00:00Z", "kind": "k", "reason": "r"}
    answers = [{"events": [event], "next": "a"}, {"events": [event], "incomplete": "only these: the store is away"}]
    for answer in answers * 2:
        responses.get(f"{URL}/api/v1/events", json=answer)
    done = run("ctl", "events")
    assert done.exit_code == 0 and done.stdout.count("2030-01-01") == 2
    assert done.stderr == "Not all events: only these: the store is away\n"
    done = run("ctl", "events", "-o", "json")
    assert json.loads(done.stdout) == {"events": [event] * 2, "incomplete": answers[1]["incomplete"]}


@responses.activate
def test_a_limit_is_over_all_pages() -> None:
    """API-04: no more is asked for than is shown."""
    entries = [{"at": "2030-01-01T00:00:00Z", "kind": "k", "reason": f"r{number}"} for number in range(3000)]

    def answer(request: Any) -> tuple[int, dict[str, str], str]:
        begin, limit = int(request.params.get("cursor", 0)), int(request.params["limit"])
        assert limit <= 1000, "the API's own limit"
        return 200, {}, json.dumps({"events": entries[begin : begin + limit], "next": str(begin + limit)})

    responses.add_callback("GET", f"{URL}/api/v1/events", callback=answer, content_type="application/json")
    done = run("ctl", "events", "--limit", "1500", "-o", "json")
    assert done.exit_code == 0 and len(json.loads(done.output)["events"]) == 1500
    assert "next" not in json.loads(done.output) and len(responses.calls) == 2


Act = Callable[[dict[str, Any], Any], None]


@pytest.fixture
def server() -> Iterator[Callable[[Act], str]]:
    """An API whose answers ``act(request, handler)`` gives; ``request`` has method, headers and body."""
    started = []

    def start(act: Act) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                act({"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}, self)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any

            def log_message(self, *_: object) -> None:
                pass

        listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        started.append(listening)
        return f"http://127.0.0.1:{listening.server_port}"

    yield start
    for listening in started:
        listening.shutdown()
        listening.server_close()


def answer(handler: Any, body: Any, status: int = 200) -> None:
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def sever(handler: Any) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


NODE = {"id": "n", "replicas": []}


def test_a_change_is_repeated_once_under_the_same_key(server: Callable[[Act], str]) -> None:
    """API-04: the connection broke after the change may have been made: the repeat has the same Idempotency-Key."""
    seen: list[dict[str, Any]] = []

    def act(request: dict[str, Any], handler: Any) -> None:
        seen.append(request)
        sever(handler) if len(seen) == 1 else answer(handler, NODE)

    done = run("ctl", "cordon", "n", "--reason", "r", url=server(act))
    assert done.exit_code == 0, done.output
    assert len(seen) == 2 and seen[0]["body"] == seen[1]["body"]
    keys = [request["headers"]["Idempotency-Key"] for request in seen]
    assert keys[0] == keys[1] and re.fullmatch(r"[0-9a-f-]{36}", keys[0])
    run("ctl", "cordon", "n", url=server(act))
    assert seen[2]["headers"]["Idempotency-Key"] != keys[0], "each change has its own"


def test_it_is_repeated_no_more_than_once(server: Callable[[Act], str]) -> None:
    """CLI-01: then it is told; exit status 3."""
    seen = []

    def act(request: dict[str, Any], handler: Any) -> None:
        seen.append(request)
        sever(handler)

    done = run("ctl", "cordon", "n", url=server(act))
    assert done.exit_code == 3 and len(seen) == 2 and "the connection broke" in done.output


def test_a_key_that_was_made_but_not_shown(server: Callable[[Act], str]) -> None:
    """SEC-03: the repeat is answered without the key, which nobody has: what to do is said."""
    made = {"id": "key-1", "name": "me", "state": "active"}

    def act(request: dict[str, Any], handler: Any) -> None:
        answer(handler, made, 201)

    done = run("keys", "create", "me", url=server(act))
    assert done.exit_code == 1 and not done.stdout
    assert "key-1 was made, but the connection broke" in done.output and "llmgw keys revoke key-1" in done.output


MODEL = {
    "name": "qwen",
    "ready": 1,
    "wanted": 1,
    "replicas": ["qwen-1"],
    "definition": {"scaling": {"min": 1, "max": 1}},
}


@responses.activate
def test_a_change_is_of_the_version_that_was_read() -> None:
    """API-04: what somebody else changed meanwhile is not overwritten, and that is told in words."""
    responses.get(f"{URL}/api/v1/models/qwen", json=MODEL, headers={"ETag": '"3"'})
    responses.put(
        f"{URL}/api/v1/models/qwen",
        status=412,
        json={"code": "precondition_failed", "message": "somebody changed it since you read it", "request_id": "1"},
        match=[header_matcher({"If-Match": '"3"'})],
    )
    done = run("ctl", "model", "set", "qwen", "scaling.max=4")
    assert done.exit_code == 1
    assert "somebody changed it since you read it" in done.output and "Look at it again" in done.output
    assert json.loads(responses.calls[1].request.body) == {"scaling": {"min": 1, "max": 4}}
