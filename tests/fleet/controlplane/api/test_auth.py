"""Who is let in: tokens, their files, and what is told to those who are not."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.services import auth
from controlplane.services.auth import Authenticator, load_local_token
from controlplane.services.changes import Changes
from controlplane.services.errors import Refused
from controlplane.services.people import Known, People, digest
from controlplane.store.values import AdminToken, Grant, User
from llmgw.runtime.clock import ManualClock
from llmgw.runtime.settings import SettingsError
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.controlplane.api.client import Client, problem

# ---------------------------------------------------------------- the local token


def test_the_local_token_is_made_once_and_is_ours_alone(tmp_path: Path) -> None:
    """API-02, SEC-03: mode 0600 from the beginning, at least 128 bits, the same after a restart."""
    before = os.umask(0)
    try:
        made = load_local_token(tmp_path)
    finally:
        os.umask(before)
    file = tmp_path / "admin.token"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text().strip()
    assert text.startswith("adm-llmgw-") and len(text) >= len("adm-llmgw-") + 22
    assert made == digest(text) == load_local_token(tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_local_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """SEC-03: in words, with the remedy."""
    load_local_token(tmp_path)
    (tmp_path / "admin.token").chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600") as refused:
        load_local_token(tmp_path)
    assert "adm-llmgw-" not in str(refused.value)


def test_a_local_token_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-03: whoever put it there knows it."""
    load_local_token(tmp_path)
    if os.geteuid() == 0:
        os.chown(tmp_path / "admin.token", 4711, 4711)
    else:
        monkeypatch.setattr(auth.os, "geteuid", lambda: 4711)
    with pytest.raises(SettingsError, match="belongs to another user"):
        load_local_token(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "adm-llmgw-short", "sk-llmgw-" + "x" * 32, "adm-llmgw-" + "x" * 400, "\x00" * 40]
)
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: str) -> None:
    """API-02: an empty token would open the API to everybody."""
    file = tmp_path / "admin.token"
    file.touch(0o600)
    file.write_text(content)
    with pytest.raises(SettingsError, match="holds no token of ours"):
        load_local_token(tmp_path)


def test_a_link_or_a_pipe_is_no_token(tmp_path: Path) -> None:
    """SEC-03: nor does the start hang on it."""
    (tmp_path / "admin.token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="it is a link"):
        load_local_token(tmp_path)
    (tmp_path / "admin.token").unlink()
    os.mkfifo(tmp_path / "admin.token", 0o600)
    with pytest.raises(SettingsError, match="no regular file"):
        load_local_token(tmp_path)


def test_a_start_with_an_open_token_file(own: ControlPlane) -> None:
    """DEP-03: exit status 2 and the file, never a traceback."""
    own.state.mkdir(mode=0o700)
    (own.state / "admin.token").write_text("adm-llmgw-" + "x" * 32)
    (own.state / "admin.token").chmod(0o644)
    command = [sys.executable, "-m", "controlplane.main", "--config", str(own.config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done.stderr
    assert "admin.token could be read by others" in done.stderr and "Traceback" not in done.stderr
    assert "x" * 32 not in done.stderr


def test_a_new_local_token_is_taken_on_reload(own: ControlPlane) -> None:
    """SEC-08: remove the file, send SIGHUP: the old one is good for nothing."""
    own.start()
    old = own.token
    (own.state / "admin.token").unlink()
    own.tell(signal.SIGHUP)
    until((own.state / "admin.token").exists, "a new token")
    until(lambda: Client(own.api, own.token).get("whoami").status_code == 200, "the new token is good")
    problem(Client(own.api, old).get("whoami"), 401, "unauthenticated")
    assert old not in own.log() and own.token not in own.log()


# ---------------------------------------------------------------- presenting a token


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer adm-llmgw-" + "A" * 32,
        "Bearer " + "x" * 5000,
        "Bearer a b",
        "Bearer \u00e4",
        "bearer",
        "Token {token}",
        "{token}",
        "Bearer {token}x",
        "Bearer x{token}",
        "Bearer {token}, Bearer {token}",
    ],
)
def test_what_is_no_token(plane: ControlPlane, header: str | None) -> None:
    """API-02: 401 with the scheme and what to do about it."""
    headers = {} if header is None else {"Authorization": header.format(token=plane.token).encode()}
    answer = Client(plane.api).get("status", headers=headers)
    body = problem(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "Authorization: Bearer TOKEN" in body["message"] and "admin.token" in body["message"]
    assert plane.token not in answer.text


@pytest.mark.parametrize("header", ["Bearer {token}", "bearer {token}", "BEARER   {token}"])
def test_the_scheme_is_written_as_one_likes(plane: ControlPlane, header: str) -> None:
    """RFC 9110: names of schemes have no case."""
    headers = {"Authorization": header.format(token=plane.token)}
    who = Client(plane.api).get("whoami", headers=headers).json()
    assert who == {"user": "local", "token": "local", "roles": [{"role": "admin"}]}


@pytest.mark.parametrize("path", ["openapi.json", "docs", "docs/start.js", "docs/swagger-ui.css"])
def test_what_needs_no_token(plane: ControlPlane, path: str) -> None:
    """API-01: the document and the page."""
    assert Client(plane.api).get(path).status_code == 200


def test_watchdogs_and_prometheus_need_no_token(plane: ControlPlane) -> None:
    """OBS-01: they have none."""
    for path in ("healthz", "metrics"):
        assert Client(plane.api).get(f"{plane.api}/{path}").status_code == 200


def test_a_token_in_the_address_is_no_token(plane: ControlPlane) -> None:
    """SEC-03: addresses end up in logs and histories."""
    answer = Client(plane.api).get("status", params={"token": plane.token, "access_token": plane.token})
    problem(answer, 401, "unauthenticated")
    assert plane.token not in plane.log()


# ---------------------------------------------------------------- users' tokens


def test_a_token_is_good_at_once_and_until_it_is_revoked(admin: Client, plane: ControlPlane) -> None:
    """API-08: revoked, disabled and removed take effect with the next request."""
    admin.post("users", {"name": "eve", "roles": [{"role": "operator"}]})
    first, second, third = (admin.post("tokens", {"user": "eve", "name": str(n)}).json() for n in range(3))
    eve = Client(plane.api, first["token"])
    who = eve.get("whoami").json()
    assert who == {"user": "eve", "token": first["id"], "roles": [{"role": "operator"}]}
    assert admin.delete(f"tokens/{first['id']}").json()["good"] is False
    assert "was revoked" in problem(eve.get("whoami"), 401, "unauthenticated")["message"]

    other = Client(plane.api, second["token"])
    assert other.get("status").status_code == 200
    admin.put("users/eve", {"roles": [{"role": "operator"}], "disabled": True})
    assert "is disabled" in problem(other.get("status"), 401, "unauthenticated")["message"]
    admin.put("users/eve", {"roles": [], "disabled": False})
    assert "eve has no role" in problem(other.get("status"), 403, "forbidden")["message"]

    assert admin.delete("users/eve").status_code == 204
    for made in (second, third):
        problem(Client(plane.api, made["token"]).get("whoami"), 401, "unauthenticated")
    problem(admin.delete("users/eve"), 404, "not_found")


def test_a_token_is_shown_once_and_kept_nowhere(admin: Client, plane: ControlPlane) -> None:
    """SEC-03: not in lists, the log, the audit or the database."""
    admin.post("users", {"name": "ida", "roles": [{"role": "auditor"}]})
    made = admin.post("tokens", {"user": "ida", "name": "laptop", "expires": "30d"}).json()
    assert made["token"].startswith("adm-llmgw-") and made["good"] is True and made["expires_at"]
    assert made["token"] not in admin.get("tokens").text and made["id"] in admin.get("tokens").text
    assert made["token"] not in admin.get(f"tokens/{made['id']}").text
    Client(plane.api, made["token"]).get("status")
    Client(plane.api, made["token"] + "x").get("status")
    assert made["token"] not in plane.log()
    kept = b"".join(file.read_bytes() for file in plane.state.glob("llmgw.db*"))
    assert made["token"].encode() not in kept and digest(made["token"]).encode() in kept


def test_refusals_are_logged_without_the_token_and_not_without_end(own: ControlPlane) -> None:
    """SEC-03, OBS-01: who guesses is seen, and cannot fill the disk."""
    own.start()
    for number in range(60):
        Client(own.api, f"adm-llmgw-guess-number-{number:04d}-aaaa").get("status")
    lines = [line for line in own.log().splitlines() if "without a valid token" in line]
    assert len(lines) == auth.TOLD
    assert all("peer=127.0.0.1" in line and "guess" not in line for line in lines)


def _people(clock: ManualClock) -> People:
    user = User("ada", (Grant("admin"),), 0.0, "x")
    expires = clock.now().timestamp() + 60
    token = AdminToken("tok-1", "ada", "n", "adm-llmgw-aaaa", digest("adm-llmgw-one"), 0.0, "x", expires_at=expires)
    return People(None, Changes(None, clock), clock, Known((user,), (token,)))  # type: ignore[arg-type]


def test_a_token_expires_on_time() -> None:
    """API-08: by the clock of the control plane, to the second; also for what goes on."""
    clock = ManualClock()
    door = Authenticator(_people(clock), lambda: digest("local"), clock)
    who = door.principal("Bearer adm-llmgw-one", "peer")
    clock.advance(59)
    assert door.principal("Bearer adm-llmgw-one", "peer").user == "ada"
    assert door.still(who) is not None
    clock.advance(1)
    with pytest.raises(Refused, match="has expired"):
        door.principal("Bearer adm-llmgw-one", "peer")
    assert door.still(who) is None


# ---------------------------------------------------------------- administrators


def test_the_last_administrator_stays(own: ControlPlane) -> None:
    """API-08: removed, disabled or demoted, the last one with a name would be missed."""
    admin = Client(own.start().api, own.token)
    for name in ("ada", "bea"):
        assert admin.post("users", {"name": name, "roles": [{"role": "admin"}]}).status_code == 201
    assert admin.put("users/bea", {"roles": [{"role": "admin"}], "disabled": True}).status_code == 200
    for answer in (
        admin.delete("users/ada"),
        admin.put("users/ada", {"roles": [{"role": "admin"}], "disabled": True}),
        admin.put("users/ada", {"roles": [{"role": "auditor"}]}),
    ):
        assert "ada is the last administrator" in problem(answer, 409, "conflict")["message"]
    assert admin.put("users/bea", {"roles": [{"role": "admin"}]}).status_code == 200
    assert admin.delete("users/ada").status_code == 204
    problem(admin.delete("users/bea"), 409, "conflict")


def test_grants_name_scopes_that_exist(admin: Client, scopes: tuple[str, ...]) -> None:
    """TEN-01: all faults at once, with the nearest name."""
    roles = [{"role": "owner", "scope": "acme/nl"}, {"role": "owner"}, {"role": "admin", "scope": "acme"}]
    body = problem(admin.post("users", {"name": "joe", "roles": roles[1:]}), 422, "validation_failed")
    assert [fault["path"] for fault in body["faults"]] == ["roles[0].scope", "roles[1].scope"]
    body = problem(admin.post("users", {"name": "joe", "roles": roles[:1]}), 422, "validation_failed")
    assert "did you mean acme/ml?" in body["faults"][0]["message"]
    problem(admin.post("users", {"name": "local", "roles": []}), 422, "validation_failed")


def test_users_live_through_a_restart(own: ControlPlane) -> None:
    """STO-01: users, roles and tokens are the store's."""
    admin = Client(own.start().api, own.token)
    admin.post("users", {"name": "ada", "roles": [{"role": "auditor"}]})
    token = admin.post("tokens", {"user": "ada", "name": "n"}).json()["token"]
    assert own.stop() == 0
    own.start()
    assert Client(own.api, token).get("whoami").json()["user"] == "ada"


def test_the_audit_says_who(own: ControlPlane) -> None:
    """API-05: the user and token that were proven, beside what the client says of itself;
    before and after, in the transaction of the change."""
    own.enrol("node-1")
    admin = Client(own.start().api, own.token)
    admin.post("users", {"name": "ada", "roles": [{"role": "operator"}]})
    made = admin.post("tokens", {"user": "ada", "name": "n"}).json()
    ada = Client(own.api, made["token"])
    said = {"Llmgw-Actor": "cli:root (sudo by ada)\u00e9".encode("latin-1")}
    answer = ada.post("nodes/node-1/cordon", {"reason": "fan"}, headers=said)
    assert answer.status_code == 200, answer.text
    assert answer.json()["cordon"]["actor"] == "ada (cli:root (sudo by ada)?)"
    with sqlite3.connect(own.state / "llmgw.db") as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("SELECT * FROM audit ORDER BY id")]
    database.close()
    assert [row["operation"] for row in rows] == ["users.create", "tokens.create", "nodes.cordon"]
    last = rows[-1]
    assert (last["user_name"] if "user_name" in last else last["user"]) == "ada" and last["token"] == made["id"]
    assert last["target"] == "node-1" and "fan" in json.dumps(last)
    assert last["request_id"] == answer.headers["X-Request-Id"]
    assert made["token"] not in json.dumps(rows) and digest(made["token"]) not in json.dumps(rows)
