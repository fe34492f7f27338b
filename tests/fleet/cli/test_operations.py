"""Every operation of the admin API is asked for by some command (CLI-01)."""

import json
import re
from typing import Any

import click
import pytest
import requests
import responses
from click.testing import CliRunner

from llmgw.cli import main
from tests.fakes.controlplane import ControlPlane
from tests.fleet.cli.test_commands import BECOME_OTHERS, commands

URL = "http://127.0.0.1:7000"

TABLE = {
    "GET /status": "ctl status",
    "GET /nodes": "ctl nodes",
    "GET /nodes/{node_id}": "ctl node show n",
    "POST /nodes/accept-loss": "ctl nodes accept-loss --yes",
    "POST /nodes/{node_id}/cordon": "ctl cordon n --reason r",
    "POST /nodes/{node_id}/uncordon": "ctl uncordon n",
    "GET /nodes/{node_id}/labels": "ctl label n",
    "PUT /nodes/{node_id}/labels": "ctl label n a=b --replace",
    "PATCH /nodes/{node_id}/labels": "ctl label n a=b c-",
    "GET /identities": "ctl cert list",
    "GET /identities/{kind}/{name}": "ctl cert show node n",
    "POST /identities/{kind}/{name}/revoke": "ctl cert revoke node n --yes",
    "DELETE /identities/{kind}/{name}": "ctl nodes remove n --yes",
    "GET /join-tokens": "ctl join-tokens",
    "POST /join-tokens": "ctl nodes add n",
    "GET /join-tokens/{token_id}": "ctl join-tokens show t",
    "DELETE /join-tokens/{token_id}": "ctl join-tokens remove t",
    "GET /holds": "ctl holds",
    "GET /holds/{domain}": "ctl holds rack=r1",
    "PUT /holds/{domain}": "ctl hold rack=r1 --reason r",
    "DELETE /holds/{domain}": "ctl release rack=r1",
    "GET /models": "ctl models",
    "POST /models": "ctl model add m --engine sim --source sim:",
    "GET /models/{name}": "ctl model show m",
    "PUT /models/{name}": "ctl model set m owner=acme",
    "PATCH /models/{name}": "ctl model scale m 1",
    "DELETE /models/{name}": "ctl model remove m --yes",
    "GET /models/{name}/explain": "ctl explain m",
    "POST /models/{name}/check": "ctl model check m",
    "POST /models/{name}/retry": "ctl retry m",
    "GET /catalog": "ctl catalog show",
    "GET /catalog/export": "ctl catalog export",
    "POST /catalog/reload": "ctl catalog reload",
    "POST /catalog/validate": "ctl catalog validate -",
    "POST /catalog/check-source": "ctl model check --source sim:",
    "GET /replicas": "ctl replicas",
    "GET /replicas/{replica_id}": "ctl replica r",
    "POST /replicas/restart": "ctl restart --all --yes",
    "GET /keys": "keys list",
    "POST /keys": "keys create k --scope acme",
    "GET /keys/{key_id}": "keys show k",
    "DELETE /keys/{key_id}": "keys revoke k",
    "GET /scopes": "ctl scopes",
    "POST /scopes": "ctl scope add acme",
    "GET /scopes/{path}": "ctl scope show acme/ml",
    "PUT /scopes/{path}": "ctl scope set acme --title A",
    "DELETE /scopes/{path}": "ctl scope remove acme --yes",
    "GET /usage": "ctl usage",
    "GET /requests": "ctl requests",
    "GET /requests/{request_id}": "ctl request r",
    "GET /secrets": "ctl secrets list",
    "GET /secrets/{name}": "ctl secrets show engine",
    "POST /secrets/{name}/rotate": "ctl secrets rotate engine",
    "GET /events": "ctl events",
    "GET /settings": "ctl settings list",
    "GET /settings/{name}": "ctl settings get log.level",
    "PUT /settings/{name}": "stop --yes",
    "DELETE /settings/{name}": "ctl settings unset log.level",
    "GET /log-level": "ctl log-level",
    "PUT /log-level": "ctl log-level debug",
    "GET /whoami": "ctl whoami",
    "GET /users": "ctl users",
    "POST /users": "ctl user add ada --role owner=acme",
    "GET /users/{name}": "ctl user show ada",
    "PUT /users/{name}": "ctl user set ada --role admin",
    "DELETE /users/{name}": "ctl user remove ada --yes",
    "GET /tokens": "ctl tokens",
    "POST /tokens": "ctl token add ada",
    "GET /tokens/{token_id}": "ctl token show t",
    "DELETE /tokens/{token_id}": "ctl token revoke t",
    "GET /audit": "ctl audit",
}
"""Operation and a command that uses it."""

LISTS = (
    *("nodes", "models", "replicas", "keys", "holds", "scopes", "users", "tokens", "events", "audit", "requests"),
    *("usage", "settings", "cluster", "faults", "roles", "queued", "candidates", "problems", "shards", "devices"),
    "sources",
)
TEXTS = ("id", "name", "path", "user", "domain", "level", "source", "words", "rules", "token", "key")
LOCAL = {("join",), ("sim-fleet",), *(("ctl", "cert", name) for name in ("init", "issue", "sign", "renew"))}
"""Commands that ask no admin API: they have files, or speak as the parts do."""

ANY: dict[str, Any] = {
    **{field: [] for field in LISTS},
    **dict.fromkeys(TEXTS, "x"),
    "definition": {},
    "labels": {},
    "valid": True,
    "value": True,
    "mass_loss": {"seconds": 1.0, "nodes": ["n"]},
}
"""An answer that every command can begin to read."""


def test_the_table_is_complete(control_plane: ControlPlane) -> None:
    """An operation that was added has a command, and one that is gone has no entry."""
    document = requests.get(f"{control_plane.api}/api/v1/openapi.json", timeout=10).json()
    found = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, operations in document["paths"].items()
        for method in operations
        if method in ("get", "post", "put", "patch", "delete")
    }
    assert found == set(TABLE)


@pytest.mark.parametrize("operation", TABLE)
def test_the_command_asks_for_it(operation: str) -> None:
    """Not only claimed: the request is made."""
    asked: list[str] = []

    def answer(request: requests.PreparedRequest) -> tuple[int, dict[str, str], str]:
        asked.append(f"{request.method} {str(request.url).partition('?')[0].removeprefix(f'{URL}/api/v1')}")
        return 200, {}, json.dumps(ANY)

    with responses.RequestsMock(assert_all_requests_are_fired=False) as recorded:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            recorded.add_callback(method, re.compile(f"{URL}/.*"), callback=answer, content_type="application/json")
        CliRunner().invoke(main, ["--api", URL, *TABLE[operation].split()], input="models: {}\n")
    method, _, path = operation.partition(" ")
    wanted = re.compile(re.escape(method) + " " + re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
    assert any(wanted.fullmatch(each) for each in asked), asked


def test_every_command_of_the_table_is_one() -> None:
    """A misspelt command would be refused before it asks."""
    known = {
        path for path, command in commands() if not isinstance(command, click.Group) or command.invoke_without_command
    }
    for line in TABLE.values():
        words = tuple(line.split())
        assert any(words[:length] in known for length in (1, 2, 3)), line


def walk() -> list[Any]:
    return [pytest.param(path, command, id="-".join(path)) for path, command in commands() if path not in BECOME_OTHERS]


@pytest.mark.parametrize(("path", "command"), walk())
def test_options_that_all_commands_share(path: tuple[str, ...], command: click.Command) -> None:
    """CLI-01: every command that asks the API can be told where it is and who asks, and can
    answer programs; lists are shown in all forms."""
    options = {option for parameter in command.params for option in parameter.opts}
    if isinstance(command, click.Group) or path[0] in ("server", "router", "agent", "completion") or path in LOCAL:
        return
    assert {"--api", "--token-file", "--ca"} <= options
    assert "--output" in options or path == ("ctl", "model", "edit")
    assert not {"--token", "--password", "--key"} & options or path[-1] in ("requests", "usage"), "ids, not secrets"
