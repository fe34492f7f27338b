"""Models added, changed and removed over the API of a real control plane."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llmgw.wire.messages import ShardChanged, ShardStatus, Start, Stop, Welcome
from llmgw.wire.routing import decode_table
from tests.fakes.controlplane import CATALOG, ControlPlane, until
from tests.fleet.controlplane.resources.asking import SIM, Api


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ControlPlane]:
    """Not started yet; a drain ends at once, since no router reports."""
    control_plane = ControlPlane(tmp_path, drain__grace="50ms")
    yield control_plane
    if control_plane.process is not None:
        control_plane.stop()


def test_a_model_is_served_without_a_restart(own: ControlPlane) -> None:
    """CAT-06, CAT-07: added over the API it is started at the next pass and in the route
    table; removed, it is stopped. It outlives a restart of the control plane."""
    own.catalog.write_text(yaml.safe_dump({"models": {}}))
    api = Api(own.start())
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register()
    until(lambda: not api.ok("GET", "status")["settling"]["active"], "the end of settling")
    made = api.ok("POST", "models", {"name": "live", "aliases": ["alive"], **SIM})
    assert made["origin"] == "store" and made["version"] == 1 and made["definition"] == {"aliases": ["alive"], **SIM}
    start = agent.expect(Start)
    assert start.spec.model == "live"
    agent.send(ShardChanged(status=ShardStatus(spec=start.spec.without_secret(), state="ready", pid=1)))

    router = own.router()

    def table():
        return decode_table(router.get(f"{own.routers}/router/v1/table", timeout=5).content)

    until(lambda: table().models and table().models[0].endpoints, "the endpoint")
    assert table().models[0].aliases == ("alive",)

    agent.close()
    own.stop()
    own.start()
    assert api.ok("GET", "models/alive")["definition"]["scaling"] == {"min": 1, "max": 1}
    agent = own.agent().upgrade().hello()
    agent.expect(Welcome)
    agent.register(shards=(ShardStatus(spec=start.spec.without_secret(), state="ready", pid=1),))
    until(lambda: api.ok("GET", "models/live")["ready"] == 1, "the adoption")
    gone = api.ok("DELETE", "models/live")
    assert gone["replicas"] == [start.spec.replica_id]
    assert agent.expect(Stop).replica_id == start.spec.replica_id
    api.refused(404, "GET", "models/live")
    agent.close()


def test_versions_and_preconditions(shared_api: Api) -> None:
    """API-04: nobody overwrites what he has not seen; PUT with If-None-Match only adds."""
    answer = shared_api.ask("PUT", "models/versioned", SIM, If_None_Match="*")
    assert answer.status_code == 200 and answer.headers["ETag"] == '"1"'
    again = shared_api.refused(412, "PUT", "models/versioned", SIM, If_None_Match="*")
    assert 'If-Match: "1"' in again["message"]
    changed = shared_api.ask("PATCH", "models/versioned", {"class": "critical"}, If_Match='"1"')
    assert changed.headers["ETag"] == '"2"' and changed.json()["class"] == "critical"
    stale = shared_api.refused(412, "PUT", "models/versioned", SIM, If_Match='"1"')
    assert '"2"' in stale["message"]
    shared_api.refused(412, "DELETE", "models/versioned", If_Match='"1"')
    shared_api.refused(412, "PUT", "models/never-there", SIM, If_Match='"1"')
    assert shared_api.ok("GET", "models/versioned")["class"] == "critical"
    assert shared_api.ok("DELETE", "models/versioned", If_Match='"2"')["dry_run"] is False


def test_the_same_change_twice_is_made_once(shared_api: Api) -> None:
    """API-04: under one Idempotency-Key; also a removal, whose target is gone by then."""
    body = {"name": "once", **SIM}
    first = shared_api.ask("POST", "models", body, Idempotency_Key="add-once")
    second = shared_api.ask("POST", "models", body, Idempotency_Key="add-once")
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["Idempotency-Replayed"] == "true" and second.json()["version"] == 1
    shared_api.refused(422, "POST", "models", {**body, "name": "twice"}, Idempotency_Key="add-once")
    for _ in range(2):
        assert shared_api.ok("DELETE", "models/once", Idempotency_Key="remove-once")["name"] == "once"
    entries = shared_api.ok("GET", "audit?target=once&kind=model")["audit"]
    assert [(entry["before"] is None if "before" in entry else True) for entry in entries] == [False, True]


def test_a_dry_run_changes_nothing(shared_api: Api) -> None:
    """CAT-06: everything is checked, and the answer is what would be."""
    before = shared_api.ok("GET", "audit?kind=model")["audit"]
    would = shared_api.ok("POST", "models?dry_run=true", {"name": "would", **SIM})
    assert would["dry_run"] is True and would["wanted"] == 1 and would["profiles"][0]["fingerprint"]
    assert would["sources"][0]["usable"] is True
    shared_api.refused(404, "GET", "models/would")
    bad = {"name": "would", "profiles": [{"engine": "sim", "source": "sim:", "tp": "two"}]}
    faults = shared_api.refused(422, "POST", "models?dry_run=true", bad)["faults"]
    assert "models.would.profiles[0].tp" in {fault["path"] for fault in faults}
    assert shared_api.ok("GET", "audit?kind=model")["audit"] == before


def test_a_model_of_a_file_is_changed_there(shared_api: Api) -> None:
    """CAT-06: the answer names the file."""
    for method, body in (("PUT", SIM), ("PATCH", {"class": "critical"}), ("DELETE", None)):
        refused = shared_api.refused(409, method, "models/sim-small", body)
        assert refused["code"] == "defined_in_file" and "catalog.yaml" in refused["message"]
    assert shared_api.refused(409, "POST", "models", {"name": "sim-small", **SIM})["code"] == "defined_in_file"
    taken = shared_api.refused(409, "POST", "models", {"name": "small", **SIM})
    assert "alias of the model sim-small" in taken["message"]
    assert "alias of the model sim-small" in shared_api.refused(409, "DELETE", "models/small")["message"]


def test_what_others_point_at_is_not_removed(shared_api: Api) -> None:
    """CAT-02: the refusal names who points."""
    shared_api.ok("POST", "models", {"name": "pointed", **SIM})
    shared_api.ok("POST", "models", {"name": "pointing", **SIM, "fallbacks": ["pointed"]})
    assert "fallbacks of pointing" in shared_api.refused(409, "DELETE", "models/pointed")["message"]
    missing = shared_api.refused(422, "PUT", "models/pointing", {**SIM, "fallbacks": ["pointet"]})
    assert any("did you mean pointed?" in fault["message"] for fault in missing["faults"])
    shared_api.ok("DELETE", "models/pointing")
    shared_api.ok("DELETE", "models/pointed")


def test_keys_of_a_removed_model_are_named(shared_api: Api) -> None:
    """CAT-06: a key that is good for this model alone is good for nothing afterwards."""
    shared_api.ok("POST", "models", {"name": "keyed", **SIM})
    key = shared_api.ok("POST", "keys", {"name": "only this", "models": ["keyed"]})
    assert shared_api.ok("DELETE", "models/keyed?dry_run=true")["keys"] == [f"only this ({key['id']})"]
    assert shared_api.ok("DELETE", "models/keyed")["keys"] == [f"only this ({key['id']})"]


def test_a_source_is_looked_at_before_a_model_is_added(shared_api: Api) -> None:
    """CAT-09, SEC-04: a source that cannot be used refuses the model in words; check=false
    adds it all the same; a later edit of something else looks at nothing."""
    body = {
        "name": "far",
        "scaling": {"min": 0, "max": 0},
        "profiles": [{"engine": "llamacpp", "source": "https://127.0.0.1:1/m.gguf", "min_memory_gb": 1}],
    }
    refused = shared_api.refused(422, "POST", "models", body)
    assert refused["code"] == "source_unusable" and refused["faults"][0]["path"] == "models.far.profiles[0].source"
    assert "sources.private" in refused["faults"][0]["message"], refused
    made = shared_api.ok("POST", "models?check=false", body)
    assert made["sources"] == []
    shared_api.ok("PATCH", "models/far", {"scaling": {"min": 0, "max": 1}})
    report = shared_api.ok("POST", "models/far/check")["sources"][0]
    assert report["usable"] is False and report["state"] == "unreachable"
    shared_api.ok("DELETE", "models/far")


def test_a_name_in_a_file_and_in_the_store(own: ControlPlane) -> None:
    """CAT-06: a reload that would make it so is refused and says both. A start is not: what was added
    live goes on, and both are named until the file is mended."""
    api = Api(own.start())
    api.ok("POST", "models", {"name": "both", **SIM})
    text = own.catalog.read_text()
    own.catalog.write_text(yaml.safe_dump({"models": {**CATALOG["models"], "both": SIM}}))
    refused = api.refused(422, "POST", "catalog/reload")
    assert any(
        "both" in str(fault) and "catalog.yaml" in str(fault) and "store" in str(fault) for fault in refused["faults"]
    )
    problem = next(row for row in api.ok("GET", "status")["problems"] if row["kind"] == "catalog")
    assert "both" in problem["message"]
    assert api.ok("GET", "models/both")["origin"] == "store"
    own.tell(signal.SIGHUP)
    until(lambda: "was not reloaded" in own.log(), "the reload")
    own.stop()
    api = Api(own.start())
    problem = next(row for row in api.ok("GET", "status")["problems"] if row["kind"] == "catalog")
    assert "both" in problem["message"] and "catalog.yaml" in problem["message"]
    assert api.ok("GET", "models/both")["origin"] == "store"
    own.catalog.write_text(text)
    api.ok("POST", "catalog/reload")
    assert not [row for row in api.ok("GET", "status")["problems"] if row["kind"] == "catalog"]
    assert api.ok("GET", "models/both")["version"] == 1


def test_who_may_change_whose_models(shared_api: Api) -> None:
    """API-08, TEN-01: an owner sees and changes its scopes' models alone; an operator all;
    an auditor none."""
    shared_api.ok("POST", "scopes", {"path": "acme"})
    shared_api.ok("POST", "scopes", {"path": "acme/ml"})
    shared_api.ok("POST", "scopes", {"path": "acme2"})
    eve = shared_api.user("eve", {"role": "owner", "scope": "acme"})
    ada = shared_api.user("ada", {"role": "auditor"})
    eve.ok("POST", "models", {"name": "eves", "owner": "acme/ml", **SIM})
    assert "set owner to acme" in eve.refused(403, "POST", "models", {"name": "free", **SIM})["message"]
    eve.refused(403, "POST", "models", {"name": "free", "owner": "acme2", **SIM})
    eve.refused(403, "PATCH", "models/eves", {"owner": "acme2"})
    eve.refused(404, "GET", "models/sim-small")
    assert "taken" in eve.refused(409, "PUT", "models/sim-small", {"owner": "acme", **SIM})["message"]
    shared_api.ok("POST", "models", {"name": "others", "owner": "acme2", **SIM})
    for method, body in (("PUT", {"owner": "acme", **SIM}), ("PATCH", {"class": "critical"}), ("DELETE", None)):
        eve.refused(409, method, "models/others", body)
    assert [model["name"] for model in eve.ok("GET", "models")["models"]] == ["eves"]
    assert {"others", "sim-small"} <= {model["name"] for model in ada.ok("GET", "models")["models"]}
    ada.refused(403, "PATCH", "models/others", {"class": "critical"})
    nowhere = shared_api.refused(422, "POST", "models", {"name": "free", "owner": "acme/mll", **SIM})
    assert nowhere["faults"] == [
        {"path": "models.free.owner", "message": "there is no scope 'acme/mll'; did you mean acme/ml?"}
    ]
    shared_api.ok("DELETE", "models/eves")
    shared_api.ok("DELETE", "models/others")


def test_lists_are_filtered_and_paged(shared_api: Api) -> None:
    """API-04: by name, state, origin, class and owner; a page ends with where to go on."""
    for number in range(3):
        shared_api.ok("POST", "models", {"name": f"page-{number}", "class": "opportunistic", **SIM})
    first = shared_api.ok("GET", "models?origin=store&class=opportunistic&limit=2")
    assert [model["name"] for model in first["models"]] == ["page-0", "page-1"]
    rest = shared_api.ok("GET", f"models?origin=store&class=opportunistic&limit=2&cursor={first['next']}")
    assert [model["name"] for model in rest["models"]] == ["page-2"] and "next" not in rest
    assert {model["name"] for model in shared_api.ok("GET", "models?state=off")["models"]} == {"sim-off"}
    assert "page-0" not in {model["name"] for model in shared_api.ok("GET", "models?origin=file")["models"]}
    assert [model["name"] for model in shared_api.ok("GET", "models?name=org/small")["models"]] == ["sim-small"]
    for number in range(3):
        shared_api.ok("DELETE", f"models/page-{number}")


def test_catalogs_are_validated_and_exported(shared_api: Api) -> None:
    """CAT-06: what a file would be refused for, without changing anything; the export is a
    file that is valid by itself."""
    shared_api.ok("POST", "models", {"name": "exported", **SIM})
    exported = shared_api.ok("GET", "catalog/export")
    assert exported["models"]["exported"] == SIM and "sim-small" in exported["models"]
    assert shared_api.ok("POST", "catalog/validate?store=false", exported) == {"valid": True, "faults": []}
    answer = shared_api.ok("POST", "catalog/validate", exported)
    assert not answer["valid"] and "exported" in answer["faults"][0]["path"]
    answer = shared_api.ok("POST", "catalog/validate", {"modles": {}})
    assert "did you mean models?" in answer["faults"][0]["message"]
    shared_api.ok("DELETE", "models/exported")
