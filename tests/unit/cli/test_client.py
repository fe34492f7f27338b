"""What the command says when the API is away, or when something else answers."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
import responses
from click.testing import CliRunner, Result

from llmgw.cli import main, parts

URL = "http://127.0.0.1:7000"
STATUS = f"{URL}/api/v1/log-level"


def run(*arguments: str, api: str = URL) -> Result:
    return CliRunner().invoke(main, arguments, env={"LLMGW_API": api})


def said(result: Result) -> str:
    assert "Traceback" not in result.output and isinstance(result.exception, SystemExit | None)
    return " ".join(result.output.split())


def test_nobody_is_there() -> None:
    """CLI-01: which address, why, and what to do; exit status 3."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    result = run("ctl", "status", api=address)
    assert result.exit_code == 3
    assert f"the API at {address} does not answer (connection refused)" in said(result)
    assert "llmgw server" in result.output and "--api" in result.output


@responses.activate
def test_a_scope_that_is_missing() -> None:
    """CLI-01: people are told the command that makes it, not the API's path."""
    words = "there is no scope 'acme': an administrator makes it with POST /api/v1/scopes"
    refusal = {"code": "validation_failed", "message": "refused", "faults": [{"path": "scope", "message": words}]}
    responses.post(f"{URL}/api/v1/keys", status=422, json=refusal)
    result = run("keys", "create", "k", "--scope", "acme")
    assert result.exit_code == 1 and "POST" not in result.output
    assert "scope: there is no scope 'acme': an administrator makes it with llmgw ctl scope add" in said(result)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (requests.exceptions.ConnectTimeout(), "does not answer in time"),
        (requests.exceptions.ReadTimeout(), "does not answer in time"),
        (requests.exceptions.ConnectionError("Connection reset by peer"), "the connection broke"),
        (requests.exceptions.ConnectionError("[Errno -2] Name or service not known"), "no connection"),
        (requests.exceptions.InvalidURL(), "no connection"),
    ],
)
@responses.activate
def test_failures_of_the_connection(error: Exception, words: str) -> None:
    """CLI-01: each in words."""
    responses.get(STATUS, body=error)
    result = run("ctl", "log-level")
    assert result.exit_code == 3 and words in said(result)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (200, "<!DOCTYPE html><html>Welcome to nginx!</html>", "text/html", "answered with a web page (status 200)"),
        (502, "<html>Bad Gateway</html>", "text/html", "answered with a web page (status 502)"),
        (302, "", "text/plain", "sends elsewhere (status 302, to nowhere), as a login page"),
        (200, "", "", "answered with something else"),
        (200, "[1, 2]", "application/json", "not as the admin API"),
        (200, '{"level"', "application/json", "not as the admin API"),
        (200, "[" * 100000, "application/json", "not as the admin API"),
        (200, '{"hello": "world"}', "application/json", "not as a control plane of this version does"),
        (404, '{"detail": "Not Found"}', "application/json", "not as a control plane of this version does"),
        (200, b"\xff\xfe\x00", "application/octet-stream", "not as the admin API"),
    ],
)
@responses.activate
def test_something_else_answers(status: int, body: str, kind: str, words: str) -> None:
    """CLI-01: a page is named as one; exit status 3."""
    responses.get(STATUS, status=status, body=body, content_type=kind)
    result = run("ctl", "log-level")
    assert result.exit_code == 3 and words in said(result)
    assert "--api" in result.output


@responses.activate
def test_a_refusal_with_odd_parts_is_still_told() -> None:
    """CLI-01: faults that are no faults do not break the command."""
    responses.get(STATUS, status=503, json={"code": "busy", "message": "later", "faults": [7, {"message": "m"}]})
    result = run("ctl", "log-level")
    assert result.exit_code == 1 and "later" in result.output and "(busy, request -)" in result.output


@responses.activate
def test_what_the_api_says_cannot_steer_the_terminal() -> None:
    """SEC-03: control characters in names and reasons are shown as question marks."""
    responses.get(
        f"{URL}/api/v1/events",
        json={
            "events": [{"at": "2026-01-01T00:00:00", "kind": "x", "reason": "\x1b[31mred\x07\r\nline [bold]b[/bold]"}]
        },
    )
    result = run("ctl", "events")
    assert result.exit_code == 0
    assert "?[31mred???line [bold]b[/bold]" in result.output and "\x1b" not in result.output


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "ends", "words"),
    [
        (b"", False, "does not answer in time"),
        (HEAD + b'{"level"', False, "does not answer in time"),
        (HEAD + b'{"level": "info"}', True, "does not answer"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", True, "does not answer"),
    ],
    ids=["nothing", "half an answer", "a short answer", "another protocol"],
)
def test_a_server_that_says_too_little(monkeypatch: pytest.MonkeyPatch, sent: bytes, ends: bool, words: str) -> None:
    """CLI-01: nobody waits for ever, and no traceback comes of it."""
    monkeypatch.setattr("llmgw.cli.client.READ", 0.2)
    kept = []

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.recv(65536)
        connection.sendall(sent)
        if ends:
            connection.close()
        kept.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve, args=(server,))
        serving.start()
        result = run("ctl", "log-level", api=f"http://127.0.0.1:{server.getsockname()[1]}")
        serving.join()
    kept[0].close()
    assert result.exit_code == 3 and words in said(result)


@responses.activate
def test_a_login_page_that_is_sent_elsewhere() -> None:
    """CLI-01: it is not followed, so the token is not either, and where it leads is said."""
    responses.get(STATUS, status=302, headers={"Location": "https://sso.example.org/login?\x1b[31m"})
    result = run("ctl", "log-level")
    assert result.exit_code == 3 and len(responses.calls) == 1
    assert (
        "sends elsewhere (status 302, to https://sso.example.org/login?" in said(result) and "\x1b" not in result.output
    )


@contextmanager
def serving(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port on which ``serve`` gets the connections, one after the other."""

    def loop() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=loop)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_an_answer_that_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-01: a byte now and then keeps nobody waiting for ever, though no single read takes long."""
    monkeypatch.setattr("llmgw.cli.client.WHOLE", 0.3)

    def trickle(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(HEAD.replace(b"100", b"1000000"))
        while True:
            connection.sendall(b" ")
            connection.settimeout(0.02)
            with suppress(TimeoutError):
                if not connection.recv(1):
                    return

    with serving(trickle) as port:
        result = run("ctl", "log-level", api=f"http://127.0.0.1:{port}")
    assert result.exit_code == 3 and "does not answer in time" in said(result)


def test_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-01: more than any fleet has is not kept in memory."""
    monkeypatch.setattr("llmgw.cli.client.MAX_ANSWER", 1_000_000)

    def flood(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(HEAD.replace(b"100", b"100000000000"))
        while True:
            connection.sendall(b"x" * 65536)

    with serving(flood) as port:
        result = run("ctl", "log-level", api=f"http://127.0.0.1:{port}")
    assert result.exit_code == 3 and "is larger than 1000000 bytes" in said(result)


def test_https_where_there_is_none() -> None:
    """CLI-01: the other scheme is named."""

    def plain(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with serving(plain) as port:
        result = run("ctl", "log-level", api=f"https://127.0.0.1:{port}")
    assert result.exit_code == 3 and "does not speak TLS: is it http:// there?" in said(result)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that is its own authority; the key is in the file too."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(file), "-out", f"{file}.crt", "-days", "2", "-subj", "/CN=test"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


@contextmanager
def over_tls(certificate: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(65536)
            secure.sendall(HEAD.replace(b"100", b"17") + b'{"level": "info"}')

    with serving(serve) as port:
        yield port


def test_tls_with_an_authority_of_ones_own(certificate: Path, tmp_path: Path) -> None:
    """CLI-01, SEC-01: --ca or LLMGW_CA trusts it; without, the remedy is said."""
    authority = f"{certificate}.crt"
    with over_tls(certificate) as port:
        url = f"https://127.0.0.1:{port}"
        assert run("ctl", "log-level", "--ca", authority, api=url).output == "info\n"
        assert run("--ca", authority, "ctl", "log-level", api=url).output == "info\n"
        done = CliRunner().invoke(main, ["ctl", "log-level"], env={"LLMGW_API": url, "LLMGW_CA": authority})
        assert done.output == "info\n"
        unknown = run("ctl", "log-level", api=url)
        assert unknown.exit_code == 3 and "--ca FILE or LLMGW_CA" in said(unknown)
        other = run("ctl", "log-level", "--ca", authority, api=f"https://localhost:{port}")
        assert other.exit_code == 3 and "is for another name" in said(other)
        bare = run("ctl", "log-level", api=f"http://127.0.0.1:{port}")
        assert bare.exit_code == 3 and "if it speaks TLS, write https://" in said(bare)
        (tmp_path / "none.pem").write_text("no certificate")
        broken = run("ctl", "log-level", "--ca", str(tmp_path / "none.pem"), api=url)
        assert broken.exit_code == 3 and "holds no certificate in PEM" in said(broken)
    missing = run("ctl", "log-level", "--ca", str(tmp_path / "missing.pem"), api=url)
    assert missing.exit_code == 2 and "cannot be read" in said(missing)


@pytest.mark.parametrize(
    "url", ["http://ada:secret@127.0.0.1:7000", "https://x/?a=b", "http://127.0.0.1:7000/#x", "http://:1"]
)
def test_addresses_that_are_none(url: str) -> None:
    """CLI-01: exit status 2; what may be a password is not repeated."""
    result = run("ctl", "log-level", api=url)
    assert result.exit_code == 2 and "is not an address such as" in said(result) and "secret" not in result.output


# ---------------------------------------------------------------- becoming a part


@pytest.mark.parametrize(
    ("arguments", "module", "passed"),
    [
        (["server", "--config", "f.yaml", "--check"], "controlplane.main", ["--config", "f.yaml", "--check"]),
        (["server"], "controlplane.main", []),
        (["router", "--config", "f.yaml"], "router.main", ["--config", "f.yaml"]),
        (
            ["agent", "--config", "f.yaml", "--log-level", "debug"],
            "agent.main",
            ["--config", "f.yaml", "--log-level", "debug"],
        ),
        (["sim-engine", "--port", "1", "--help"], "llmgw.sim.engine", ["--port", "1", "--help"]),
    ],
)
def test_a_part_takes_the_process_over(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], module: str, passed: list[str]
) -> None:
    """CLI-01: the same interpreter, the part's own main, all options passed on, not from the working directory."""
    became = []
    monkeypatch.setattr("os.execv", lambda path, argv: became.append((path, argv)))
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert became == [(sys.executable, [sys.executable, "-P", "-m", module, *passed])]


def test_a_part_that_is_not_installed_says_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-01: a router host has no SQLAlchemy, and no traceback either."""
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["server"])
    assert result.exit_code == 1 and "pip install 'llmgw[controlplane]'" in result.output


def test_starting_a_part_loads_neither_requests_nor_ssl() -> None:
    """A part must patch before anything loads ssl; the command loads little."""
    code = (
        "import os, sys\n"
        "from llmgw.cli import main\n"
        "def became(path, argv):\n"
        "    print(sorted({'requests', 'ssl', 'gevent', 'rich', 'yaml', 'flask'} & set(sys.modules)))\n"
        "    raise SystemExit(0)\n"
        "os.execv = became\n"
        "main(['server'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_status_loads_what_it_needs_and_no_more() -> None:
    """CLI-02: it is asked for in a hurry: neither other commands nor YAML nor the parts' libraries."""
    code = (
        "import json, sys\n"
        "import llmgw.cli.client as client\n"
        "def answer(self, path, expect, **query):\n"
        "    loaded = {name for name in sys.modules if name.startswith('llmgw.cli.ctl.')}\n"
        "    print(json.dumps(sorted(loaded | ({'yaml', 'ssl', 'gevent', 'flask', 'msgspec'} & set(sys.modules)))))\n"
        "    raise SystemExit(0)\n"
        "client.Client.get = answer\n"
        "from llmgw.cli import main\n"
        "main(['status'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert json.loads(done.stdout) == ["llmgw.cli.ctl.problems", "llmgw.cli.ctl.status"], done.stdout + done.stderr


def test_the_installed_command_starts_the_control_plane(tmp_path) -> None:
    """CLI-01: through a real exec: the settings error is the part's, exit status 2."""
    done = subprocess.run(
        [sys.executable, "-m", "llmgw.cli", "server", "--config", str(tmp_path / "none.yaml")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2 and "none.yaml" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ({"leader": "10.0.0.2:7000"}, "Ask the one that leads: --api URL, or LLMGW_API."),
        ({"leader": "10.0.0.2:7000", "takeover_seconds": "soon"}, "If it does not answer, ask again. (not_leader"),
        ({"leader": "10.0.0.2:7000", "takeover_seconds": 17.2}, "If it does not answer, ask this one again in 18 s."),
        ({"takeover_seconds": 17.2}, "it said (not_leader"),
    ],
)
@responses.activate
def test_a_control_plane_that_stands_by_says_when_to_ask_again(more: dict[str, object], hint: str) -> None:
    """CLI-01, HA-01: whoever is named may be the one that crashed."""
    responses.get(STATUS, status=503, json={"code": "not_leader", "message": "it said", "request_id": "1"} | more)
    assert hint in said(run("ctl", "log-level"))
