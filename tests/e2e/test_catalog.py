"""What operators change and get wrong: catalog, settings, models that cannot fit (CAT-06, PLC-24, REC-06)."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import openai
import pytest
import yaml

from tests.harness import Cluster, until
from tests.harness.models import sim_model
from tests.harness.streams import OpenStream

Make = Callable[..., Cluster]


def refusal(client: openai.OpenAI, model: str) -> openai.APIStatusError:
    """The error a request for ``model`` gets; fails (for ``until``) while it is answered."""
    try:
        client.completions.create(model=model, prompt="x", max_tokens=1)
    except openai.APIStatusError as error:
        return error
    raise AssertionError(f"{model} still answers")


def test_model_removed(cluster: Make, models: dict[str, Any]) -> None:
    """REC-06, case 24: the removed model gets nothing new, its stream finishes whole, then the
    engine is stopped and no process is left; its neighbour is not touched.

    Without the drain the stream would break off with an error.
    """
    c = cluster(
        {"tiny": models["tiny"], "going": sim_model("--loop", "--decode-rate", "20")},
        controlplane={"drain": {"grace": "30s"}},
    ).start()
    client = c.client(c.serve("tiny", "going"))
    tiny, going = c.engine_pid("tiny"), c.engine_pid("going")
    stream = OpenStream(client, "going", max_tokens=60)
    stream.goes_on(2)

    c.set_catalog({"tiny": models["tiny"]})
    c.reload()
    error = until(lambda: refusal(client, "going"), 10, "the model is gone for new requests")
    assert (error.status_code, error.code) == (404, "model_not_found")
    assert stream.is_alive(), "the stream was over before the test could see the drain"
    stream.goes_on(5)
    until(lambda: not stream.is_alive(), 15, "the stream ended")
    assert stream.error is None
    assert stream.finish == "length"
    assert len([piece for piece in stream.pieces if piece]) == 60
    until(lambda: going not in c.engine_pids(), 20, "the engine is stopped")
    assert c.engine_pids() == {tiny}
    assert c.engine_pid("tiny") == tiny
    assert c.answers(client, "tiny")


def test_model_added_and_changed(cluster: Make, models: dict[str, Any]) -> None:
    """CAT-06: a model added by a reload is placed; nothing else moves."""
    c = cluster({"tiny": models["tiny"]}).start()
    c.serve("tiny")
    before = c.engine_pid("tiny")
    c.set_catalog({"tiny": models["tiny"], "more": sim_model()})
    c.reload()
    until(lambda: c.replica("more"), 20, "the new model is ready")
    assert c.engine_pid("tiny") == before


def test_model_that_cannot_fit(cluster: Make, models: dict[str, Any]) -> None:
    """PLC-24, PLC-12: needed and available figures in explain, status and the router's answer."""
    huge = {**models["tiny"], "profiles": [{**models["tiny"]["profiles"][0], "min_memory_gb": 54321}]}
    c = cluster({"huge": huge, "tiny": models["tiny"]}).start()
    client = c.client(c.serve("tiny"))
    error = until(lambda: refusal(client, "huge"), 10)

    def unplaceable() -> openai.APIStatusError:
        error = refusal(client, "huge")
        assert error.code == "model_unplaceable", error
        return error

    error = until(unplaceable, 10, "the router says why")
    assert error.status_code == 503
    total = c.api("nodes/node-a")["memory"]["total_bytes"] / 2**30
    for told in (str(error), c.ctl("explain", "huge"), c.ctl("status")):
        assert "54321" in told.replace(",", ""), told
        assert f"{total:.0f}" in told or f"{total:.1f}" in told, (total, told)
    assert not [p for p in c.engines() if "54321" in p.command]


BAD_CATALOG = """
models:
  one:
    scaling: {min: 3, max: 1}
    profiles:
      - engine: lamacpp
        source: file:relative/path
        min_memory_gb: -1
  two:
    scalng: {min: 1, max: 1}
    profiles:
      - engine: sim
        source: "sim:"
        min_memory_gb: 0.1
        args: [--port, "1"]
"""
FAULTS = ("lamacpp", "absolute path", "min_memory_gb", "scalng", "--port")


def test_bad_catalog_at_start(cluster: Make) -> None:
    """CAT-01: exit status 2, every fault at once with its place, no traceback."""
    c = cluster({})
    c.catalog_file.write_text(BAD_CATALOG)
    control = c.start_controlplane()
    assert until(lambda: control.process.poll() is not None, 15)
    assert control.process.returncode == 2
    for fault in FAULTS:
        assert fault in control.output, control.output
    assert "Traceback" not in control.output


def test_bad_catalog_at_reload(cluster: Make, models: dict[str, Any]) -> None:
    """CAT-06: the one in use stays, the process lives and serves, and status names the faults."""
    c = cluster({"tiny": models["tiny"]}).start()
    client = c.client(c.serve("tiny"))
    before = c.engine_pids()
    c.catalog_file.write_text(BAD_CATALOG)
    c.reload()

    def told() -> bool:
        text = c.ctl("status")
        return "catalog" in text and "refused" in text

    until(told, 10, "status shows the refused catalog")
    for fault in FAULTS:
        assert fault in c.controlplane.output
    assert c.answers(client, "tiny")
    assert c.engine_pids() == before
    c.set_catalog({"tiny": models["tiny"], "next": sim_model()})
    c.reload()
    until(lambda: c.replica("next"), 20, "the repaired catalog is taken")
    assert "refused" not in c.ctl("status")


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "controlplane": {
        "agents": {"listn": "127.0.0.1:1"},
        "loop": {"interval": "soon"},
        "admin": {"listen": "0.0.0.0:1"},
    },
    "agent": {"engine_ports": "9-1", "control_planes": ["nowhere"], "labels": {"a": 1}, "nod_id": "x"},
    "router": {"workers": "many", "listen": "8080", "stat_dir": "/tmp"},
}


@pytest.mark.parametrize("part", list(BAD_SETTINGS))
def test_bad_settings(cluster: Make, part: str) -> None:
    """Settings: exit status 2 and every fault of a file at once, by its place; no traceback."""
    c = cluster({})
    file = c.folder / "bad.yaml"
    faulty = {name: value for name, value in BAD_SETTINGS[part].items() if name != "admin"}
    file.write_text(yaml.safe_dump({**yaml.safe_load(c.settings(part).read_text()), **faulty}))
    process = c.run_part(part, file)
    until(lambda: not process.running, 15, f"the {part} ends")
    assert process.process.returncode == 2, process.output
    for name, value in faulty.items():
        leaf = next(iter(value)) if isinstance(value, dict) and name != "labels" else name
        assert leaf in process.output, process.output
    assert "Traceback" not in process.output


def test_listening_for_other_machines(cluster: Make) -> None:
    """API-02, SEC-01: the admin API asks for TLS first, told by the setting's name; what speaks TLS anyhow may."""
    everywhere = {part: {"listen": "0.0.0.0:0"} for part in ("admin", "agents", "routers", "join")}
    c = cluster({}, controlplane=everywhere)
    control = c.start_controlplane()
    until(lambda: not control.running, 15)
    assert control.process.returncode == 2
    assert "admin.listen" in control.output and "admin.certificate" in control.output
    assert not [part for part in ("agents", "routers", "join") if f"{part}.listen" in control.output], control.output


@pytest.mark.parametrize("part", list(BAD_SETTINGS))
def test_missing_file(part: str, tmp_path: Any) -> None:
    """A settings file that is not there: the file's name and exit status 2."""
    command = [sys.executable, "-m", f"{part}.main", "--config", str(tmp_path / "absent.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert "absent.yaml" in done.stderr
    assert "Traceback" not in done.stderr
