"""Cluster settings of a real control plane: which value rules, and that it does something."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llmgw.wire.messages import ShardChanged, ShardExit, ShardExited, ShardStatus, Start, Stop, Welcome
from llmgw.wire.routing import decode_table
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.controlplane.resources.asking import SIM, Api

UNSAFE = {
    "scaling": {"min": 0, "max": 0},
    "profiles": [
        {
            "engine": "vllm",
            "source": "file:/srv/m",
            "gpu_class": "h100-80g",
            "gpus": 1,
            "args": ["--trust-remote-code"],
        }
    ],
}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ControlPlane]:
    """Not started yet, with values in its file."""
    control_plane = ControlPlane(
        tmp_path, drain__grace="50ms", cluster={"requests": {"retention": "2d"}, "audit": {"retention": "30d"}}
    )
    yield control_plane
    if control_plane.process is not None:
        control_plane.stop()


def rewrite(control_plane: ControlPlane, **cluster: object) -> None:
    tree = yaml.safe_load(control_plane.config.read_text())
    tree["cluster"] = cluster
    control_plane.config.write_text(yaml.safe_dump(tree))


def test_which_value_rules(own: ControlPlane) -> None:
    """API-06: the store's over the file's over the default; shown with who and when; live
    and over a restart; ETag and audit as anywhere."""
    api = Api(own.start())
    shown = {row["name"]: row for row in api.ok("GET", "settings")["cluster"]}
    assert (shown["requests.retention"]["value"], shown["usage.retention"]["rules"]) == (2 * 86400, "default")
    assert shown["requests.retention"]["rules"] == str(own.config) and shown["requests.retention"]["default"] == 604800
    answer = api.ask("PUT", "settings/requests.retention", {"value": "3d"}, If_Match='"0"')
    assert answer.headers["ETag"] == '"1"' and answer.json()["value"] == 3 * 86400
    api.refused(412, "PUT", "settings/requests.retention", {"value": "4d"}, If_Match='"0"')
    own.stop()
    own.start()
    kept = api.ok("GET", "settings/requests.retention")
    assert kept["rules"] == "store" and kept["store"]["updated_by"] == "local" and kept["file"]["value"] == 2 * 86400
    assert api.ok("DELETE", "settings/requests.retention", If_Match='"1"')["value"] == 2 * 86400
    entry, older = api.ok("GET", "audit?kind=setting")["audit"]
    assert "before" not in older and older["after"] == 259200.0
    assert entry["before"] == 259200.0 and "after" not in entry


def test_a_file_that_is_read_again(own: ControlPlane) -> None:
    """API-06: SIGHUP takes the file's values over; one of the store goes on ruling; a file
    with faults changes nothing."""
    api = Api(own.start())
    api.ok("PUT", "settings/audit.retention", {"value": "10d"})
    rewrite(own, requests={"retention": "5d"}, audit={"retention": "50d"})
    own.tell(signal.SIGHUP)
    until(lambda: api.ok("GET", "settings/requests.retention")["value"] == 5 * 86400, "the file's value")
    audit = api.ok("GET", "settings/audit.retention")
    assert audit["value"] == 10 * 86400 and audit["file"]["value"] == 50 * 86400
    rewrite(own, requests={"retention": "5 days"})
    own.tell(signal.SIGHUP)
    until(lambda: "the settings file was refused" in own.log(), "the refusal")
    assert api.ok("GET", "settings/requests.retention")["value"] == 5 * 86400


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("requests.retention", "1s", "requests.retention must be at least 3600 s"),
        ("requests.retention", "11000d", "nor longer than 10 years"),
        ("requests.log", "perhaps", "must be true or false"),
        ("log.level", "loud", "must be one of"),
        ("engines.allow", ["vlm --trust-remote-code"], "did you mean vllm?"),
        ("engines.allow", ["--trust-remote-code"], "must hold an engine and one of its flags"),
        ("engines.allow", ["vllm --api-key"], "cannot be allowed"),
        ("engines.allow", ["vllm --trust-remote-cod"], "did you mean --trust-remote-code?"),
    ],
)
def test_values_that_cannot_be(shared_api: Api, name: str, value: object, words: str) -> None:
    """API-06: refused in words that say what can."""
    (fault,) = shared_api.refused(422, "PUT", f"settings/{name}", {"value": value})["faults"]
    assert fault["path"] == "value" and words in fault["message"], fault


def test_a_setting_that_there_is_not(shared_api: Api) -> None:
    """API-06: the nearest is named; a setting of the process is none of the cluster's."""
    for method, body in (("GET", None), ("PUT", {"value": 1}), ("DELETE", None)):
        assert "did you mean" in shared_api.refused(404, method, "settings/request.retention", body)["message"]
    shared_api.refused(404, "GET", "settings/state_dir")


def test_serving_is_stopped_and_started(own: ControlPlane) -> None:
    """REC-31: every replica is drained, routers are told, status says so, also after a
    restart; started again, models are placed."""
    api = Api(own.start())
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    spec = agent.expect(Start).spec.without_secret()
    agent.send(ShardChanged(status=ShardStatus(spec=spec, state="ready", pid=1)))
    until(lambda: api.ok("GET", "models/sim-small")["ready"] == 1, "the replica")
    api.ok("PUT", "settings/serving.stopped", {"value": True})
    stop = agent.expect(Stop)
    agent.send(
        ShardExited(
            exit=ShardExit(
                replica_id=spec.replica_id, rank=0, incarnation=stop.incarnation, code="stopped", message="stopped"
            )
        )
    )

    router = own.router()

    def states() -> set[str]:
        answer = router.get(f"{own.routers}/router/v1/table", timeout=5)
        return {model.state for model in decode_table(answer.content).models}

    until(lambda: states() == {"stopped"}, "the routers' table")
    assert any(row["kind"] == "serving" for row in api.ok("GET", "status")["problems"])
    agent.close()
    own.stop()
    own.start()
    assert api.ok("GET", "status")["stopped"] is True
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    api.ok("PUT", "settings/serving.stopped", {"value": False})
    assert agent.expect(Start).spec.model == "sim-small"
    agent.close()


def test_flags_are_allowed_and_forbidden_again(own: ControlPlane) -> None:
    """CAT-04, API-06: engines.allow lets a model in that was refused, also over a restart;
    it cannot be taken away while a model needs it, and the refusal names the model."""
    api = Api(own.start())
    refused = api.refused(422, "POST", "models?check=false", {"name": "unsafe", **UNSAFE})
    assert "engines.allow" in refused["faults"][0]["message"]
    api.ok("PUT", "settings/engines.allow", {"value": ["vllm  --trust-remote-code"]})
    api.ok("POST", "models?check=false", {"name": "unsafe", **UNSAFE})
    own.stop()
    own.start()
    assert api.ok("GET", "models/unsafe")["origin"] == "store"
    refused = api.refused(422, "DELETE", "settings/engines.allow")
    assert refused["code"] == "catalog_invalid" and "models.unsafe" in refused["faults"][0]["path"]
    assert api.ok("GET", "settings/engines.allow")["rules"] == "store"
    api.ok("DELETE", "models/unsafe")
    assert api.ok("DELETE", "settings/engines.allow")["value"] == []
    api.refused(422, "POST", "models?check=false", {"name": "unsafe", **UNSAFE})


def test_the_log_level_is_live(own: ControlPlane) -> None:
    """OBS-01, API-06: debug lines come at once, and stay over a restart."""
    api = Api(own.start())
    assert api.ok("GET", "log-level")["level"] == "info"
    api.ok("PUT", "settings/log.level", {"value": "debug"})
    assert api.ok("GET", "log-level")["level"] == "debug"
    own.stop()
    own.start()
    assert api.ok("GET", "log-level")["level"] == "debug"
    api.ok("DELETE", "settings/log.level")
    assert api.ok("GET", "log-level")["level"] == "info"


def test_sources_at_private_addresses(shared_api: Api) -> None:
    """SEC-04, API-06: refused until the site says that its own addresses may be asked."""
    source = {"source": "https://127.0.0.1:1/m.gguf"}
    before = shared_api.ok("POST", "catalog/check-source", source)["words"]
    shared_api.ok("PUT", "settings/sources.private", {"value": True})
    after = shared_api.ok("POST", "catalog/check-source", source)["words"]
    shared_api.ok("DELETE", "settings/sources.private")
    assert before != after and "refuse" in after.lower(), (before, after)


def test_nothing_is_looked_at_if_the_site_says_so(shared_api: Api) -> None:
    """CAT-09: sources.check off is as check=false for everybody."""
    body = {"scaling": {"min": 0, "max": 0}, "profiles": [{**SIM["profiles"][0]}]}
    body["profiles"][0] |= {"engine": "llamacpp", "source": "https://127.0.0.1:1/m.gguf"}
    shared_api.refused(422, "PUT", "models/unchecked", body)
    shared_api.ok("PUT", "settings/sources.check", {"value": False})
    shared_api.ok("PUT", "models/unchecked", body)
    shared_api.ok("DELETE", "settings/sources.check")
    shared_api.ok("DELETE", "models/unchecked")
