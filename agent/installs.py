"""Engines on this node: where the settings say they are, and whether they run.

An engine counts only after its binary was seen to run, never because something is
on PATH (PLC-12).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import gevent

from agent.engines import ADAPTERS
from agent.engines.base import Install
from agent.supervise.environment import inherited_environment
from llmgw.runtime.settings import Fault, did_you_mean
from llmgw.wire.messages import EngineInstall

PROBE_TIMEOUT = 60.0
"""Seconds for ``--version``: a Python engine may import for long."""

MAX_OUTPUT = 256 * 1024
"""Bytes of output of ``--version`` that are read."""

_FIELDS = {"binary": {"path"}, "python-package": {"venv", "binary"}, "builtin": set[str]()}


def configured_faults(engines: Mapping[str, Any]) -> list[Fault]:
    """Everything wrong with the setting ``engines``, each with its place."""
    faults = []
    for name, entry in engines.items():
        place = f"engines.{name}"
        if name not in ADAPTERS:
            known = ", ".join(sorted(ADAPTERS))
            faults.append(Fault(place, f"is no engine of this build ({known}){did_you_mean(name, ADAPTERS)}"))
            continue
        if not isinstance(entry, dict) or entry.get("kind") not in _FIELDS:
            faults.append(Fault(f"{place}.kind", f"must be one of {', '.join(_FIELDS)}"))
            continue
        kind = entry["kind"]
        wanted = _FIELDS[kind]
        if (kind == "builtin") != (name == "sim"):
            faults.append(Fault(f"{place}.kind", "builtin is the kind of the engine sim, and only of it"))
        for field in wanted:
            if not isinstance(entry.get(field), str) or not entry[field]:
                faults.append(Fault(f"{place}.{field}", f"is required for the kind {kind}"))
        for field in sorted(set(entry) - wanted - {"kind"}):
            hint = did_you_mean(field, wanted)
            faults.append(Fault(f"{place}.{field}", f"is not a setting of the kind {kind}{hint}"))
        binary = PurePosixPath(str(entry.get("binary", "")))
        if kind == "python-package" and (binary.is_absolute() or ".." in binary.parts):
            faults.append(Fault(f"{place}.binary", "must be a path inside the package directory, without .."))
        if kind == "binary" and isinstance(entry.get("path"), str) and not Path(entry["path"]).is_absolute():
            faults.append(Fault(f"{place}.path", "must be an absolute path"))
    return faults


def locate(name: str, entry: Mapping[str, Any]) -> Install:
    """The program of a configured engine. Looks at the disk; never raises."""
    kind = entry["kind"]
    if kind == "builtin":
        return Install(name, "builtin", sys.executable)
    if kind == "binary":
        file = Path(entry["path"])
    else:
        venv = Path(entry["venv"]).expanduser().absolute()
        homes = sorted(venv.glob("lib/python3.*/site-packages"))
        if not homes:
            return Install(name, kind, problem=f"{venv} is not a Python virtual environment: install the engine there")
        file = next((home / entry["binary"] for home in homes if (home / entry["binary"]).exists()), homes[0])
        if file == homes[0]:
            return Install(name, kind, problem=f"{entry['binary']} is not in {homes[0]}: install the engine's package")
    if not file.is_file():
        return Install(name, kind, problem=f"{file} does not exist: install the engine or correct engines.{name}")
    if not os.access(file, os.X_OK):
        return Install(name, kind, problem=f"{file} is not executable: run chmod +x {file}")
    return Install(name, kind, str(file))


def probe(install: Install) -> EngineInstall:
    """Run the engine's ``--version``: ``ready`` with its version, or ``failed`` with the
    reason in words. Takes as long as that program does: run it in a greenlet."""
    adapter = ADAPTERS[install.engine]
    if install.problem:
        return EngineInstall(name=install.engine, state="failed", detail=install.problem)
    argv = adapter.version_command(install)
    try:
        returncode, data = _run(argv)
    except subprocess.TimeoutExpired:
        detail = f"{' '.join(argv)} did not end within {PROBE_TIMEOUT:g} s"
        return EngineInstall(name=install.engine, state="failed", detail=detail)
    except OSError as error:
        detail = f"{install.path} cannot be run: {error.strerror}"
        return EngineInstall(name=install.engine, state="failed", detail=detail)
    if len(data) > MAX_OUTPUT:
        detail = f"{' '.join(argv)} printed more than {MAX_OUTPUT} bytes: that is no version"
        return EngineInstall(name=install.engine, state="failed", detail=detail)
    output = data.decode("utf-8", "replace")
    version = adapter.parse_version(output) if returncode == 0 else None
    if version is None:
        last = output.strip().splitlines()[-1][:300] if output.strip() else "it printed nothing"
        status = _status(returncode)
        detail = f"{' '.join(argv)} {status}: {last}"
        return EngineInstall(name=install.engine, state="failed", detail=detail)
    return EngineInstall(name=install.engine, state="ready", version=version)


def _run(argv: tuple[str, ...]) -> tuple[int, bytes]:
    """Exit status and output of a program, which is ended once it printed more than
    ``MAX_OUTPUT``. What it started is ended with it. Raises ``OSError`` and ``TimeoutExpired``."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=inherited_environment(os.environ),
        start_new_session=True,
    )
    output = process.stdout
    assert output is not None  # noqa: S101 - a pipe was asked for
    try:
        with gevent.Timeout(PROBE_TIMEOUT, subprocess.TimeoutExpired(argv, PROBE_TIMEOUT)):
            data = output.read(MAX_OUTPUT + 1)
            if len(data) <= MAX_OUTPUT:
                return process.wait(), data
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        returncode = process.wait()
        output.close()
    return returncode, data


def _status(returncode: int) -> str:
    if returncode == -4:
        return "died of an illegal instruction (built for another processor)"
    if returncode < 0:
        return f"was killed by signal {-returncode}"
    return f"ended with exit status {returncode}" if returncode else "did not print a version"
