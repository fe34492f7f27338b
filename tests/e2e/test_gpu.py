"""Placement on GPUs: devices from ``nvidia-smi``, bound to engines by UUID (AGT-01, ENG-04, PLC-01)."""

from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from tests.harness import Cluster, until
from tests.harness.models import sim_model

Make = Callable[..., Cluster]

UUIDS = ("GPU-6513270e-269e-4d37-b2a7-4de452e6b438", "GPU-d23f0824-128b-4f33-8c5c-7fd0a6a3a450")

_CARD = """
<gpu id="00000000:{bus}:00.0">
  <product_name>NVIDIA H100 80GB HBM3</product_name>
  <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
  <mig_devices>None</mig_devices>
  <uuid>{uuid}</uuid>
  <fb_memory_usage><total>81559 MiB</total><used>0 MiB</used><free>81007 MiB</free></fb_memory_usage>
  <utilization><gpu_util>0 %</gpu_util></utilization>
  <temperature><gpu_temp>29 C</gpu_temp></temperature>
  <processes></processes>
</gpu>"""


def fake_nvidia_smi(folder: Path) -> Path:
    """A program that answers ``-L`` and ``-q -x`` for a machine with two H100."""
    listing = "\n".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: {uuid})" for n, uuid in enumerate(UUIDS))
    cards = "".join(_CARD.format(bus=f"{0x19 + n:02X}", uuid=uuid) for n, uuid in enumerate(UUIDS))
    xml = f"<?xml version='1.0' ?><nvidia_smi_log><driver_version>575.57.08</driver_version>{cards}</nvidia_smi_log>"
    (folder / "listing").write_text(listing + "\n")
    (folder / "details").write_text(xml)
    program = folder / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in -L) exec cat "{folder}/listing";; -q) exec cat "{folder}/details";; esac\nexit 2\n'
    )
    program.chmod(0o755)
    return program


def environment(pid: int) -> dict[str, str]:
    """Environment of a process as it was started."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if entry)


def test_devices_are_claimed_and_bound_by_uuid(cluster: Make, tmp_path: Path) -> None:
    """PLC-01, ENG-04: each replica has a card of its own and its engine sees that card alone; a
    replica too many is refused with figures; a replica that ends gives its card back."""
    c = cluster(
        {"cpu": sim_model()},
        agent={"hardware": {"gpu": "nvidia-smi", "nvidia_smi": str(fake_nvidia_smi(tmp_path))}},
    ).start()
    key = c.serve("cpu")
    devices = c.api("nodes/node-a")["devices"]
    assert {device["uuid"] for device in devices} == set(UUIDS)
    (device_class,) = {device["device_class"] for device in devices}

    on_gpu = {"gpu_class": device_class, "gpus": 1}
    catalog = {"cpu": sim_model(), "one": sim_model(**on_gpu), "two": sim_model(**on_gpu)}
    c.set_catalog(catalog)
    c.reload()
    for model in ("one", "two"):
        until(lambda model=model: c.replica(model), 20, model)  # type: ignore[misc]
    seen = {}
    for model in ("one", "two"):
        (shard,) = c.replica(model)["shards"]
        assert len(shard["devices"]) == 1
        assert environment(shard["pid"])["CUDA_VISIBLE_DEVICES"] == shard["devices"][0]
        seen[model] = shard["devices"][0]
    assert set(seen.values()) == set(UUIDS)
    assert environment(c.engine_pid("cpu")).get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1", "unset")
    claimed = {d["uuid"]: d["claimed_by"] for d in c.api("nodes/node-a")["devices"]}
    assert claimed == {seen[model]: c.replica(model)["id"] for model in seen}

    c.set_catalog({**catalog, "three": sim_model(**on_gpu)})
    c.reload()

    def refused() -> str:
        with pytest.raises(openai.APIStatusError) as caught:
            c.client(key).completions.create(model="three", prompt="x")
        assert caught.value.code == "model_unplaceable", caught.value
        return str(caught.value)

    for told in (until(refused, 15), c.ctl("explain", "three")):
        assert device_class in told, told
        assert "0 of 2" in told, told

    del catalog["one"]
    c.set_catalog({**catalog, "three": sim_model(**on_gpu)})
    c.reload()
    replica = until(lambda: c.replica("three"), 30, "the freed card is used")
    assert replica["shards"][0]["devices"] == [seen["one"]]
