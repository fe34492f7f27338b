"""What commands say of a change, and of a change whose answer was lost (CLI-01, SEC-02, SEC-03)."""

import json
from pathlib import Path

import pytest
import responses
from click.testing import CliRunner, Result

from llmgw.cli import main

URL = "http://127.0.0.1:7000"


def run(*arguments: str, api: str = URL, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"LLMGW_API": api, **environment})


@pytest.mark.parametrize(
    ("command", "path", "remove"),
    [
        ("keys create me", "keys", "llmgw keys revoke 1a2b"),
        ("ctl token add ada", "tokens", "llmgw ctl token revoke 1a2b"),
        ("ctl nodes add gpu-7", "join-tokens", "llmgw ctl join-tokens remove 1a2b"),
    ],
)
@responses.activate
def test_a_secret_that_was_lost_on_its_way(command: str, path: str, remove: str) -> None:
    """SEC-03: what was made is told with how to remove it, for nobody can show it again."""
    responses.post(f"{URL}/api/v1/{path}", json={"id": "1a2b", "user": "ada"}, status=201)
    told = run(*command.split())
    assert told.exit_code == 1 and remove in told.output and "kept nowhere" in told.output


@pytest.mark.parametrize(
    ("command", "path", "named"),
    [
        ("ctl scope remove acme", "scopes/acme", {"path": "acme"}),
        ("ctl user remove ada", "users/ada", {"name": "ada"}),
        ("ctl nodes remove gpu-7", "identities/node/gpu-7", {"kind": "node", "name": "gpu-7"}),
        ("ctl join-tokens remove 1a2b", "join-tokens/1a2b", {"id": "1a2b"}),
    ],
)
@responses.activate
def test_what_was_removed_is_named(command: str, path: str, named: dict[str, str]) -> None:
    """CLI-01: in words, and for programs, though the API has nothing to answer."""
    responses.delete(f"{URL}/api/v1/{path}", status=204)
    assert "is removed" in run(*command.split()).output
    assert json.loads(run(*command.split(), "-o", "json").output) == named


@responses.activate
def test_stop_and_start_take_the_same_options() -> None:
    """CLI-01: a script need not know that start asks nothing."""
    responses.get(f"{URL}/api/v1/status", json={"models": []})
    responses.put(f"{URL}/api/v1/settings/serving.stopped", json={"value": True})
    for command in ("stop", "start"):
        assert run(command, "--yes").exit_code == 0
        assert run(command, "-y", "-o", "json").exit_code == 0


# ---------------------------------------------------------------- joining

MADE = {"id": "1a2b", "token": "llmgw-join-1a2b.secret", "join": "0.0.0.0:7003"}


@pytest.mark.parametrize(
    ("join", "api", "address", "words"),
    [
        ("0.0.0.0:7003", "https://cp1.example.org:7000", "cp1.example.org:7003", ""),
        ("[::]:7003", "https://[2001:db8::7]:7000", "[2001:db8::7]:7003", ""),
        ("0.0.0.0:7003", "http://127.0.0.2:7000", "CONTROL-PLANE:7003", "stands for a name or address"),
        ("127.0.0.1:7003", URL, "127.0.0.1:7003", "which only this machine reaches"),
        ("192.0.2.7:7003", URL, "192.0.2.7:7003", ""),
    ],
)
@responses.activate
def test_where_to_join(join: str, api: str, address: str, words: str) -> None:
    """SEC-02: the command to run elsewhere has the address that is right there, or says what stands for it."""
    responses.post(f"{api}/api/v1/join-tokens", json={**MADE, "join": join}, status=201)
    made = run("ctl", "nodes", "add", "gpu-7", api=api)
    assert made.exit_code == 0, made.output
    assert made.stdout == "llmgw-join-1a2b.secret\n"
    assert f"  llmgw join node {address} gpu-7\n" in made.stderr and words in made.stderr
    assert bool(words) == ("(" in made.stderr)


@responses.activate
def test_join_tokens_fit_a_terminal() -> None:
    """CLI-02: as a table on 80 columns, used or not."""
    row = {
        "kind": "router",
        "state": "unused",
        "created_at": "2030-01-31T02:10:00+00:00",
        "created_by": "ada (cli:ada)",
    }
    row["expires_at"] = "2030-01-31T02:25:00+00:00"
    used = {"id": "3c4d", "name": "edge-1", "used_from": "192.0.2.44", "used_at": "2030-01-31T02:11:00+00:00"}
    tokens = [{**row, "id": "1a2b3c4d5e6f", "name": "a-longer-name.example.org"}, {**row, **used, "state": "used"}]
    responses.get(f"{URL}/api/v1/join-tokens", json={"join_tokens": tokens})
    lines = run("ctl", "join-tokens", COLUMNS="80").output.splitlines()
    assert lines[0].split() == ["ID", "KIND", "NAME", "STATE", "EXPIRES"] and max(map(len, lines)) <= 80
    assert [line.strip() for line in lines[2:]] == [
        "3c4d          router  edge-1                     used    2030-01-31 02:25:00",
        "used from: 192.0.2.44",
    ]


@responses.activate
def test_revoking_takes_join_tokens_back() -> None:
    """SEC-02: and says so."""
    path = f"{URL}/api/v1/identities/node/gpu-7/revoke"
    responses.post(path, json={"name": "gpu-7", "join_tokens_removed": ["1a2b"]})
    assert "and 1 unused join token taken back" in run("ctl", "cert", "revoke", "node", "gpu-7", "-y").output
    responses.replace(responses.POST, path, json={"name": "gpu-7"})
    assert "token" not in run("ctl", "cert", "revoke", "node", "gpu-7", "-y").output


# ---------------------------------------------------------------- groups that list


@pytest.mark.parametrize(
    ("group", "path", "answer"),
    [
        ("nodes", "nodes", {"nodes": []}),
        ("routers", "identities", {"identities": []}),
        ("join-tokens", "join-tokens", {"join_tokens": []}),
    ],
)
@responses.activate
def test_a_group_that_lists_has_the_command_list(group: str, path: str, answer: dict[str, object]) -> None:
    """CLI-01: with the same options and the same words."""
    responses.get(f"{URL}/api/v1/{path}", json=answer)
    responses.get(f"{URL}/api/v1/status", json={"routers": []})
    alone, listed = run("ctl", group), run("ctl", group, "list")
    assert alone.exit_code == listed.exit_code == 0
    assert "Let one join" in alone.output or "Make one" in alone.output
    assert listed.output == alone.output
    assert run("ctl", group, "list", "-o", "json").output == run("ctl", group, "-o", "json").output


@responses.activate
def test_where_the_api_is_may_be_said_with_the_group(tmp_path: Path) -> None:
    """CLI-01: what is said there counts, and what is wrong with it is said once."""
    token = tmp_path / "token"
    token.write_text("adm-llmgw-abc\n")
    token.chmod(0o644)
    elsewhere = "http://127.0.0.1:7777"
    made = responses.post(f"{elsewhere}/api/v1/join-tokens", json=MADE, status=201)
    done = run("ctl", "nodes", "--api", elsewhere, "--token-file", str(token), "add", "gpu-7")
    assert done.exit_code == 0, done.output
    assert made.call_count == 1 and made.calls[0].request.headers["Authorization"] == "Bearer adm-llmgw-abc"
    assert done.stderr.count("can be read by others") == 1
