"""A model of the store that keeps the control plane from starting: the way out (CAT-06, STO-02)."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.fakes.controlplane import CATALOG, ControlPlane
from tests.fleet.store.test_commands import facts
from tests.harness.commands import llmgw

SIM: dict[str, Any] = {"engine": "sim", "source": "sim:", "min_memory_gb": 1}


@pytest.fixture
def stuck(tmp_path: Path) -> ControlPlane:
    """Two models were added live; of one a newer release does not take the arguments any
    more, the other was written into the catalog file too."""
    control_plane = ControlPlane(tmp_path).start()
    for name in ("old", "twice"):
        answer = requests.put(
            f"{control_plane.api}/api/v1/models/{name}",
            json={"profiles": [SIM]},
            headers=control_plane.auth,
            timeout=20,
        )
        assert answer.status_code == 200
    assert control_plane.stop() == 0
    with sqlite3.connect(control_plane.state / "llmgw.db") as connection:
        (text,) = connection.execute("SELECT definition FROM models WHERE name = 'old'").fetchone()
        spoilt = json.dumps({"gone": 1, **json.loads(text)})
        connection.execute("UPDATE models SET definition = ? WHERE name = 'old'", (spoilt,))
    connection.close()
    control_plane.catalog.write_text(yaml.safe_dump({"models": {**CATALOG["models"], "twice": {"profiles": [SIM]}}}))
    return control_plane


def test_the_way_out_of_a_store_that_holds_what_cannot_be(stuck: ControlPlane) -> None:
    """The control plane refuses to start and names the command; the command takes the
    models out, prints them as a catalog file, and leaves a trace in the audit."""
    with pytest.raises(AssertionError, match="did not start"):
        stuck.start()
    told = stuck.log()
    assert "store: models.old.gone: is not a field here" in told
    assert "store: models.twice: is in catalog.yaml and in the store" in told
    assert "run llmgw store remove-model NAME" in told and "Traceback" not in told

    done = llmgw("store", "remove-model", "old", "--config", stuck.config)
    assert yaml.safe_load(done.stdout) == {"models": {"old": {"gone": 1, "profiles": [SIM]}}}
    assert facts("store", "remove-model", "twice", "--config", stuck.config) == {
        "models": {"twice": {"profiles": [SIM]}}
    }

    stuck.start()
    try:
        assert stuck.get("models/twice")["origin"] == "catalog.yaml"
        removed = [row for row in stuck.get("audit")["audit"] if row["operation"] == "models.remove"]
        assert [(row["target"], row["before"]) for row in removed] == [
            ("twice", {"profiles": [SIM]}),
            ("old", {"gone": 1, "profiles": [SIM]}),
        ]
        assert all(row["actor"].startswith("store:") for row in removed)
        words = llmgw("store", "remove-model", "sim-small", "--config", stuck.config, code=1).stderr
        assert "stop it first" in words
    finally:
        stuck.stop()


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """Told in words, with the nearest one; without a store too. Nothing is made or changed."""
    control_plane = ControlPlane(tmp_path)
    words = llmgw("store", "remove-model", "m", "--config", control_plane.config, code=1).stderr
    assert "there is no store yet" in words and not (control_plane.state / "llmgw.db").exists()
    control_plane.start()
    body = {"profiles": [SIM]}
    requests.put(f"{control_plane.api}/api/v1/models/qwen", json=body, headers=control_plane.auth, timeout=20)
    control_plane.stop()
    words = llmgw("store", "remove-model", "qwem", "--config", control_plane.config, code=1).stderr
    assert "the store has no model 'qwem'; did you mean qwen?" in words
