"""A control plane that cannot lead as it is: it says so, leaves the lease to others, and leads once mended (HA-01)."""

import copy
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from controlplane.usage.intake import SPOOL
from llmgw.wire.messages import Welcome
from tests.fakes.controlplane import CATALOG, ControlPlane, until
from tests.fleet.leadership.pair import Member, Pair, session

EXTRA: dict[str, Any] = {
    "aliases": ["nice"],
    "scaling": {"min": 0, "max": 1},
    "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 0.5}],
}


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Pair]:
    """A pair; the second may be spoilt before it is started."""
    (tmp_path / "store").mkdir()
    made = Pair(tmp_path, f"sqlite://{tmp_path}/store/llmgw.db")
    try:
        yield made
    finally:
        made.stop()


def add_live(leader: ControlPlane) -> None:
    """A model, with an alias, that the files do not have."""
    body = {"name": "extra", **EXTRA}
    answer = requests.post(f"{leader.api}/api/v1/models", headers=leader.auth, json=body, timeout=30)
    assert answer.status_code == 201, answer.text


def clash(other: ControlPlane) -> None:
    """Write the same model, and the alias, into its file."""
    tree = copy.deepcopy(CATALOG)
    tree["models"]["extra"] = {**EXTRA, "aliases": []}
    tree["models"]["sim-off"]["aliases"] = ["nice"]
    other.catalog.write_text(yaml.safe_dump(tree))


def assert_the_live_one_serves(leader: ControlPlane) -> None:
    """The rest of the file does too, and the status tells what to do."""
    assert leader.get("models/extra")["aliases"] == ["nice"] and leader.get("models/sim-off")["aliases"] == []
    problems = [problem for problem in leader.get("status")["problems"] if problem["kind"] == "catalog"]
    assert len(problems) == 1 and "without extra, nice (an alias of sim-off)" in problems[0]["message"]
    assert "llmgw ctl model remove extra" in problems[0]["message"]
    leader.catalog.write_text(yaml.safe_dump(CATALOG))
    leader.tell(signal.SIGHUP)
    until(lambda: not any(problem["kind"] == "catalog" for problem in leader.get("status")["problems"]), "mended")
    assert leader.get("models/extra")["aliases"] == ["nice"]


def test_a_takeover_goes_on_though_a_file_clashes_with_what_was_added_live(quick: Pair) -> None:
    """HA-01, CAT-06: nobody leading is worse than one name set aside."""
    first, second = quick.start().first, quick.second
    add_live(first)
    clash(second)
    assert first.stop() == 0
    until(second.serves, "the takeover")
    assert_the_live_one_serves(second)


def test_a_restart_goes_on_too(tmp_path: Path) -> None:
    """CAT-06: of a control plane without a standby."""
    alone = ControlPlane(tmp_path).start()
    try:
        add_live(alone)
        clash(alone)
        assert alone.stop() == 0
        alone.start()
        assert_the_live_one_serves(alone)
    finally:
        alone.stop()


def epoch(member: Member) -> int:
    """What the leader tells an agent."""
    agent = session(member)
    told = agent.expect(Welcome).epoch
    agent.close()
    return int(told)


@pytest.mark.parametrize("spoilt", ["decisions.jsonl", "admin.token"])
def test_what_could_not_lead_does_not_ask_for_the_lease_and_leads_once_it_is_mended(quick: Pair, spoilt: str) -> None:
    """HA-01: it says so before it is needed; the epoch does not rise meanwhile."""
    first, second = quick.first, quick.second
    first.start()
    second.state.mkdir(mode=0o700)
    faulty = second.state / spoilt
    if spoilt == "admin.token":
        faulty.write_text("llmgw-x\n")
        faulty.chmod(0o644)
    else:
        faulty.mkdir()
    second.start()
    assert epoch(first) == 1
    assert second.metric("llmgw_able_to_lead ") == 0 and first.metric("llmgw_able_to_lead ") == 1
    told = requests.get(f"{second.api}/api/v1/status", timeout=30).json()["message"]
    assert "cp-1 leads" in told and f"it cannot lead itself: llmgw server: state_dir: {faulty}" in told
    refused = second.told()
    assert refused["code"] == "not_leader" and refused["message"].endswith("it cannot lead itself: see its log")
    assert first.stop() == 0
    until(lambda: "none leads yet" in requests.get(f"{second.api}/api/v1/status", timeout=30).json()["message"])
    assert second.metric("llmgw_able_to_lead ") == 0 and not second.leads()
    if spoilt == "admin.token":
        faulty.unlink()
    else:
        faulty.rmdir()
    second.tell(signal.SIGHUP)
    until(second.serves, "it leads")
    assert epoch(second) == 2 and second.metric("llmgw_able_to_lead ") == 1
    assert "Traceback" not in second.log() and second.log().count("it does not ask for the lease") == 1


def test_what_can_only_be_found_by_leading_leaves_the_lease_to_others(quick: Pair) -> None:
    """HA-01: the next try comes by itself, after a while."""
    first, second = quick.start().first, quick.second
    position = second.state / SPOOL / "position"
    until(position.exists, "it looked for what its last term left")
    position.unlink()
    position.mkdir()
    assert first.stop() == 0
    until(lambda: "it leaves the lease to others" in second.log(), "a term that could not begin")
    until(lambda: second.metric("llmgw_able_to_lead ") == 0, "it stands by")
    assert "spool of usage" in requests.get(f"{second.api}/api/v1/status", timeout=30).json()["message"]
    first.start()
    until(first.serves, "the other one leads at once")
    assert first.stop() == 0
    position.rmdir()
    until(second.serves, "it tried again and leads")
    assert "Traceback" not in second.log()
