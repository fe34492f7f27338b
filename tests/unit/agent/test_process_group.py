"""The process-group backend, with real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.engines.base import Command
from agent.supervise import proc
from agent.supervise.output import OutputFiles
from agent.supervise.process_group import ProcessGroups
from tests.fakes.supervisor import Program
from tests.unit.agent import program
from tests.unit.agent.supervision_conformance import KEY, SupervisionConformance


class Harness:
    def __init__(self, root):
        self.root = root
        self.made = []

    def supervisor(self, state="main"):
        directory = self.root / state
        directory.mkdir(exist_ok=True)
        self.made.append(ProcessGroups("node-a", directory, OutputFiles(directory / "logs")))
        return self.made[-1]

    command = staticmethod(program.command)

    def bad_command(self):
        return Command((str(self.root / "does-not-exist"),))

    def until(self, predicate):
        deadline = time.monotonic() + 10
        while not predicate():
            assert time.monotonic() < deadline, "never came true"
            time.sleep(0.005)

    def die(self, process):
        os.kill(process.pid, signal.SIGKILL)

    def clean(self):
        for supervisor in self.made:
            for found in supervisor.scan():
                supervisor.signal(found.key, "KILL")


@pytest.fixture
def harness(tmp_path):
    harness = Harness(tmp_path)
    yield harness
    harness.clean()


class TestProcessGroups(SupervisionConformance):
    def test_secrets_and_settings_of_the_agent_are_not_inherited(self, harness, monkeypatch):
        """SEC-03: an engine gets what it needs to run, and its own key by environment."""
        monkeypatch.setenv("LLMGW_AGENT_TOKEN_FILE", "/etc/secret")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
        supervisor = harness.supervisor()
        command = Command((sys.executable, "-S", "-c", "import os; print(sorted(os.environ))"), {"KEY": "ek-1"})
        supervisor.launch(KEY, (command,))
        harness.until(lambda: not supervisor.status(KEY).alive)
        (line,) = supervisor.tail(KEY)
        assert "'KEY'" in line
        assert "'LLMGW_SHARD'" in line
        assert "AWS" not in line
        assert "TOKEN_FILE" not in line

    def test_a_zombie_is_dead(self, harness):
        """AGT-07: a process that ended but was not reaped holds nothing."""
        child = subprocess.Popen([sys.executable, "-S", "-c", ""])
        harness.until(lambda: (stat := proc.read_stat(child.pid)) is not None and not stat.alive)
        assert not harness.supervisor().is_alive(proc.read_stat(child.pid).process)
        child.wait()

    def test_members_that_overwrote_their_environment_are_found(self, harness):
        """AGT-06: by session and by descent, as with workers that set their process title."""
        supervisor = harness.supervisor()
        source = (
            "import os, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    os.execve('/bin/sleep', ['sleep', '60'], {})\n"
            "print('up', flush=True)\n"
            "time.sleep(60)"
        )
        supervisor.launch(KEY, (Command((sys.executable, "-S", "-c", source)),))
        harness.until(lambda: "up" in supervisor.tail(KEY) and len(supervisor.members(KEY)) == 2)
        supervisor.signal(KEY, "KILL")
        harness.until(lambda: not supervisor.status(KEY).alive and supervisor.members(KEY) == ())

    def test_output_is_bounded_while_the_engine_writes(self, harness, tmp_path):
        """AGT-06: logs are files with rotation; the engine writes on after it."""
        output = OutputFiles(tmp_path / "out", max_bytes=1000)
        descriptor = output.open(KEY)
        os.write(descriptor, b"old line\n" * 200)
        output.trim([KEY])
        assert output.path(KEY).stat().st_size == 0
        os.write(descriptor, b"new line\n")
        os.close(descriptor)
        tail = output.tail(KEY)
        assert (tail[0], tail[-1]) == ("old line", "new line")
        assert output.path(KEY).stat().st_size == len("new line\n")
        assert (output.path(KEY).stat().st_mode & 0o777) == 0o600

    def test_old_output_is_dropped_oldest_first(self, tmp_path):
        """AGT-06: output of gone shards does not fill the disk."""
        output = OutputFiles(tmp_path / "out", max_old=2)
        keys = [KEY._replace(incarnation=index) for index in range(5)]
        for index, key in enumerate(keys):
            os.close(output.open(key))
            os.utime(output.path(key), (index, index))
        output.trim([keys[0]])
        assert [key.incarnation for key in keys if output.path(key).exists()] == [0, 3, 4]

    def test_tail_masks_keys_and_control_characters(self, tmp_path):
        """SEC-03: output travels to the control plane; secrets do not."""
        output = OutputFiles(tmp_path / "out")
        descriptor = output.open(KEY)
        os.write(descriptor, b"key ek-0123456789abcdef\x1b[31m \xff\n" + b"x" * 5000)
        os.close(descriptor)
        first, second = output.tail(KEY)
        assert "0123456789" not in first
        assert "\x1b" not in first
        assert len(second) == 2000

    def test_tail_fits_into_a_registration(self, tmp_path):
        """AGT-04: the latest lines win; 64 exits with their output stay far below a frame's limit."""
        output = OutputFiles(tmp_path / "out")
        descriptor = output.open(KEY)
        for index in range(200):
            os.write(descriptor, f"{index} ".encode() + b"\xff" * 1500 + b"\n")
        os.close(descriptor)
        tail = output.tail(KEY)
        assert tail[-1].startswith("199 ")
        assert 16 * 1024 < sum(len(line.encode()) for line in tail) <= 32 * 1024

    def test_launch_with_a_program_that_ends_at_once_is_an_exit_not_an_error(self, harness):
        """AGT-06: even the fastest death has a status."""
        supervisor = harness.supervisor()
        supervisor.launch(KEY, (Command(("/bin/false",)),))
        harness.until(lambda: not supervisor.status(KEY).alive)
        assert supervisor.status(KEY).exit_status == 1

    def test_program_needs_no_agent_to_go_on(self, harness):
        """AGT-09: engines have no tie to the agent's terminal, group or pipes."""
        supervisor, process = self.run(harness, Program(lines=("up",)))
        stat = proc.read_stat(process.pid)
        assert stat.session == process.pid
        assert str(Path(f"/proc/{process.pid}/fd/0").readlink()) == "/dev/null"
        supervisor.signal(KEY, "KILL")
        self.gone(harness, supervisor)
