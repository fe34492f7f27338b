"""What the benchmarks share: environments of their own, processes, and the load generator."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
KEY = "sk-llmgw-0123456789abcdef0123456789abcdef"
"""The client's key of every run; it opens nothing else."""

say = Console(stderr=True)


class Unavailable(Exception):
    """Something of the benchmark cannot be had here; the message says what."""


def environment(name: str, packages: str) -> Path:
    """A virtual environment of its own with ``packages``; made once."""
    place = CACHE / name
    stamp = place / "installed"
    if stamp.exists() and stamp.read_text() == packages:
        return place / "bin"
    say.print(f"installing {packages} into {place}", markup=False)
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    done = subprocess.run(
        [place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *packages.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise Unavailable(f"{packages} cannot be installed: {errors[-1][:300]}")
    stamp.write_text(packages)
    return place / "bin"


def require_wrk() -> None:
    """The load generator, from the system's packages."""
    if shutil.which("wrk") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        say.print("installing wrk")
        if subprocess.run(["apt-get", "install", "-qq", "-y", "wrk"], capture_output=True, check=False).returncode:
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
            subprocess.run(["apt-get", "install", "-qq", "-y", "wrk"], capture_output=True, check=False)
    if shutil.which("wrk") is None:
        raise Unavailable("wrk is not installed (Debian: apt-get install wrk)")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Process:
    """A started program and what it started."""

    name: str
    port: int
    popen: subprocess.Popen[bytes]
    log: Path

    def tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.popen.pid)
        return [root, *root.children(recursive=True)]

    def cpu(self) -> float:
        """Seconds used by all processes so far."""
        total = 0.0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory(self) -> float:
        """Resident megabytes of all processes."""
        total = 0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total / 1e6

    def stop(self) -> None:
        for process in reversed(self.tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(self.tree() if psutil.pid_exists(self.popen.pid) else [], timeout=5)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait()


def start(name: str, port: int, command: list[str], directory: Path, **env: str) -> Process:
    log = directory / f"{name}.log"
    with log.open("wb") as stream:
        popen = subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=ROOT, env={**os.environ, **env}, start_new_session=True
        )
    return Process(name, port, popen, log)


def request(port: int, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=10
    ) as answer:
        return bytes(answer.read())


def wait_until_right(process: Process, seconds: float) -> None:
    """Until a whole answer and a stream come through ``process`` as the engine sent them."""
    deadline = time.monotonic() + seconds
    chat: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    while True:
        try:
            whole = json.loads(request(process.port, "/v1/chat/completions", chat))
            stream = request(process.port, "/v1/chat/completions", {**chat, "stream": True})
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline or process.popen.poll() is not None:
                raise Unavailable(f"{process.name} does not answer: {error}; see {process.log}") from error
            time.sleep(0.2)
            continue
        if whole["choices"][0]["message"]["content"].startswith("Hello") and stream.rstrip().endswith(b"[DONE]"):
            return
        raise Unavailable(f"{process.name} changes answers")


@dataclass
class Load:
    """One run of wrk."""

    requests: int
    rps: float
    p50: float
    p99: float


def wrk(port: int, script: str, seconds: float, connections: int, delay_ms: int = 0) -> Load:
    """Load from one thread. Latencies in ms. Raises ``Unavailable`` if any answer was an error."""
    done = subprocess.run(
        [
            "wrk", "-t1", f"-c{connections}", f"-d{round(seconds)}s", "--latency", "--timeout", "30s",
            "-s", str(ROOT / "bench" / script), f"http://127.0.0.1:{port}/v1/chat/completions",
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "BENCH_KEY": KEY, "BENCH_DELAY_MS": str(delay_ms)},
    )  # fmt: skip
    text = done.stdout
    bad = re.search(r"Non-2xx.*|Socket errors: .*", text)
    if bad or not (count := re.search(r"(\d+) requests in", text)):
        raise Unavailable(f"wrk: {bad[0] if bad else done.stderr or text}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    return Load(int(count[1]), float(rate[1]) if rate else 0.0, _ms(text, "50%"), _ms(text, "99%"))


def _ms(text: str, name: str) -> float:
    match = re.search(rf"{name}\s+([\d.]+)(us|ms|s)\b", text)
    if not match:
        return float("nan")
    return float(match[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[match[2]]
