"""A fleet that goes silent as one, by a real control plane (REC-11)."""

import json
from pathlib import Path

import requests
from click.testing import CliRunner

from llmgw.cli import main
from llmgw.wire.messages import Start
from tests.fakes.controlplane import CATALOG, ControlPlane, until

LOST_AFTER = 3.0


def test_nodes_that_go_silent_together_are_lost_when_a_person_says_so(tmp_path: Path) -> None:
    """REC-10, REC-11: status, metrics and the command agree; nothing is rebuilt before, all after."""
    plane = ControlPlane(
        tmp_path,
        {"models": {"m": CATALOG["models"]["sim-small"]}},
        nodes=("n1", "n2", "n3", "n4"),
        nodes__unreachable_after="1s",
        nodes__lost_after=f"{LOST_AFTER:g}s",
        loop__interval="100ms",
    ).start()

    def ctl(*arguments: str) -> str:
        environment = {"LLMGW_TOKEN_FILE": str(plane.state / "admin.token")}
        result = CliRunner().invoke(main, ["--api", plane.api, "ctl", *arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    try:
        agents = {name: plane.agent(name).upgrade().hello().register() for name in ("n1", "n2", "n3", "n4")}
        first = until(lambda: plane.get("replicas")["replicas"])[0]["shards"][0]["node"]
        agents[first].expect(Start)
        silent = sorted([first, *sorted(agents.keys() - {first})[:2]])
        (left,) = agents.keys() - set(silent)
        for name in silent:
            agents[name].close()
        loss = until(lambda: plane.get("status").get("mass_loss"), "a mass loss")
        assert loss["nodes"] == silent and plane.metric("llmgw_mass_loss_nodes ") == 3
        assert "mass-loss: 3 nodes went silent together" in " ".join(ctl("status").split())
        until(
            lambda: plane.get(f"nodes/{first}")["last_heard_seconds"] > LOST_AFTER + 1,
            "a silence that would be a loss",
        )
        assert plane.metric("llmgw_nodes_lost_total ") == 0
        assert {node["status"] for node in plane.get("nodes")["nodes"]} == {"connected", "unreachable"}

        faulty = requests.post(
            f"{plane.api}/api/v1/nodes/accept-loss",
            json={"nodes": [*silent, "n8", "n9"]},
            headers=plane.auth,
            timeout=10,
        )
        assert faulty.status_code == 422 and {fault["path"] for fault in faulty.json()["faults"]} == {
            "nodes[3]",
            "nodes[4]",
        }
        assert json.loads(ctl("nodes", "accept-loss", "-o", "json")) == {"nodes": silent, "silent": []}
        spec = agents[left].expect(Start).spec
        assert spec.model == "m", "rebuilt on the node that is left"
        assert plane.metric("llmgw_nodes_lost_total ") == 3 and plane.metric("llmgw_mass_loss_nodes ") == 0
        assert plane.get("status").get("mass_loss") is None
        accepted = [row for row in plane.get("audit")["audit"] if row["operation"] == "nodes.accept_loss"]
        assert len(accepted) == 1
    finally:
        plane.stop()
