"""Where the command finds its token, to whom it sends it, and what it says if it is refused (SEC-03, API-08)."""

import os
from pathlib import Path

import click
import pytest
import responses
from click.testing import CliRunner, Result
from responses.matchers import header_matcher

from llmgw.cli import main
from llmgw.cli.credentials import Credential, find

HERE = "http://127.0.0.1:7000"
TOKEN = "adm-llmgw-0123456789abcdef0123456789abcdef"
LEVEL = "api/v1/log-level"


def private(file: Path, text: str = TOKEN) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
    file.chmod(0o600)
    return file


def run(*arguments: str, url: str = HERE, **environment: str) -> Result:
    return CliRunner().invoke(main, ["--api", url, *arguments], env=environment)


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, the file of the environment, the environment, the own file, then the machine's."""
    local = private(tmp_path / "var" / "admin.token", "adm-local")
    monkeypatch.setattr("llmgw.cli.credentials.LOCAL", local)
    assert find(None, HERE).token == "adm-local"
    private(tmp_path / ".config" / "llmgw" / "token", "adm-own")
    assert find(None, HERE).token == "adm-own"
    monkeypatch.setenv("LLMGW_TOKEN", "adm-environment")
    assert find(None, HERE).token == "adm-environment"
    monkeypatch.setenv("LLMGW_TOKEN_FILE", str(private(tmp_path / "named", "adm-named")))
    assert find(None, HERE).token == "adm-named"
    assert find(str(private(tmp_path / "option", "adm-option")), HERE).token == "adm-option"


def test_no_token_anywhere() -> None:
    """It is asked without one, and the answer says how to give one."""
    assert find(None, HERE) == Credential("", "")


def test_the_machines_own_token_is_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-03: another control plane must not be handed the local administrator."""
    monkeypatch.setattr("llmgw.cli.credentials.LOCAL", private(tmp_path / "admin.token"))
    for url in (HERE, "https://localhost:7000", "http://[::1]:7000"):
        assert find(None, url).token
    for url in ("https://llmgw.example.org:7000", "http://10.0.0.1:7000", "http://127.0.0.1.example.org"):
        assert not find(None, url).token


def test_a_token_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    """SEC-03: everybody on the way could read it."""
    named = str(private(tmp_path / "token"))
    with pytest.raises(click.UsageError, match="use an https:// address"):
        find(named, "http://llmgw.example.org:7000")
    assert find(named, "https://llmgw.example.org:7000").token == TOKEN
    refused = run("ctl", "log-level", url="http://llmgw.example.org", LLMGW_TOKEN_FILE=named)
    assert refused.exit_code == 2 and TOKEN not in refused.output


@responses.activate
def test_it_is_sent_as_a_header_and_never_shown(tmp_path: Path) -> None:
    """SEC-03: neither in the address nor in what is written."""
    responses.get(
        f"{HERE}/{LEVEL}", json={"level": "info"}, match=[header_matcher({"Authorization": f"Bearer {TOKEN}"})]
    )
    named = private(tmp_path / "token")
    for arguments in (
        ["--token-file", str(named), "ctl", "log-level"],
        ["ctl", "log-level", "--token-file", str(named)],
    ):
        done = run(*arguments)
        assert done.exit_code == 0 and TOKEN not in done.output and not done.stderr
    assert TOKEN not in str(responses.calls[0].request.url)


@responses.activate
def test_a_file_that_others_can_read_is_warned_about(tmp_path: Path) -> None:
    """SEC-03: with the command that closes it; it works all the same."""
    responses.get(f"{HERE}/{LEVEL}", json={"level": "info"})
    named = private(tmp_path / "token")
    named.chmod(0o644)
    done = run("ctl", "log-level", LLMGW_TOKEN_FILE=str(named))
    assert done.exit_code == 0 and done.stdout == "info\n"
    assert f"{named} can be read by others" in done.stderr and f"chmod 600 {named}" in done.stderr


@pytest.mark.parametrize("text", ["", "two words", "a\nb", "ü" * 20, "x" * 5000])
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    """CLI-01: wrong usage, in words; nothing is sent."""
    done = run("ctl", "log-level", LLMGW_TOKEN_FILE=str(private(tmp_path / "token", text)))
    assert done.exit_code == 2 and "holds no token" in done.output


@pytest.mark.parametrize("name", ["none", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """CLI-01: what was named must be there; it is not skipped."""
    done = run("--token-file", str(tmp_path / name), "ctl", "log-level")
    assert done.exit_code == 2 and "cannot read the token of --token-file" in done.output


def test_there_is_no_option_for_the_token_itself() -> None:
    """SEC-03: everybody on the machine sees arguments."""
    done = run("--token", TOKEN, "ctl", "log-level")
    assert done.exit_code == 2 and "no such option" in done.output.lower() and TOKEN not in done.output


def answered(status: int, code: str, message: str, **environment: str) -> Result:
    body = {"code": code, "message": message, "request_id": "0123456789abcdef"}
    with responses.RequestsMock() as recorded:
        recorded.get(f"{HERE}/{LEVEL}", status=status, json=body)
        return run("ctl", "log-level", **environment)


def test_401_says_how_to_give_a_token() -> None:
    """API-08: exit status 4; what the API says to programs is said to people."""
    done = answered(401, "unauthenticated", "the request carries no token: send a token as 'Authorization: Bearer'")
    flat = " ".join(done.output.split())
    assert done.exit_code == 4
    assert "the request carries no token No token was found: give one with --token-file FILE" in flat
    assert "~/.config/llmgw/token" in flat and "Bearer" not in flat


def test_401_names_the_token_that_was_refused(tmp_path: Path) -> None:
    """API-08: which of all places it came from."""
    named = private(tmp_path / "token")
    done = answered(401, "unauthenticated", "the token has expired: send a token as x", LLMGW_TOKEN_FILE=str(named))
    flat = " ".join(done.output.split())
    assert done.exit_code == 4 and "the token has expired" in flat
    assert f"The token of LLMGW_TOKEN_FILE ({named}) is not accepted here" in flat and TOKEN not in done.output


def test_403_says_who_can_help() -> None:
    """API-08: exit status 4."""
    done = answered(
        403, "forbidden", "this needs the role admin; ada has auditor: an administrator can change that with PUT"
    )
    assert done.exit_code == 4
    assert "this needs the role admin; ada has auditor\n" in done.output
    assert "llmgw ctl whoami" in done.output and "llmgw ctl user set" in done.output


def test_root_needs_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without HOME finds no own file, and says nothing about it."""
    monkeypatch.delenv("HOME")
    assert find(None, HERE) == Credential("", "")
    assert "HOME" not in os.environ
