"""``llmgw ctl nodes accept-loss``, and that ``llmgw ctl nodes`` is still the list (REC-11)."""

import json

import responses
from click.testing import CliRunner, Result

from llmgw.cli import main

URL = "http://127.0.0.1:7000"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"LLMGW_API": URL})


@responses.activate
def test_a_loss_is_accepted() -> None:
    """REC-11: how many, in words and for programs."""
    nodes = ["n1", "n2", "n3"]
    responses.get(f"{URL}/api/v1/status", json={"problems": [], "mass_loss": {"seconds": 60, "nodes": nodes}})
    answer = {"nodes": nodes, "silent": ["n4"]}
    posted = responses.post(f"{URL}/api/v1/nodes/accept-loss", json=answer, status=202)
    result = run("ctl", "nodes", "accept-loss", "--yes")
    assert result.exit_code == 0 and "3 nodes declared lost" in result.output
    assert "Not declared lost: 1 node (n4), silent as well" in result.output
    assert json.loads(posted.calls[0].request.body) == {"nodes": nodes}, "those that were shown"
    assert json.loads(run("ctl", "nodes", "accept-loss", "-o", "json").output) == answer


@responses.activate
def test_without_a_mass_loss_it_says_so() -> None:
    """REC-11: with status 1, and nothing is sent: one may begin at this moment, of which nobody was asked."""
    responses.get(f"{URL}/api/v1/status", json={"problems": []})
    result = run("ctl", "nodes", "accept-loss", "--yes")
    assert result.exit_code == 1 and "no mass loss is on" in result.output
    assert len(responses.calls) == 1


@responses.activate
def test_the_list_is_what_it_was() -> None:
    """CLI-01: without a command the nodes are listed."""
    responses.get(f"{URL}/api/v1/nodes", json={"nodes": []})
    result = run("ctl", "nodes")
    assert result.exit_code == 0 and "llmgw ctl nodes add" in result.output
    assert run("ctl", "nodes", "accept-los").exit_code == 2
