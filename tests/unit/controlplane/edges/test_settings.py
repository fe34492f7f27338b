"""Settings: all faults at once, with the remedy."""

from pathlib import Path

import pytest

from controlplane.settings import SETTINGS, identity_folder, load, open_doors, secret_files, sent_nowhere
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
        tmp_path / "c.yaml",
        "agents: {listn: 1, heartbeat: soon}\nadmin: {listen: 7000}\nloop: {interval: -1}\n"
        "ha: {advertize: {join: a}}\n",
    )
    assert found.pop("ha.advertize") == "is not a setting; did you mean ha.advertise?"
    assert found["agents.listn"] == "is not a setting; did you mean agents.listen?"
    assert set(found) == {"agents.listn", "agents.heartbeat", "admin.listen", "loop.interval"}


def test_people_are_not_answered_in_the_clear(tmp_path: Path) -> None:
    """API-02, SEC-01: off loopback the admin API needs TLS; the parts speak nothing else."""
    found = faults(
        tmp_path / "c.yaml",
        "agents: {listen: '0.0.0.0:7001'}\nrouters: {listen: '192.0.2.1:7002'}\njoin: {listen: '[::]:7003'}\n"
        "admin: {listen: '[::]:7000'}\n",
    )
    assert set(found) == {"admin.listen"} and "use a loopback address" in found["admin.listen"]


def test_what_answers_whoever_asks_is_told(tmp_path: Path) -> None:
    """SEC-06: an admin listener that others can reach has paths without a token."""
    file = tmp_path / "c.yaml"
    assert open_doors(load(None)) == {}
    file.write_text("admin: {listen: '0.0.0.0:7000', certificate: /c.pem, key: /k.pem}\n")
    assert "/metrics" in open_doors(load(file))["admin.listen"]


def test_the_identity_is_a_secret_of_the_state_directory(tmp_path: Path) -> None:
    """SEC-01, SEC-03: where nobody says otherwise, and never a source of a provider's key."""
    file = tmp_path / "c.yaml"
    file.write_text(f"state_dir: {tmp_path}\n")
    assert identity_folder(load(file)) == tmp_path / "identity"
    file.write_text(f"state_dir: {tmp_path}\nidentity: /etc/llmgw/identity\n")
    assert identity_folder(load(file)) == Path("/etc/llmgw/identity")
    assert Path("/etc/llmgw/identity") in secret_files(load(file))


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


def test_a_lead_by_a_lease_needs_a_store_for_all_and_time_for_a_second_try(tmp_path: Path) -> None:
    """HA-01: a store of one's own is nobody else's; one renewal may fail; nobody can be sent to a wildcard."""
    file = tmp_path / "c.yaml"
    found = faults(
        file, "ha: {enabled: true, ttl: 9s, renew: 4s}\nagents: {listen: '0.0.0.0:7001'}\njoin: {listen: '[::]:7003'}\n"
    )
    assert set(found) == {"ha.renew", "store.url", "ha.advertise.agents", "ha.advertise.join"}
    assert found["ha.renew"] == "must be at most a third of ha.ttl (4 s, and ha.ttl is 9 s): a renewal may fail"
    assert found["ha.advertise.agents"] == "is missing: nobody can be sent to 0.0.0.0:7001, which agents.listen is"
    file.write_text(
        "ha: {enabled: true, advertise: {agents: 'a.example:7001'}}\nagents: {listen: '0.0.0.0:7001'}\n"
        "store: {url: 'postgresql://db.example/llmgw'}\n"
    )
    assert str(load(file)["ha.advertise.agents"]) == "a.example:7001"
    file.write_text("ha: {renew: 20s}\n")
    assert not load(file)["ha.enabled"], "what is not used may be anything"


ABROAD = "advertise: {agents: 'cp-1.example:7001', routers: 'cp-1.example:7002'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("store: {url: 'postgresql:///llmgw'}\nha: {enabled: true}", set()),
        ("store: {url: 'postgresql://127.0.0.1/llmgw'}\nha: {enabled: true}", set()),
        ("store: {url: 'sqlite:////srv/llmgw.db'}\nha: {enabled: true}", set()),
        ("store: {url: 'postgresql://db.example/llmgw'}", set()),
        ("store: {url: 'postgresql://db.example/llmgw'}\nha: {enabled: true}", {"agents", "routers", "join", "admin"}),
        (f"store: {{url: 'postgresql:///llmgw'}}\nha: {{enabled: true, {ABROAD}}}}}", {"join", "admin"}),
        (
            f"store: {{url: 'postgresql:///llmgw'}}\nha: {{enabled: true, {ABROAD}, join: 'a:1', admin: '[::1]:1'}}}}",
            set(),
        ),
    ],
)
def test_an_address_that_others_do_not_reach_is_told(tmp_path: Path, text: str, expected: set[str]) -> None:
    """HA-01: with control planes on several machines. People may be meant to log in to one: then that is said."""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    found = sent_nowhere(load(file))
    assert set(found) == {f"ha.advertise.{name}" for name in expected}
    assert "admin" not in expected or "sends people and their tools to 127.0.0.1:7000" in found["ha.advertise.admin"]
