"""The engine secret is rotated under a running fleet (SEC-08, ENG-03)."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import requests

from llmgw.wire.routing import decode_table
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.test_sim_fleet import Run

FEW = {
    "models": {
        "m": {
            "scaling": {"min": 2, "max": 2},
            "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 0.5, "cpu_cores": 1}],
        }
    }
}


def post(plane: ControlPlane, path: str, body: Any = None) -> Any:
    answer = requests.post(f"{plane.api}/api/v1/{path}", json=body, headers=plane.auth, timeout=30)
    assert answer.ok, answer.text
    return answer.json()


def test_the_engine_secret_is_rotated_while_models_serve(tmp_path: Path) -> None:
    """SEC-08: old keys stay good until replicas were replaced; then the old secret is gone, from the store too."""
    plane = ControlPlane(tmp_path, FEW, drain__grace="0.1s").start()
    run = Run(tmp_path, "--control-plane", str(plane.addresses["agents.listen"]), "--nodes", "2", "--devices", "0")
    router = plane.router()

    def keys() -> dict[str, str]:
        table = decode_table(router.get(f"{plane.routers}/router/v1/table", timeout=30).content)
        return {endpoint.id: endpoint.key for model in table.models for endpoint in model.endpoints}

    def generations() -> list[str]:
        return [one["id"] for one in plane.get("secrets/engine")["generations"]]

    try:
        until(lambda: len(keys()) == 2, "two replicas are ready")
        before, (first,) = keys(), generations()
        rotated = post(plane, "secrets/engine/rotate")
        assert [one["state"] for one in rotated["generations"]] == ["current", "old"]
        until(lambda: all(one["stale"] for one in plane.get("replicas")["replicas"]), "they are marked stale")
        assert keys() == before, "routers go on with the keys that the engines have"
        second = rotated["generation"]
        shown = plane.get("replicas")["replicas"][0]
        assert first in shown["stale_because"] and second in shown["stale_because"]
        assert any(problem["kind"] == "stale" for problem in plane.get("status")["problems"])
        assert plane.get("secrets/engine")["generations"][1]["replicas"] == 2

        assert len(post(plane, "replicas/restart", {"stale": True})["queued"]) == 2
        until(lambda: generations() == [second], "nothing needs the old secret any more", timeout=60)
        after = keys()
        assert len(after) == 2 and not before.keys() & after.keys() and all(after.values())
        assert not any(one["stale"] for one in plane.get("replicas")["replicas"])
        with sqlite3.connect(plane.state / "llmgw.db") as store:
            assert store.execute("SELECT number FROM secrets WHERE name = 'engine'").fetchall() == [(2,)]
            secret = bytes(store.execute("SELECT value FROM secrets").fetchone()[0]).hex()
        store.close()
        told = plane.log() + msgspec.json.encode([plane.get(path) for path in ("secrets", "audit", "events")]).decode()
        for hidden in (secret, *before.values(), *after.values()):
            assert hidden not in told
    finally:
        assert run.end()["turned_away"] == {}
        assert plane.stop() == 0
