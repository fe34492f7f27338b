"""What people see of a large fleet, and how fast: ``python bench/status.py --nodes 2000``.

A real control plane, a session per simulated node (``llmgw.sim.fleet``), and the real
command as a process of its own. Prints the pictures and a table of times, with the
longest stall of the control plane's hub during them.
"""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from datetime import datetime  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, instead of this directory

import gevent  # noqa: E402
import requests  # noqa: E402
import yaml  # noqa: E402

from controlplane.journal import files, parse_line  # noqa: E402
from llmgw.runtime.settings import parse_address  # noqa: E402
from llmgw.sim.fleet import SimFleet  # noqa: E402
from llmgw.sim.fleet_node import Shape  # noqa: E402
from llmgw.sim.fleet_tls import Identities  # noqa: E402
from tests.fakes.controlplane import LISTENERS  # noqa: E402
from tests.harness import identities  # noqa: E402

COMMANDS = (
    ("ctl", "status"),
    ("ctl", "nodes"),
    ("ctl", "models"),
    ("ctl", "replicas"),
    ("ctl", "explain", "model-00"),
    ("ctl", "nodes", "-o", "json"),
)


def catalog(models: int, replicas: int, gpus: int) -> dict[str, Any]:
    """Models that share the fleet, and one that cannot fit."""
    profile = {"engine": "sim", "source": "sim:", "gpu_class": "h100-80g", "gpus": gpus, "min_memory_gb": 32}
    profile |= {"cpu_cores": 4}
    tree = {
        f"model-{number:02}": {"scaling": {"min": replicas, "max": replicas}, "profiles": [dict(profile)]}
        for number in range(models)
    }
    tree["too-large"] = {"scaling": {"min": 1, "max": 1}, "profiles": [{**profile, "gpus": 16}]}
    return {"models": tree}


class Server:
    """The control plane's process."""

    def __init__(self, folder: Path, models: int, replicas: int, gpus: int) -> None:
        self.folder = folder
        self.authority = identities.ours().authority_folder(folder / "authority")
        identities.ours().controlplane(folder / "state" / "identity")
        self._write("catalog.yaml", catalog(models, replicas, gpus))
        settings = {
            "state_dir": str(folder / "state"),
            "catalog": str(folder / "catalog.yaml"),
            **{listener.removesuffix(".listen"): {"listen": "127.0.0.1:0"} for listener in LISTENERS},
        }
        self._write("controlplane.yaml", settings)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "controlplane.main", "--config", str(folder / "controlplane.yaml")],
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
        )
        assert self.process.stdout is not None
        self.addresses = {}
        for _ in LISTENERS:
            _, _, name, address = self.process.stdout.readline().split()
            self.addresses[name] = address
        self.api = f"http://{self.addresses['admin.listen']}"

    def _write(self, name: str, tree: Any) -> None:
        (self.folder / name).write_text(yaml.safe_dump(tree))

    @property
    def token_file(self) -> Path:
        """The local administrator's token."""
        return self.folder / "state" / "admin.token"

    def status(self) -> dict[str, Any]:
        """The admin API's status."""
        headers = {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}
        return dict(requests.get(f"{self.api}/api/v1/status", headers=headers, timeout=60).json())

    def command(self, words: tuple[str, ...], columns: int) -> tuple[float, str]:
        """Seconds of the command from start to end, and what it printed."""
        environment = {**os.environ, "LLMGW_API": self.api, "LLMGW_TOKEN_FILE": str(self.token_file)}
        environment |= {"COLUMNS": str(columns), "NO_COLOR": "1"}
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "llmgw.cli", *words], capture_output=True, text=True, env=environment, check=False
        )
        return time.monotonic() - begin, done.stdout + done.stderr

    def stalls(self) -> list[tuple[float, float]]:
        """Of each stall of the hub above 100 ms that was logged: its seconds, and how much of
        it the control plane worked. The rest is a machine that ran something else."""
        log = (self.folder / "log").read_text()
        found = re.findall(r"event loop was held.*? seconds=([0-9.]+) cpu_seconds=([0-9.]+)", log)
        return [(float(seconds), float(cpu)) for seconds, cpu in found]

    def placed(self) -> tuple[int, float]:
        """How many placements the journal has, and the seconds between the first and the last."""
        moments: list[datetime] = []
        for file in files(self.folder / "state" / "decisions.jsonl"):
            for line in file.read_bytes().splitlines() if file.exists() else ():
                entry = parse_line(line)
                if entry is not None and entry.kind == "place":
                    moments.append(datetime.fromisoformat(entry.at))
        return len(moments), (max(moments) - min(moments)).total_seconds() if moments else 0.0

    def memory(self) -> tuple[int, int]:
        """MB resident now, and at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        sizes = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status))
        return int(sizes["VmRSS"]) // 1024, int(sizes["VmHWM"]) // 1024

    def culprits(self) -> Counter[str]:
        """Where the hub was when it was held: the innermost line of ours, and how often."""
        log = (self.folder / "log").read_text()
        found: Counter[str] = Counter()
        for stack in re.findall(r"event loop was held.*", log):
            frames = re.findall(r"/((?:controlplane|llmgw)/[\w/]+\.py)[^0-9]+line (\d+), in (\w+)", stack)
            found[":".join(frames[-1]) if frames else "?"] += 1
        return found


def wait(what: str, condition: Any, seconds: float) -> float:
    """Seconds until it holds; says so on the terminal."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise SystemExit(f"{what}: not within {seconds:g} s")
        gevent.sleep(0.1)
    took = time.monotonic() - begin
    print(f"{what}: {took:.1f} s")
    return took


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--replicas", type=int, default=50, help="of each model")
    parser.add_argument("--gpus", type=int, default=4, help="of each replica")
    parser.add_argument("--away", type=int, default=37, help="nodes that leave before the pictures")
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--show", type=int, default=60, help="lines of each picture")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), options.models, options.replicas, options.gpus)
        address = parse_address(server.addresses["agents.listen"])
        fleet = SimFleet((address,), Identities(server.authority), options.nodes, Shape(options.devices))
        try:
            fleet.start()
            wait("all nodes registered", lambda: fleet.registered == len(fleet.nodes), 300)
            target = min(options.models * options.replicas, options.nodes * options.devices // options.gpus)
            wait("replicas ready", lambda: server.status()["replicas"].get("ready", 0) >= target, 600)
            fleet.lose(options.away)
            gone = server.status()["nodes"]["total"] - options.away
            wait("nodes seen to leave", lambda: server.status()["nodes"]["connected"] <= gone, 60)
            rows = []
            for words in COMMANDS:
                times = [server.command(words, options.columns) for _ in range(3)]
                text = times[0][1]
                if "json" not in words:
                    print(f"\n$ llmgw {' '.join(words)}")
                    print("\n".join(text.splitlines()[: options.show]))
                widest = max((len(line) for line in text.splitlines()), default=0)
                rows.append((" ".join(words), min(t for t, _ in times), max(t for t, _ in times), widest, len(text)))
            print(f"\n{'command':28} {'best s':>7} {'worst s':>8} {'widest':>7} {'bytes':>10}")
            for name, best, worst, widest, size in rows:
                print(f"{name:28} {best:7.2f} {worst:8.2f} {widest:7} {size:10}")
            placed, took = server.placed()
            rate = f"in {took:.2f} s, {placed / took:.0f} a second" if took else "in one pass"
            print(f"placed: {placed} replicas {rate}")
            now, most = server.memory()
            print(f"memory of the control plane: {now} MB, at most {most} MB")
            stalls = server.stalls()
            own = [cpu for _, cpu in stalls if cpu > 0.1]
            longest = max((seconds for seconds, _ in stalls), default=0)
            print(
                f"stalls of the hub above 100 ms: {len(stalls)}, longest {longest:.2f} s; of more than 100 ms of own "
                f"work: {len(own)}, longest {max(own, default=0):.2f} s"
            )
            for place, count in server.culprits().most_common(12):
                print(f"  {count:4} {place}")
        finally:
            fleet.stop()
            server.process.terminate()
            server.process.wait(20)


if __name__ == "__main__":
    main()
