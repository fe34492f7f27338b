"""Devices that a stranger uses, and devices that go away under a running engine (PLC-01, PLC-02, AGT-01)."""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_gpu import UUIDS, fake_nvidia_smi
from tests.harness import Cluster, until
from tests.harness.layout import NODE
from tests.harness.models import sim_model

Make = Callable[..., Cluster]

_PROCESS = """<processes><process_info>
  <pid>{pid}</pid><type>C</type><process_name>{name}</process_name><used_memory>512 MiB</used_memory>
</process_info></processes>"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    """Installations with the simulated engine and the devices ``nvidia-smi`` tells of."""
    smi = {"hardware": {"gpu": "nvidia-smi", "nvidia_smi": str(fake_nvidia_smi(tmp_path))}}
    with ExitStack() as stack:
        yield lambda catalog: stack.enter_context(Cluster(tmp_path, catalog, agent=smi))


def rewrite(file: Path, text: str) -> None:
    """Replace a file that is read all the time."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def on_gpus(cluster: Cluster, count: int) -> dict[str, Any]:
    """What a profile says that needs ``count`` of the node's devices."""
    classes = until(lambda: {d["device_class"] for d in cluster.api(f"nodes/{NODE}")["devices"]}, 10)
    return {"gpu_class": classes.pop(), "gpus": count}


def test_a_device_that_a_stranger_uses_is_not_free(cluster: Make, tmp_path: Path) -> None:
    """Case 25, PLC-02: nothing is placed on it and the refusal names the process; once that is gone it is."""
    details = tmp_path / "details"
    free = details.read_text()
    stranger = _PROCESS.format(pid=os.getpid(), name="/usr/bin/training")
    rewrite(details, free.replace("<processes></processes>", stranger))
    c = cluster({}).start()
    until(
        lambda: all(d.get("foreign_processes") for d in c.api(f"nodes/{NODE}")["devices"]), 10, "the strangers are seen"
    )
    c.set_catalog({"simulated": sim_model(**on_gpus(c, 1))})
    c.reload()

    def refused() -> bool:
        return str(os.getpid()) in c.ctl("explain", "simulated")

    until(refused, 10, "explain names the process")
    assert "training" in c.ctl("explain", "simulated")
    assert not c.engine_pids()
    first, _, second = free.rpartition("<gpu ")
    rewrite(details, first.replace("<processes></processes>", stranger) + "<gpu " + second)
    replica = until(lambda: c.replica("simulated"), 15, "placed on the device that became free")
    assert replica["shards"][0]["devices"] == [UUIDS[1]]
    assert c.api("models/simulated")["failures"] == 0


def test_a_device_that_goes_away_breaks_nothing(cluster: Make, tmp_path: Path) -> None:
    """Case 26, AGT-01: a card is gone from the driver's list, and then the driver answers nothing at all. The
    engine that was started on it goes on, agent and control plane live, are restarted, and adopt it."""
    c = cluster({}).start()
    c.set_catalog({"simulated": sim_model(**on_gpus(c, 1))})
    c.reload()
    client = c.client(c.serve("simulated"))
    before, replica = c.engine_pids(), c.replica("simulated")
    (lost,) = replica["shards"][0]["devices"]
    details, listing = tmp_path / "details", tmp_path / "listing"
    kept = [card for card in re.findall(r"<gpu .*?</gpu>", details.read_text(), re.DOTALL) if lost not in card]
    assert len(kept) == 1
    rewrite(details, f"<nvidia_smi_log>{kept[0]}</nvidia_smi_log>")
    rewrite(listing, "".join(line for line in listing.read_text().splitlines(keepends=True) if lost not in line))

    c.agent.kill()
    c.agent.restart()
    until(lambda: c.replica("simulated")["shards"][0]["adopted"], 15, "adopted without its device")
    assert lost not in {d["uuid"] for d in c.api(f"nodes/{NODE}")["devices"]}
    details.unlink()  # from now on the program fails
    c.controlplane.kill()
    c.controlplane.restart()
    until(lambda: c.admin_up() and c.replica("simulated"), 15, "adopted by the control plane")
    assert c.replica("simulated")["id"] == replica["id"]
    assert c.engine_pids() == before
    assert c.answers(client, "simulated")
    for part in (c.agent, c.controlplane):
        assert part.running
        assert "Traceback" not in part.output
    assert lost in c.ctl("replicas") + str(c.api("replicas"))


def test_devices_are_given_on_once_their_engine_is_gone(cluster: Make) -> None:
    """Case 18, REC-03: an engine that takes its time to end holds its devices; the model that waits for them is
    started after the last process is gone, and its first start is a success."""
    c = cluster({}).start()
    both = on_gpus(c, 2)
    c.set_catalog({"stubborn": sim_model("--fail", "ignore-sigterm", **both)})
    c.reload()
    until(lambda: c.replica("stubborn"), 15, "the first model")
    (old,) = c.engine_pids()
    c.set_catalog({"next": sim_model(**both)})
    c.reload()

    def replaced() -> bool:
        pids = c.engine_pids()
        assert len(pids) <= 1, "two engines on the same devices"
        return bool(pids) and old not in pids

    limit = time.monotonic() + 20
    while not replaced():
        assert time.monotonic() < limit, "the devices are not given on"
        time.sleep(0.02)
    until(lambda: c.replica("next"), 15, "the next model")
    shown = c.api("models/next")
    assert (shown["failures"], shown.get("last_error")) == (0, None)
