"""Joining, leaving and refusing, as people do it (SEC-02, REC-13, CLI-01)."""

import json
import re
from pathlib import Path

from llmgw.identity.folder import Folder
from llmgw.wire.messages import Refuse, Welcome
from tests.fakes.controlplane import ControlPlane
from tests.fleet.cli.conftest import Run


def test_a_node_joins_by_two_commands_and_is_sent_away_by_two(
    run: Run, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """SEC-02: the token alone is on standard output, the command to run beside it, and it works as printed."""
    made = run("ctl", "nodes", "add", "gpu-7")
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    assert re.fullmatch(r"llmgw-join-\w+\.\S+\.\S+", token)
    (command,) = [line.strip() for line in made.stderr.splitlines() if line.strip().startswith("llmgw join")]
    assert "15 minutes" in made.stderr and token not in made.stderr
    folder = tmp_path / "identity"
    joined = run(*command.split()[1:], "--identity", str(folder), "--token-file", "-", stdin=token)
    assert joined.exit_code == 0, joined.output
    agent = control_plane.agent("gpu-7", folder).upgrade().hello()
    agent.expect(Welcome)
    again = run(*command.split()[1:], "--identity", str(tmp_path / "again"), "--token-file", "-", stdin=token)
    assert again.exit_code == 1 and "was used already" in again.output and "llmgw ctl nodes add gpu-7" in again.output
    listed = run("ctl", "join-tokens").output
    assert re.search(r"node +gpu-7 +used", listed) and token.split(".")[1] not in listed

    assert re.search(r"node +gpu-7 +good", run("ctl", "cert", "list").output)
    assert Folder(folder).presented().serial in run("ctl", "cert", "show", "node", "gpu-7").output
    revoked = run("ctl", "cert", "revoke", "node", "gpu-7", "--reason", "stolen", "--yes")
    assert revoked.exit_code == 0 and "llmgw ctl nodes add gpu-7" in revoked.output
    assert agent.expect(Refuse).code == "revoked"
    shown = run("ctl", "cert", "list", "--revoked").output
    assert re.search(r"node +gpu-7 +revoked", shown) and "stolen" in shown and "node-1" not in shown
    assert "was revoked" in run("status").output
    removed = run("ctl", "nodes", "remove", "gpu-7", "--yes")
    assert removed.exit_code == 0 and "is removed" in removed.output
    assert "gpu-7" not in run("ctl", "nodes").output
    assert re.search(r"node +gpu-7 +removed", run("ctl", "cert", "list").output)
    again = run("ctl", "nodes", "remove", "gpu-7", "--yes")
    assert again.exit_code == 1 and re.search(r"was removed at [-0-9]{10} [0-9]{2}:[0-9]{2} UTC", again.output)


def test_routers_are_listed_added_and_removed(run: Run, control_plane: ControlPlane) -> None:
    """SEC-02: with their certificates, and the processes that report."""
    assert control_plane.router("edge-1").get(f"{control_plane.routers}/router/v1/table?wait=1", timeout=20).ok
    assert re.search(r"edge-1 +good +0", run("ctl", "routers").output)
    listed = json.loads(run("ctl", "routers", "list", "-o", "json").output)["routers"]
    assert [row["name"] for row in listed if row["name"] == "edge-1"] and listed[0]["processes"] == []
    assert run("ctl", "routers", "remove", "edge-1", "--yes").exit_code == 0
    assert "edge-1" not in run("ctl", "routers").output, "it does not belong to the fleet"
    answer = control_plane.router("edge-1").get(f"{control_plane.routers}/router/v1/table", timeout=20)
    assert answer.status_code == 403 and "llmgw ctl routers add edge-1" in answer.json()["message"]
    made = json.loads(run("ctl", "routers", "add", "edge-1", "-o", "json").stdout)
    assert made["kind"] == "router" and made["token"].startswith("llmgw-join-")
    assert run("ctl", "join-tokens", "remove", made["id"]).exit_code == 0
    assert run("ctl", "join-tokens", "show", made["id"]).exit_code == 1


def test_mistakes_are_told_with_their_remedy(run: Run) -> None:
    """CLI-01: nothing is revoked or removed by a typing error."""
    told = run("ctl", "cert", "revoke", "node", "node-11", "--yes")
    assert told.exit_code == 1 and "did you mean node-1?" in told.output
    told = run("ctl", "nodes", "add", "no such name")
    assert told.exit_code == 1 and "letters, digits" in told.output
