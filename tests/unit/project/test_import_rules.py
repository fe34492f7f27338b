"""Who may import whom, and what pure modules may do (architecture, rules 1 to 5)."""

import subprocess
import sys
from pathlib import Path

import pytest
from gunicorn.workers.ggevent import GeventWorker

from router.worker import RouterWorker
from tests.unit.project import import_rules as rules


def _tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize("module", rules.pure_modules())
def test_pure_modules_are_pure(module: str) -> None:
    """Rule 3: no clock, no chance, no input or output in a pure module."""
    files = rules.files_of(module)
    assert files, f"pyproject.toml lists {module} as pure, but there is no such module"
    assert [line for file in files for line in rules.impurities(file)] == []


def test_no_import_crosses_parts() -> None:
    """Rule 2: only tests and llmgw.sim may import more than one part."""
    assert rules.foreign_imports() == []


def test_wire_stands_on_msgspec_alone() -> None:
    """Rule 1: llmgw.wire imports the standard library and msgspec."""
    assert rules.files_of("llmgw.wire")
    assert rules.imports_beyond("llmgw.wire", rules.WIRE_MAY_IMPORT) == []


def test_migrations_import_no_application_code() -> None:
    """Rule 5: an old migration must run under every later release."""
    assert rules.files_of("migrations")
    assert rules.imports_beyond("migrations", rules.MIGRATIONS_MAY_IMPORT) == []


def test_command_imports_nothing_early() -> None:
    """The command must not load ssl or requests before a part's main patches."""
    assert rules.files_of("llmgw.cli")
    assert rules.early_imports("llmgw.cli") == []


def test_command_loads_nothing_early() -> None:
    """The same, seen from a real interpreter: also what its imports bring along."""
    code = "import sys, llmgw.cli; print(' '.join(sorted(set(sys.argv[1:]) & set(sys.modules))))"
    heavy = sorted({"controlplane", "router", "agent", *rules.SLOW_OR_EARLY})
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True, cwd=rules.ROOT, timeout=60
    )
    assert done.stdout.split() == []


@pytest.mark.parametrize("part", ["controlplane", "agent"])
def test_mains_patch_before_anything_else(part: str) -> None:
    """A module imported before the patch keeps the blocking functions for ever."""
    assert rules.patches_first(rules.ROOT / part / "main.py")


def test_router_workers_are_patched_by_gunicorn() -> None:
    """The router's master is no gevent program; each worker is patched right after the fork."""
    assert issubclass(RouterWorker, GeventWorker)
    assert RouterWorker.patch is GeventWorker.patch
    assert RouterWorker.init_process is GeventWorker.init_process


# ------------------------------------------------------------ the checks can fail


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from time import monotonic",
        "def f():\n    import gevent.event\n",
        "import random\n\ndef f():\n    return random.random()\n",
        "from random import choice",
        "import random\n\ndef f():\n    return random.Random()\n",
        "from random import Random\n\ndef f():\n    return Random()\n",
        "import random as chance\n\ndef f():\n    return chance.choice([1])\n",
        "from datetime import datetime\n\ndef f():\n    return datetime.now()\n",
        "import datetime as dt\n\ndef f():\n    return dt.datetime.now(dt.UTC)\n",
        "from datetime import date\n\nTODAY = date.today()\n",
        "def f(path):\n    with open(path) as stream:\n        return stream.read()\n",
        "class A:\n    def f(self):\n        from socket import socket\n        return socket()\n",
        "from concurrent.futures import ThreadPoolExecutor",
        "def f():\n    print('x')\n",
        "def f():\n    return __import__('threading')\n",
    ],
)
def test_an_impure_module_is_seen(tmp_path: Path, text: str) -> None:
    """Planted impurities, also inside functions."""
    root = _tree(tmp_path, controlplane__planning__bad=text)
    assert rules.impurities(root / "controlplane/planning/bad.py", root) != []


def test_a_pure_module_may_be_handed_time_and_chance(tmp_path: Path) -> None:
    """``now`` and ``rng`` are values; so are datetimes that somebody else read."""
    text = (
        "import random\nfrom datetime import UTC, datetime\n\n"
        "def f(now: float, rng: random.Random, at: datetime, seed: int) -> tuple:\n"
        "    return now + rng.random(), at.astimezone(UTC), datetime.fromtimestamp(now, UTC), random.Random(seed)\n"
    )
    root = _tree(tmp_path, agent__machine=text)
    assert rules.impurities(root / "agent/machine.py", root) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("controlplane__api__x", "from agent.machine import Machine"),
        ("router__x", "def f():\n    import controlplane.loop\n"),
        ("agent__x", "import importlib\n\nm = importlib.import_module('router.table')\n"),
        ("llmgw__cli__x", "from controlplane.main import main"),
        ("llmgw__runtime__x", "import agent"),
        ("agent__y", "from llmgw.sim import engine"),
        ("controlplane__y", "from tests.fakes import clock"),
        ("migrations__x", "from router import table"),
    ],
)
def test_a_crossing_import_is_seen(tmp_path: Path, name: str, text: str) -> None:
    """Planted crossings between the parts."""
    assert len(rules.foreign_imports(_tree(tmp_path, **{name: text}))) == 1


def test_the_simulator_may_cross(tmp_path: Path) -> None:
    """llmgw.sim drives the machines of all parts."""
    text = "from agent.machine import Machine\nfrom controlplane.loop import Loop\n"
    assert rules.foreign_imports(_tree(tmp_path, llmgw__sim__x=text)) == []


def test_an_extra_import_of_the_wire_is_seen(tmp_path: Path) -> None:
    """Planted: the wire with a framework, a migration with application code."""
    root = _tree(tmp_path, llmgw__wire__x="import gevent\nfrom . import y\n", migrations__v1="from llmgw.wire import z")
    assert len(rules.imports_beyond("llmgw.wire", rules.WIRE_MAY_IMPORT, root)) == 1
    assert len(rules.imports_beyond("migrations", rules.MIGRATIONS_MAY_IMPORT, root)) == 1


def test_an_early_import_of_the_command_is_seen(tmp_path: Path) -> None:
    """Planted at module level, under an if, and (allowed) inside a function."""
    text = "if True:\n    import requests\n\ndef f():\n    import requests\n    return requests\n"
    assert len(rules.early_imports("llmgw.cli", _tree(tmp_path, llmgw__cli__x=text))) == 1


def test_a_late_patch_is_seen(tmp_path: Path) -> None:
    """Planted: an import before the patch."""
    root = _tree(
        tmp_path,
        late='"""Doc."""\n\nimport os\nfrom gevent import monkey\n\nmonkey.patch_all()\n',
        good='"""Doc."""\n\nfrom gevent import monkey\n\nmonkey.patch_all()\n\nimport os\n',
    )
    assert not rules.patches_first(root / "late.py")
    assert rules.patches_first(root / "good.py")
