"""Looking for a source before a model is added (CAT-09)."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controlplane.catalog.source import (
    SourceOptions,
    SourceReport,
    check_source,
    source_options,
)
from controlplane.catalog.web import WebOptions
from controlplane.settings import load
from tests.unit.controlplane.catalog.server import Names, Request, Server, answer, listing, redirect
from tests.unit.project.tree import ROOT

NAMES = {"hub.test": ["127.0.0.1"], "files.test": ["127.0.0.1"], "inside.test": ["10.0.0.5"]}
FILES = [
    {"rfilename": "README.md", "size": 1000},
    {"rfilename": "q4.gguf", "size": 4 * 2**30},
    {"rfilename": "big-00001-of-00002.gguf", "size": 3 * 2**30},
    {"rfilename": "big-00002-of-00002.gguf", "size": 2 * 2**30},
    {"rfilename": "model.safetensors", "size": 2**30, "lfs": {"size": 2**30}},
]
MODEL = {"id": "org/name", "sha": "0" * 40, "gated": False, "private": False, "siblings": FILES}


def hub(server: Server, source: str, **given: Any) -> SourceReport:
    """Check against ``server`` as the hub."""
    web = WebOptions(timeout=5, resolve=Names(NAMES), **given.pop("web", {}))
    return check_source(source, SourceOptions(f"http://hub.test:{server.port}", web=web, **given))


def url(server: Server, certificate: Path, path: str = "/m.gguf", **given: Any) -> SourceReport:
    """Check a file of ``server``."""
    web = WebOptions(**{"private": True, "timeout": 5, "resolve": Names(NAMES), "ca_file": certificate, **given})
    return check_source(f"https://files.test:{server.port}{path}", SourceOptions(web=web))


# ---------------------------------------------------------------- hf:


def test_a_repository_is_found_with_its_size(server: Server) -> None:
    """It exists, it is reachable, this large, at this commit. The hub that a setting names
    may be inside the site."""
    server.routes["/api/models/org/name"] = listing(MODEL)
    found = hub(server, "hf:org/name")
    assert found == SourceReport(
        "hf:org/name", "exists", "org/name has 5 files, 10.0 GB", 10 * 2**30 + 1000, 5, "0" * 40
    )
    assert found.usable
    assert server.requests[0].path == "/api/models/org/name?blobs=true"


@pytest.mark.parametrize(
    ("source", "size", "files"),
    [("hf:org/name:q4.gguf", 4, 1), ("hf:org/name:big-00001-of-00002.gguf", 5, 2)],
)
def test_one_gguf_file_counts_alone_or_with_its_parts(server: Server, source: str, size: int, files: int) -> None:
    """A split file is fetched whole."""
    server.routes["/api/models/org/name"] = listing(MODEL)
    found = hub(server, source)
    assert (found.state, found.size_bytes, found.files) == ("exists", size * 2**30, files)


@pytest.mark.parametrize(
    ("siblings", "words"),
    [
        (FILES, "org/name has no file q5.gguf; did you mean q4.gguf?"),
        (
            [{"rfilename": f"dir/{i}-unlike-anything.gguf"} for i in range(7)],
            "; it has dir/0-unlike-anything.gguf, dir/1-unlike-anything.gguf, dir/2-unlike-anything.gguf",
        ),
        ([{"rfilename": "q6.gguf\x1b[2J\n"}, {"rfilename": "q7\u202e.gguf"}], "org/name holds no .gguf file"),
        ([{"rfilename": "model.safetensors"}], "org/name holds no .gguf file"),
    ],
)
def test_a_file_that_is_not_there_is_told_with_those_that_are(server: Server, siblings: Any, words: str) -> None:
    """A remedy, not only a refusal."""
    server.routes["/api/models/org/name"] = listing({**MODEL, "siblings": siblings})
    found = hub(server, "hf:org/name:q5.gguf")
    assert found.state == "missing"
    assert words in found.words
    assert not found.usable


def test_a_repository_without_weights_is_missing_them(server: Server) -> None:
    """A data set, or a page."""
    server.routes["/api/models/org/name"] = listing({**MODEL, "siblings": [{"rfilename": "README.md", "size": 1}]})
    assert hub(server, "hf:org/name").words == "org/name holds no weights (no .safetensors, .gguf, .bin file)"


def test_a_revision_is_asked_for(server: Server) -> None:
    """Branches with a slash too."""
    server.routes["*"] = listing(MODEL)
    hub(server, "hf:org/name@refs/pr/1:q4.gguf")
    assert server.requests[0].path == "/api/models/org/name/revision/refs%2Fpr%2F1?blobs=true"


def test_a_size_that_is_not_known_is_not_guessed(server: Server) -> None:
    """Rule 2: unknown is never zero, nor the rest of the sum."""
    siblings = [*FILES, {"rfilename": "other.bin"}, {"rfilename": "odd.bin", "size": -1}, {"size": 3}, "x", None]
    server.routes["/api/models/org/name"] = listing({**MODEL, "siblings": siblings})
    found = hub(server, "hf:org/name")
    assert (found.state, found.size_bytes, found.files) == ("exists", None, 7)


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (answer(401), "missing", "does not exist on the hub, or is private, and no token is set"),
        (answer(404), "missing", "org/name does not exist on the hub"),
        (answer(404, headers={"X-Error-Code": "RevisionNotFound"}), "missing", "org/name has no revision v9"),
        (answer(403), "unreachable", "org/name is gated: accept its terms"),
        (answer(429), "unreachable", "asks to wait"),
        (answer(500), "unreachable", "the hub answered 500"),
        (answer(200, b"<html>"), "unreachable", "hub.test answered with something that is not JSON"),
        (answer(200, b"[" * 100_000), "unreachable", "not JSON"),
        (answer(200, b"[]"), "unreachable", "no listing"),
        (answer(200, b'{"siblings": 3}'), "unreachable", "no listing"),
        (b"", "unreachable", "hub.test closed the connection without an answer"),
        (listing({**MODEL, "disabled": True}), "unreachable", "was disabled"),
        (redirect("http://inside.test/"), "unreachable", "is 10.0.0.5, which is inside the site"),
    ],
)
def test_what_a_hub_can_answer(server: Server, given: bytes, state: str, words: str) -> None:
    """Each with its state and what to do."""
    server.routes["*"] = given
    found = hub(server, "hf:org/name@v9")
    assert found.state == state
    assert words in found.words
    assert not found.usable


def test_a_repository_that_moved_is_followed(server: Server) -> None:
    """The hub redirects old names."""
    server.routes |= {
        "/api/models/old/name": redirect("/api/models/org/name?blobs=true", 307),
        "/api/models/org/name": listing(MODEL),
    }
    assert hub(server, "hf:old/name").state == "exists"


@pytest.mark.parametrize(
    ("status", "state"), [(401, "unreachable"), (403, "unreachable"), (302, "exists"), (200, "exists")]
)
def test_a_gated_repository_is_usable_only_with_access(server: Server, tmp_path: Path, status: int, state: str) -> None:
    """Its listing is open, its files are not: one is asked for, with the token, and where it
    would be fetched from is not."""
    token = tmp_path / "token"
    token.write_text("hf_token\n")
    token.chmod(0o600)
    headers = {"Location": "http://inside.test/"} if status == 302 else {}
    server.routes |= {
        "/api/models/org/name": listing({**MODEL, "gated": "manual"}),
        "/org/name/resolve/main/README.md": answer(status, headers=headers),
    }
    found = hub(server, "hf:org/name", token_file=token)
    assert found.state == state
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer hf_token"] * 2
    assert "hf_token" not in found.words


def test_a_token_that_others_can_read_is_not_used(server: Server, tmp_path: Path) -> None:
    """SEC-03: with the command that mends it, and nothing is asked."""
    token = tmp_path / "token"
    token.write_text("hf_token")
    token.chmod(0o644)
    found = hub(server, "hf:org/name", token_file=token)
    assert found.state == "unreachable"
    assert "chmod 600" in found.words
    assert server.requests == []


def test_a_huge_listing_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded like everything from outside."""
    monkeypatch.setattr("controlplane.catalog.source.MAX_LISTING", 1000)
    server.routes["*"] = listing(MODEL | {"siblings": FILES * 100})
    assert "more than 1000 bytes" in hub(server, "hf:org/name").words


# ---------------------------------------------------------------- https:


def test_a_file_is_found_with_its_size(secure: Server, certificate: Path) -> None:
    """By HEAD alone: nothing is fetched."""
    secure.routes["/m.gguf"] = answer(headers={"Content-Length": "3221225472"})
    found = url(secure, certificate)
    assert (found.state, found.size_bytes, found.files) == ("exists", 3 * 2**30, 1)
    assert found.words == "files.test has it, 3.0 GB"
    assert [request.method for request in secure.requests] == ["HEAD"]


@pytest.mark.parametrize("refusal", [400, 403, 405, 501])
def test_a_server_that_knows_no_head_is_asked_for_a_byte(secure: Server, certificate: Path, refusal: int) -> None:
    """And tells the size with it."""

    def script(request: Request) -> bytes:
        if request.method == "HEAD":
            return answer(refusal)
        assert request.headers["range"] == "bytes=0-0"
        return answer(206, b"G", {"Content-Range": "bytes 0-0/1073741824"})

    secure.routes["/m.gguf"] = script
    assert url(secure, certificate).size_bytes == 2**30


@pytest.mark.parametrize("length", ["", "-5", "many", "1e9", "9" * 40, "12, 12"])
def test_a_length_that_is_no_number_is_unknown(secure: Server, certificate: Path, length: str) -> None:
    """Rule 2."""
    secure.routes["/m.gguf"] = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()
    found = url(secure, certificate)
    assert (found.state, found.size_bytes) == ("exists", None)
    assert "does not say how large" in found.words


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (answer(404), "missing", "files.test has no such file"),
        (answer(410), "missing", "no such file"),
        (answer(401), "unreachable", "without a login"),
        (answer(403), "unreachable", "without a login"),
        (answer(503), "unreachable", "files.test answered 503"),
        (answer(headers={"Content-Type": "text/html; charset=utf-8"}), "missing", "a web page, not"),
        (redirect("https://inside.test/m.gguf"), "exists", ""),
    ],
)
def test_what_a_file_server_can_answer(secure: Server, certificate: Path, given: bytes, state: str, words: str) -> None:
    """Each with its state; a redirect inside the site is not followed unless allowed."""
    secure.routes["/m.gguf"] = given
    if words:
        found = url(secure, certificate)
        assert (found.state, words in found.words) == (state, True)
    else:
        names = Names({"files.test": ["127.0.0.1"], "inside.test": ["10.0.0.5"]})
        found = url(secure, certificate, private=False, trusted=frozenset({"files.test"}), resolve=names)
        assert found.state == "unreachable"
        assert "is 10.0.0.5, which is inside the site" in found.words


def test_an_address_inside_is_refused_unless_allowed(secure: Server, certificate: Path) -> None:
    """SEC-04: and says which setting allows it."""
    secure.routes["/m.gguf"] = answer()
    found = url(secure, certificate, private=False)
    assert found.state == "unreachable"
    assert "files.test is 127.0.0.1, which is inside the site" in found.words
    assert "sources.private" in found.words
    assert secure.requests == []


# ---------------------------------------------------------------- the others


def test_a_file_on_nodes_is_unknown_here_and_never_refused(tmp_path: Path) -> None:
    """The control plane need not be a node."""
    found = check_source(f"file:{tmp_path}/none.gguf", SourceOptions())
    assert (found.state, found.size_bytes, found.usable) == ("unknown", None, True)
    (tmp_path / "m.gguf").write_bytes(b"x" * 2**20)
    found = check_source(f"file:{tmp_path}/m.gguf", SourceOptions())
    assert (found.state, found.size_bytes, found.words) == ("exists", 2**20, "is on this machine too, 1.0 MB")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/config.json").write_text("{}")
    (tmp_path / "dir/model.safetensors").write_bytes(b"x" * 998)
    found = check_source(f"file:{tmp_path}/dir", SourceOptions())
    assert (found.state, found.size_bytes, found.files) == ("exists", 1000, 2)


def test_what_is_no_weights_is_not_told_about(tmp_path: Path) -> None:
    """A check must not tell whether any file of this machine exists, or how large it is."""
    (tmp_path / "secret").write_text("x")
    (tmp_path / "dir").mkdir()
    for name in ("secret", "dir", "none"):
        found = check_source(f"file:{tmp_path}/{name}", SourceOptions())
        assert (found.state, found.size_bytes) == ("unknown", None)


@pytest.mark.parametrize(
    ("source", "state"), [("sim:", "exists"), ("nonsense", "missing"), ("mirror:x", "missing"), ("", "missing")]
)
def test_a_source_always_gets_a_report(source: str, state: str) -> None:
    """One function for every door: it raises nothing."""
    found = check_source(source, SourceOptions())
    assert found.state == state
    assert found.words


def test_settings_say_where_to_look(tmp_path: Path) -> None:
    """TST-7: from a settings file to what is asked."""
    file = tmp_path / "controlplane.yaml"
    file.write_text(
        "sources: {hf_endpoint: 'http://hub.test:8080/', hf_token_file: /etc/t, ca_file: /etc/ca.pem, timeout: 3s}"
    )
    made = source_options(load(file), private=True)
    assert (made.endpoint, made.token_file) == ("http://hub.test:8080", Path("/etc/t"))
    assert (made.web.private, made.web.timeout, made.web.ca_file) == (True, 3.0, Path("/etc/ca.pem"))


def test_it_runs_off_a_gevent_hub(server: Server) -> None:
    """As in the control plane: patched, in the hub's threadpool, with the hub free meanwhile."""
    server.routes["/api/models/org/name"] = listing(MODEL)
    code = f"""
from gevent import monkey; monkey.patch_all()
import gevent
from controlplane.catalog.source import SourceOptions, check_source
from controlplane.catalog.web import WebOptions
from controlplane.offhub import off_hub
ticks = []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.001)
ticker = gevent.spawn(tick)
found = off_hub(check_source, "hf:org/name", SourceOptions("http://127.0.0.1:{server.port}", web=WebOptions(timeout=5)))
print(found.state, found.size_bytes, len(ticks) > 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["exists", str(10 * 2**30 + 1000), "True"]
