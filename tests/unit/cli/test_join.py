"""``llmgw join`` (SEC-02)."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import agent.settings
import router.settings
from llmgw.cli import main
from llmgw.cli.join import _address_towards
from llmgw.identity import pem
from llmgw.identity.folder import Folder
from llmgw.identity.joining import JoinToken, new_token
from llmgw.runtime.kinds import Address
from tests.unit.identity.listener import listener
from tests.unit.identity.made import NODE, OTHERS, OURS


@pytest.fixture
def token() -> JoinToken:
    """One of ours."""
    return new_token(pem.split(OURS.root)[0])


def join(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(main, ["join", *arguments], input=stdin)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("way", ["stdin", "dash", "file"])
def test_joined(tmp_path: Path, token: JoinToken, way: str) -> None:
    """SEC-02, SEC-03: the token comes by standard input or a file, never as an argument."""
    file = tmp_path / "token"
    file.write_text(f"{token.text}\n")
    how = {"stdin": (), "dash": ("--token-file", "-"), "file": ("--token-file", str(file))}[way]
    with listener(OURS, tmp_path / "cp") as server:
        result = join("node", str(server.address), "gpu-7", "--identity", str(tmp_path / "id"), *how, stdin=token.text)
    assert result.exit_code == 0, result.output
    assert "node gpu-7" in result.output and "llmgw agent" in result.output
    assert Folder(tmp_path / "id").check(kind="node", name="gpu-7") == []
    assert token.secret not in result.output
    assert _settings_of(result) == {
        "node_id": "gpu-7",
        "control_planes": ["127.0.0.1:7001"],
        "identity": str(tmp_path / "id"),
    }, "on the control plane's own machine the default address is right"


def _settings_of(result: Result) -> Any:
    """The settings that were printed."""
    return yaml.safe_load("\n".join(line for line in result.output.splitlines() if line.startswith("  ")))


@pytest.mark.parametrize(("kind", "own"), [("node", {"address": "192.0.2.33"}), ("router", {"listen": "0.0.0.0:8080"})])
def test_what_the_settings_must_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: JoinToken, kind: str, own: dict[str, str]
) -> None:
    """SEC-02: on a machine of its own the default, which is loopback, is reached by no router, and no client."""
    monkeypatch.setattr("llmgw.cli.join._address_towards", lambda host: "192.0.2.33")
    with listener(OURS, tmp_path / "cp") as server:
        result = join(kind, str(server.address), "gpu-7", "--identity", str(tmp_path / "id"), stdin=token.text)
    assert result.exit_code == 0, result.output
    said = _settings_of(result)
    assert {key: said[key] for key in said if key in ("address", "listen")} == own
    (key,) = own
    assert f"at least this; {key} is where" in result.output
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(said))
    part = {"node": agent.settings, "router": router.settings}[kind]
    assert part.SETTINGS.load(file)["control_planes"] == (Address("127.0.0.1", {"node": 7001, "router": 7002}[kind]),)


def test_our_address_on_the_way() -> None:
    """SEC-02: as the kernel would choose it; our name if a host is not known."""
    assert _address_towards("127.0.0.1") == "127.0.0.1" == _address_towards("localhost")
    assert _address_towards("no such host") == socket.gethostname()


def test_an_identity_that_is_there_stays(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: replaced only if that is meant; the token is not spent to find that out."""
    folder = OURS.folder(tmp_path / "id", NODE)
    before = folder.signature()
    with listener(OURS, tmp_path / "cp") as server:
        arguments = ("node", str(server.address), "gpu-7", "--identity", str(folder.path))
        result = join(*arguments, stdin=token.text)
        assert result.exit_code == 1 and "--force" in result.output
        assert folder.signature() == before and server.asked == []
        assert join(*arguments, "--force", stdin=token.text).exit_code == 0
    assert folder.signature() != before and folder.check() == []


def test_an_impostor(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: told in words, and the token stays secret."""
    with listener(OTHERS, tmp_path / "cp") as server:
        result = join("node", str(server.address), "gpu-7", "--identity", str(tmp_path / "id"), stdin=token.text)
    assert result.exit_code == 1 and "The token was not sent" in result.output
    assert "If its root was rotated since, a new token is needed" in result.output
    assert token.secret.encode() not in server.raw


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (("node", "nowhere", "gpu-7"), "", 2, "HOST:PORT"),
        (("server", "127.0.0.1:1", "gpu-7"), "", 2, "is not one of 'node', 'router': the order is llmgw join"),
        (
            ("127.0.0.1:1", "node", "gpu-7"),
            "",
            2,
            "are the arguments swapped? the order is llmgw join node|router HOST",
        ),
        (("node", "gpu-7", "127.0.0.1:1"), "", 2, "NAME '127.0.0.1:1' looks like an address, swapped with the name"),
        (("node", "127.0.0.1:1", "gpu 7"), "", 1, "letters, digits"),
        (("node", "127.0.0.1:1", "gpu-7"), "llmgw-join-cut.off", 1, "is it whole"),
        (("node", "127.0.0.1:1", "gpu-7", "--token-file", "none"), "", 2, "cannot read none: No such file"),
        (("node", "127.0.0.1:1", "gpu-7", "--identity", "file/x"), "", 1, "no directory"),
    ],
)
def test_faults_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, arguments: tuple[str, ...], stdin: str, code: int, words: str
) -> None:
    """SEC-02: what was wrong and what is expected; a secret is not repeated."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    result = join("--identity", str(tmp_path / "id"), *arguments, stdin=stdin)
    assert (result.exit_code, words in result.output) == (code, True), result.output
    assert not stdin or stdin not in result.output


def test_nothing_listens(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: the address is named."""
    result = join("node", "127.0.0.1:1", "gpu-7", "--identity", str(tmp_path / "id"), stdin=token.text)
    assert result.exit_code == 1 and "127.0.0.1:1: nothing listens there" in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: found out before the token is spent."""
    tmp_path.chmod(0o500)
    result = join("node", "127.0.0.1:1", "gpu-7", "--identity", str(tmp_path / "id"), stdin=token.text)
    tmp_path.chmod(0o700)
    assert result.exit_code == 1 and "cannot be written" in result.output
