"""Settings and tokens: all faults at once, with the remedy."""

from pathlib import Path

import pytest

from controlplane.listeners.tokens import FleetTokens, load_tokens
from controlplane.settings import SETTINGS, load
from llmgw.runtime.settings import SettingsError


def faults(file: Path, text: str) -> dict[str, str]:
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load(file)
    return {fault.path: fault.message for fault in raised.value.faults}


def test_defaults_are_valid() -> None:
    """DOC-01: nothing has to be set."""
    assert str(load(None)["agents.listen"]) == "127.0.0.1:7001"
    assert load(None)["settling.steady"] == 40.0


def test_every_fault_is_told_with_its_place(tmp_path: Path) -> None:
    """DOC-01: unknown names with the nearest known one, wrong values with what is expected."""
    found = faults(
        tmp_path / "c.yaml", "agents: {listn: 1, heartbeat: soon}\nadmin: {listen: 7000}\nloop: {interval: -1}\n"
    )
    assert found["agents.listn"] == "is not a setting; did you mean agents.listen?"
    assert set(found) == {"agents.listn", "agents.heartbeat", "admin.listen", "loop.interval"}


def test_no_listener_leaves_loopback(tmp_path: Path) -> None:
    """API-02, SEC-01: until identities land, every other bind is refused by name."""
    found = faults(
        tmp_path / "c.yaml",
        "agents: {listen: '0.0.0.0:7001'}\nrouters: {listen: '192.0.2.1:7002'}\nadmin: {listen: '[::]:7000'}\n",
    )
    assert set(found) == {"agents.listen", "routers.listen", "admin.listen"}
    assert all("use a loopback address" in message for message in found.values())


def test_settings_are_checked_against_each_other(tmp_path: Path) -> None:
    """DOC-01: a heartbeat slower than the silence it must prevent is no setting."""
    found = faults(
        tmp_path / "c.yaml",
        "agents: {heartbeat: 60s}\nbackoff: {first: 10m}\nadmin: {listen: '127.0.0.1:7001'}\n",
    )
    assert found["agents.heartbeat"] == "must be less than agents.silence (60 s is not less than 30 s)"
    assert "backoff.first" in found
    assert found["admin.listen"].startswith("127.0.0.1:7001 is the address of agents.listen too")


def test_the_environment_rules_the_file(tmp_path: Path) -> None:
    """DOC-01: flag > environment > file > default."""
    file = tmp_path / "c.yaml"
    file.write_text("log: {level: warning}\n")
    assert load(file, {"LLMGW_CONTROLPLANE_LOG_LEVEL": "debug"})["log.level"] == "debug"
    assert load(file, {"LLMGW_CONTROLPLANE_LOG_LEVEL": "debug"}, {"log.level": "error"})["log.level"] == "error"


def test_every_setting_is_explained() -> None:
    """DOC-01: the reference has a sentence for each row."""
    assert all(row.help.endswith(".") for row in SETTINGS.rows)


# ---------------------------------------------------------------- tokens

GOOD = "nodes: {node-1: at-0123456789abcdef, node-2: at-fedcba9876543210}\nrouters: {r1: rt-0123456789abcdef}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.touch(mode=0o600)
    path.write_text(GOOD)
    return path


def test_a_token_belongs_to_one_node(file: Path) -> None:
    """SEC-01: another node's token, another kind's token and no token are all wrong."""
    tokens = load_tokens(file)
    assert tokens.node("node-1", "at-0123456789abcdef")
    assert tokens.router("r1", "rt-0123456789abcdef")
    for node, token in (
        ("node-2", "at-0123456789abcdef"),
        ("node-1", "rt-0123456789abcdef"),
        ("node-1", ""),
        ("node-1", "at-\xe4\udcff"),
        ("nobody", "at-0123456789abcdef"),
        ("nobody", "-" * 32),
    ):
        assert not tokens.node(node, token), (node, token)
    assert "0123" not in repr(tokens)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_tokens_open_to_others_are_refused(file: Path, mode: int) -> None:
    """SEC-03: secrets are 0600."""
    file.chmod(mode)
    with pytest.raises(SettingsError, match="chmod 600"):
        load_tokens(file)


def test_token_faults_come_together_and_show_no_token(file: Path) -> None:
    """SEC-03: every fault is told, none with a secret in it."""
    file.write_text(
        "nodes: {a: at-0123456789abcdef, b: at-0123456789abcdef, c: tiny, 'd e': at-0123456789abcdeX, 7: x}\n"
        "routers: [rt-0123456789abcdef]\nrouter: {}\n"
    )
    with pytest.raises(SettingsError) as raised:
        load_tokens(file)
    assert {fault.path for fault in raised.value.faults} == {
        "nodes.b",
        "nodes.c",
        "nodes.d e",
        "nodes.7",
        "routers",
        "router",
    }
    assert "0123456789" not in str(raised.value)


def test_absent_tokens_name_the_setting(tmp_path: Path) -> None:
    """DOC-01: which file, and which setting says so."""
    with pytest.raises(SettingsError, match=r"No such file or directory \(setting fleet_tokens\)"):
        load_tokens(tmp_path / "absent.yaml")


def test_no_tokens_admit_nobody() -> None:
    """SEC-01: an empty file is a fleet without nodes."""
    assert not FleetTokens().node("", "")
