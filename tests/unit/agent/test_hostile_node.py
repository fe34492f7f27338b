"""What a disk, an engine or another user of the node can do to an agent."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agent import installs
from agent.engines.base import Install
from agent.records import AgentState, ShardRecord, file_stem
from agent.statedir import StateDir
from agent.supervise.output import OutputFiles
from agent.supervise.proc import who_listens
from agent.validate import port_faults
from llmgw.runtime.settings import SettingsError
from llmgw.wire.messages import ShardKey
from tests.unit.agent.shards import make_spec

KEY = ShardKey("tiny-0000000a", 0, 1)


@pytest.fixture
def state(tmp_path: Path):
    opened = StateDir(tmp_path / "state")
    yield opened
    opened.close()


def record_file(state: StateDir, name: str = file_stem(KEY)) -> Path:
    return state.shards / f"{name}.json"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b"\0" * 5000,
        b'{"spec": {"replica_id": "../../etc/x"}}',
    ],
    ids=["empty", "cut short", "deep lists", "deep objects", "no UTF-8", "zeros", "a path as id"],
)
def test_records_that_are_none_are_set_aside(state: StateDir, content: bytes, capsys, caplog) -> None:
    """AGT-07: the agent starts, and says which file it could not read."""
    record_file(state).write_bytes(content)
    assert state.load() == (AgentState(), [])
    assert record_file(state).with_suffix(".bad").read_bytes() == content
    assert "set aside" in caplog.text + capsys.readouterr().err


def test_a_record_under_the_name_of_another(state: StateDir) -> None:
    """AGT-07: two files of one shard cannot both be true."""
    record = ShardRecord(spec=make_spec(KEY.replica_id), boot_id="b")
    state.save(record)
    copy = record_file(state, "other-0.1")
    copy.write_bytes(record_file(state).read_bytes())
    assert [each.spec.key for each in state.load()[1]] == [KEY]
    assert not copy.exists()


def test_a_disk_that_does_not_give_a_record_ends_the_start(state: StateDir, monkeypatch) -> None:
    """AGT-07: a record that cannot be read says nothing about its engine, which must not be
    ended for it: the agent does not start, and says why."""
    record_file(state).mkdir()
    with pytest.raises(SettingsError, match="Engines are left running"):
        state.load()
    record_file(state).rmdir()
    record_file(state).write_bytes(b"{}")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(record_file(state)))

    monkeypatch.setattr("agent.statedir.open_regular", broken)
    with pytest.raises(SettingsError, match="Input/output error"):
        state.load()
    assert record_file(state).exists()


@pytest.mark.parametrize("place", ["", "shards", "logs"])
def test_a_state_directory_others_can_write_to(tmp_path: Path, place: str) -> None:
    """AGT-07: a record names processes that the agent signals: nobody else may write one."""
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place).chmod(0o777)
    with pytest.raises(SettingsError, match="run chmod 700"):
        StateDir(tmp_path)


def test_only_the_end_of_a_flood_is_kept(tmp_path: Path) -> None:
    """AGT-06: the copy is as bounded as the file, however much came between two looks."""
    output = OutputFiles(tmp_path / "logs", max_bytes=1000)
    descriptor = output.open(KEY)
    os.write(descriptor, b"".join(b"line %05d\n" % number for number in range(5000)))
    os.close(descriptor)
    output.trim([KEY])
    old = output.path(KEY).with_suffix(".log.1")
    assert 0 < old.stat().st_size <= 1000 and old.stat().st_mode & 0o777 == 0o600
    lines = old.read_bytes().splitlines()
    assert lines[-1] == b"line 04999" and all(len(line) == 10 for line in lines)
    assert output.path(KEY).stat().st_size == 0


def test_a_full_disk_is_given_room(tmp_path: Path) -> None:
    """AGT-06: the old output cannot be kept, so it goes; the new one is cut all the same."""
    output = OutputFiles(tmp_path / "logs", max_bytes=1000)
    output.path(KEY).write_bytes(b"x" * 5000)
    output.path(KEY).with_suffix(".log.1").symlink_to("/dev/full")
    output.trim([KEY])
    assert output.path(KEY).stat().st_size == 0
    assert not output.path(KEY).with_suffix(".log.1").is_symlink()


def test_a_version_without_end(tmp_path: Path) -> None:
    """PLC-12: an engine that floods is failed and ended, with all it started, within bounds."""
    program = tmp_path / "engine"
    program.write_text(f"#!{sys.executable}\nimport os\nos.fork()\nwhile True: os.write(1, b'x' * 65536)\n")
    program.chmod(0o755)
    seen = installs.probe(Install("llamacpp", "binary", str(program)))
    assert seen.state == "failed" and "printed more than" in seen.detail
    assert [each.pid for each in psutil.process_iter(["cmdline"]) if str(program) in (each.info["cmdline"] or ())] == []


def test_who_listens() -> None:
    """AGT-08: a port that another process took is not the engine's."""
    quiet = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert who_listens((quiet.pid, os.getpid()), port) == "ours"
            assert who_listens((quiet.pid,), port) == "stranger"
        assert who_listens((quiet.pid,), port) == "nobody"
        assert who_listens((), port) == "nobody"
    finally:
        quiet.communicate(b"\n")
    assert who_listens((quiet.pid,), port) == "nobody", "a process that is gone"


@pytest.mark.parametrize("host", ["a\0b", "x" * 300, "\ud800", "..", "a b"])
def test_hosts_that_are_none(host: str) -> None:
    """AGT-05: a fault in words, no exception."""
    (found,) = port_faults(make_spec(host=host))
    assert found.code == "invalid_spec"
