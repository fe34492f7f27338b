"""The real agent as a process of its own, against a scripted control plane and real engines (AGT)."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from agent.supervise import proc
from llmgw.wire.messages import (
    CommandResult,
    Forget,
    Goodbye,
    Hello,
    Refuse,
    Register,
    ShardChanged,
    ShardExited,
)
from tests.fleet.scripted_control_plane import ControlPlane, Peer
from tests.harness import identities
from tests.harness.ports import PortBlock
from tests.unit.agent.shards import make_spec, start, stop

KEY = "ek-00112233445566778899"

# A GGUF-loving engine in the eyes of the agent: answers /health, and does what its model file says.
ENGINE = """#!{python} -S
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
if "--version" in sys.argv:
    print("version: 10068 (abc)"); sys.exit(0)
argv = dict(zip(sys.argv[1::1], sys.argv[2::1]))
todo = json.loads(open(argv["-m"], "rb").read()[4:] or b"{{}}")
print("engine argv", sys.argv[1:], flush=True)
if todo.get("exit") is not None:
    print("main: could not load the thing", flush=True); sys.exit(todo["exit"])
if todo.get("sidecar") and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN); os.setsid()
    while True: time.sleep(60)
if todo.get("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while todo.get("wait") and not os.path.exists(todo["wait"]):
    time.sleep(0.02)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if todo.get("never") else 200)
        self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
HTTPServer((argv["--host"], int(argv["--port"])), Handler).serve_forever()
"""


class Node:
    """One agent's files and processes."""

    def __init__(self, root, address):
        self.root = root
        self.state = root / "state"
        self.agents = []
        self._block = PortBlock()
        self._ports = iter(range(self._block.first, self._block.last + 1))
        self.engine = root / "engine"
        self.engine.write_text(ENGINE.format(python=sys.executable))
        self.engine.chmod(0o755)
        self.identity = identities.ours().node(root / "identity", "node-a")
        self.settings = {
            "node_id": "node-a",
            "control_planes": [address],
            "identity": str(self.identity),
            "state_dir": str(self.state),
            "engine_ports": "1024-65535",
            "labels": {"room": "r1"},
            "engines": {"llamacpp": {"kind": "binary", "path": str(self.engine)}},
            "hardware": {"gpu": "off"},
        }

    def weights(self, **todo):
        file = self.root / f"model-{len(list(self.root.glob('model-*')))}.gguf"
        file.write_bytes(b"GGUF" + json.dumps(todo).encode())
        return f"file:{file}"

    def port(self):
        """A port that nobody listens on, and that nobody else is given."""
        return next(self._ports)

    def spec(self, replica="tiny-0000000a", todo=None, **changes):
        values = {"engine": "llamacpp", "source": self.weights(**(todo or {})), "port": self.port(), "engine_key": KEY}
        return make_spec(replica, **(values | changes))

    def agent(self):
        config = self.root / "agent.yaml"
        config.write_text(yaml.safe_dump(self.settings))
        with (self.root / "agent.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "agent.main", "--config", str(config)], stderr=log)
        self.agents.append(process)
        return process

    def log(self):
        return (self.root / "agent.log").read_text()

    def engines(self):
        """Pids with this agent's marker."""
        mine = []
        for pid, each in proc.read_all().items():
            marks = proc.read_marks(pid) if each.alive else None
            if marks is not None and marks[1] == str(self.state):
                mine.append(pid)
        return sorted(mine)

    def clean(self):
        for process in self.agents:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in self.engines():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._block.close()


@pytest.fixture
def control():
    control = ControlPlane()
    yield control
    control.close()


@pytest.fixture
def node(tmp_path, control):
    node = Node(tmp_path, control.address)
    yield node
    node.clean()
    sys.stderr.write(node.log() if node.agents else "")  # shown if the test failed


def until(predicate, seconds=45):
    deadline = time.monotonic() + seconds
    while not (value := predicate()):
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.01)
    return value


def ready_session(control):
    """A session whose agent has seen its engine run."""
    peer, hello, register = control.session()
    while any(engine.state == "probing" for engine in register.inventory.engines):
        register = peer.take(Register)
    return peer, hello, register


def bring_up(peer, spec, **command):
    """Start a shard and wait until it is ready; its status."""
    peer.send(start(spec, **command))
    return peer.take(ShardChanged, where=lambda m: m.status.state == "ready" and m.status.spec.key == spec.key).status


def test_registers_everything(control, node):
    """AGT-01, AGT-02, PLC-12, SEC-01: its certificate's identity, whole inventory, heartbeats with measurements."""
    node.agent()
    peer, hello, register = ready_session(control)
    assert peer.uri == "llmgw:node:node-a"
    assert "Authorization" not in peer.head
    assert "Llmgw-Node: node-a" in peer.head
    assert (hello.node_id, hello.oldest_protocol, hello.newest_protocol) == ("node-a", 1, 1)
    inventory = register.inventory
    assert (inventory.address, inventory.labels, inventory.devices) == ("127.0.0.1", {"room": "r1"}, ())
    assert inventory.boot_id == proc.boot_id() == hello.boot_id
    assert [(e.name, e.state, e.version) for e in inventory.engines] == [("llamacpp", "ready", "b10068")]
    assert register.shards == register.exits == ()
    first, second = peer.heartbeats.get(timeout=10), peer.heartbeats.get(timeout=10)
    assert second.sequence == first.sequence + 1
    assert second.measurements.memory_available_bytes > 0
    assert (node.identity / "key.pem").read_text().splitlines()[1] not in node.log()


def test_start_ready_stop(control, node):
    """AGT-05 to AGT-08, ENG-03: a shard from start to confirmed exit; its key never in argv or logs."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"sidecar": True})
    status = bring_up(peer, spec)
    assert status.spec == spec.without_secret()
    assert len(node.engines()) == 2
    assert urllib.request.urlopen(f"http://127.0.0.1:{spec.port}/health", timeout=5).status == 200
    (record,) = node.state.glob("shards/*.json")
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert json.loads(record.read_text())["pid"] == status.pid
    assert KEY not in Path(f"/proc/{status.pid}/cmdline").read_text()
    assert f"LLAMA_API_KEY={KEY}" in Path(f"/proc/{status.pid}/environ").read_text()
    peer.send(stop(spec, grace=5))
    exit = peer.take(ShardExited).exit
    assert (exit.code, exit.requested, exit.exit_status) == ("stopped", True, -15)
    assert node.engines() == []
    until(lambda: KEY not in record.read_text())
    peer.send(Forget(shards=(spec.key,)))
    until(lambda: not record.exists())
    assert KEY not in node.log()


def test_measures_its_shards(control, node):
    """AGT-02: each engine's cores and resident memory."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    bring_up(peer, spec)
    use = until(lambda: peer.heartbeats.get(timeout=10).measurements.shards)[0]
    assert (use.replica_id, use.memory_bytes > 1_000_000) == (spec.replica_id, True)


def test_engine_that_ends_by_itself(control, node):
    """AGT-06: exit status and the last output travel with the failure."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"exit": 7})
    peer.send(start(spec))
    exit = peer.take(ShardExited).exit
    assert (exit.code, exit.exit_status, exit.requested) == ("exited", 7, False)
    assert "could not load the thing" in exit.tail[-1]
    assert KEY not in str(exit.tail)


def test_engine_killed_from_outside(control, node):
    """AGT-06: kill -9 of the engine is told; what is left of its group goes too."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"sidecar": True})
    status = bring_up(peer, spec)
    until(lambda: len(node.engines()) == 2)
    os.kill(status.pid, signal.SIGKILL)
    exit = peer.take(ShardExited).exit
    assert (exit.code, exit.exit_status) == ("exited", -9)
    assert "SIGKILL" in exit.message
    assert node.engines() == []


def test_startup_timeout(control, node):
    """REC-04: an engine that never becomes ready is ended and told."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"never": True}, startup_timeout=0.5)
    peer.send(start(spec))
    exit = peer.take(ShardExited).exit
    assert exit.code == "startup_timeout"
    assert "HTTP 503" in exit.message
    assert node.engines() == []


def test_a_port_taken_while_the_engine_loads(control, node, tmp_path):
    """AGT-08, SEC-03: who took it is neither asked with the engine's key nor called ready."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"wait": str(tmp_path / "go")})
    peer.send(start(spec))
    until(node.engines)
    with socket.create_server(("127.0.0.1", spec.port)) as squatter:
        squatter.settimeout(0)
        held = peer.take(ShardChanged, where=lambda m: "not of this shard" in m.status.detail)
        assert held.status.state == "starting"
        with pytest.raises(BlockingIOError):
            squatter.accept()
    (tmp_path / "go").touch()
    assert peer.take(ShardChanged, where=lambda m: m.status.state == "ready").status.spec.key == spec.key


def test_sighup_takes_the_log_level_over(control, node):
    """AGT-09: and ends neither the agent nor its session."""
    agent = node.agent()
    ready_session(control)
    node.settings["log"] = {"level": "debug"}
    (node.root / "agent.yaml").write_text(yaml.safe_dump(node.settings))
    agent.send_signal(signal.SIGHUP)
    until(lambda: "the log level is taken over" in node.log())
    (node.root / "agent.yaml").write_text("log: {level: loud}")
    agent.send_signal(signal.SIGHUP)
    until(lambda: "the settings file was refused" in node.log())
    assert agent.poll() is None and "no session" not in node.log()


def test_stubborn_engine_is_killed_at_the_end_of_its_grace(control, node):
    """AGT-06: TERM, TERM, KILL."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"stubborn": True})
    bring_up(peer, spec)
    begin = time.monotonic()
    peer.send(stop(spec, grace=0.6))
    exit = peer.take(ShardExited).exit
    assert exit.exit_status == -9
    assert time.monotonic() - begin >= 0.6


FAULTS = [
    ({"source": "file:/does/not/exist.gguf"}, "weights_missing", "put the weights"),
    ({"source": "hf:org/model"}, "invalid_spec", "only file:"),
    ({"engine": "vllm"}, "engine_missing", "not in this node's settings"),
    ({"memory_bytes": 2**50}, "memory_short", "GiB"),
    ({"devices": ("GPU-x",)}, "device_missing", "GPU-x"),
    ({"args": ("--api-key", "hidden")}, "invalid_spec", "--api-key"),
    ({"env": {"LD_PRELOAD": "/tmp/x.so"}}, "invalid_spec", "LD_PRELOAD"),
    ({"host": "203.0.113.7"}, "invalid_spec", "not an address of this node"),
    ({"port": 70000}, "invalid_spec", "port 70000"),
]


def test_faults_are_found_before_anything_starts(control, node):
    """AGT-05: errors in seconds; nothing was launched."""
    node.agent()
    peer, _, _ = ready_session(control)
    for index, (changes, code, words) in enumerate(FAULTS):
        peer.send(start(node.spec(f"tiny-{index}", **changes)))
        exit = peer.take(ShardExited).exit
        assert (exit.replica_id, exit.code) == (f"tiny-{index}", code)
        assert words in exit.message
        assert "hidden" not in exit.message
    with socket.create_server(("127.0.0.1", 0)) as stray:
        peer.send(start(node.spec(port=stray.getsockname()[1])))
        assert peer.take(ShardExited).exit.code == "port_in_use"
    assert node.engines() == []
    assert not list(node.state.glob("logs/*.log"))


def test_engines_outlive_sessions(control, node):
    """AGT-03, AGT-09: severed connections make new sessions and touch no engine. Without that,
    the pid would differ."""
    node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    pid = bring_up(peer, spec).pid
    for end in (Peer.close, lambda p: p.send(Goodbye(reason="restart", spread_seconds=0.2)), garbage, truncated):
        end(peer)
        peer, hello, register = control.session()
        assert [(s.pid, s.state, s.adopted) for s in register.shards] == [(pid, "ready", False)]
        assert hello.last_command == register.last_command is not None
    assert control.sessions.empty()
    assert node.engines() == [pid]


def garbage(peer):
    peer.connection.sendall(b"\x00\x00\x00\x04\xff\xff\xff\xff")


def truncated(peer):
    peer.connection.sendall(b"\x00\x00\x10\x00abc")
    peer.close()


def test_silent_control_plane_is_left(control, node):
    """AGT-03: no acknowledgement for the silence time: a new session is made."""
    control.welcome = type(control.welcome)(
        session_id="s", protocol=1, version="1", epoch=1, heartbeat_seconds=0.1, silence_seconds=0.5
    )
    node.agent()
    peer, _, _ = control.session()
    peer.acknowledge = False
    control.session()
    assert peer.closed.wait(10)
    assert "nothing was heard" in node.log()


def test_refusals_are_told_in_the_log_and_tried_again(control, node):
    """AGT-03: a refusal is said in words; the agent keeps trying."""
    control.refuse_upgrade = (403, "unauthorised", "the certificate is node-b's")
    node.agent()
    until(lambda: len(control.heads) >= 2)
    assert "the certificate is node-b's (unauthorised)" in node.log()
    control.refuse_upgrade = None
    welcome, control.welcome = control.welcome, None
    peer = control.sessions.get(timeout=15)
    peer.send(Refuse(code="protocol_too_old", message="upgrade the agent", retry_seconds=0.0))
    control.welcome = welcome
    control.session()
    assert "upgrade the agent (protocol_too_old)" in node.log()


@pytest.mark.parametrize(
    ("wrong", "words"), [("strange", "does not trust"), ("expired", "expired"), ("their", "we do not trust")]
)
def test_wrong_certificates_are_told_in_the_log_and_tried_again(control, node, wrong, words):
    """SEC-02: of an authority that they do not know, expired, or theirs of one that we do not know; what is mended
    in the folder is used without a restart."""
    ours, strangers = identities.ours(), identities.strangers()
    if wrong == "strange":
        strangers.folder(node.identity, "node", "node-a", trusts=[ours.root])
    elif wrong == "expired":
        ours.expired(node.identity, "node", "node-a")
    else:
        ours.folder(node.identity, "node", "node-a", trusts=[strangers.root])
    node.agent()
    until(lambda: words in node.log())
    until(lambda: wrong == "their" or len(control.faults) >= 2)
    ours.node(node.identity, "node-a")
    control.session()
    assert "Traceback" not in node.log()


def test_several_control_planes(control, node):
    """AGT-03: the next address is tried when one does not answer."""
    node.settings["control_planes"] = [f"127.0.0.1:{node.port()}", control.address]
    node.agent()
    control.session()


def test_kill_9_of_the_agent(control, node):
    """AGT-07: adopted with the same pid and watched again; an exit meanwhile is told; a stop reaches the group."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    kept, dying = node.spec(todo={"sidecar": True}), node.spec("tiny-0000000b")
    pid = bring_up(peer, kept).pid
    other = bring_up(peer, dying).pid
    agent.kill()
    agent.wait()
    os.kill(other, signal.SIGKILL)
    until(lambda: proc.read_stat(other) is None or not proc.read_stat(other).alive)
    node.agent()
    peer, _, register = control.session()
    (status,) = register.shards
    assert (status.pid, status.state, status.adopted) == (pid, "ready", True)
    (exit,) = register.exits
    assert (exit.key, exit.code, exit.exit_status) == (dying.key, "exited", None)
    assert any("engine argv" in line for line in exit.tail)
    peer.send(stop(kept, grace=5))
    assert peer.take(ShardExited, where=lambda m: m.exit.key == kept.key).exit.code == "stopped"
    assert node.engines() == []


def test_a_stop_cut_short_by_kill_9_goes_on(control, node):
    """AGT-06, AGT-07, case 19: an agent that dies in the middle of a stop leaves no engine that nobody ends: the
    next one goes on with it, unasked, and tells it as the stop that it was."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec(todo={"stubborn": True})
    pid = bring_up(peer, spec).pid
    peer.send(stop(spec, grace=1.5))
    peer.take(ShardChanged, where=lambda m: m.status.state == "stopping")
    (file,) = node.state.glob("shards/*.json")
    until(lambda: json.loads(file.read_text()).get("ending"))
    agent.kill()
    agent.wait()
    assert node.engines() == [pid]
    node.agent()
    peer, _, register = control.session()
    assert [(s.pid, s.state) for s in register.shards] == [(pid, "stopping")]
    exit = peer.take(ShardExited).exit
    assert (exit.key, exit.code, exit.requested) == (spec.key, "stopped", True)
    assert node.engines() == []


def test_sigterm_leaves_engines_running(control, node):
    """AGT-09: stopping or upgrading the agent is no reason to stop an engine."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    pid = bring_up(peer, node.spec()).pid
    agent.terminate()
    assert agent.wait(10) == 0
    assert node.engines() == [pid]
    node.agent()
    _, _, register = control.session()
    assert [s.pid for s in register.shards] == [pid]


def test_an_engine_launched_but_not_written_down_is_adopted(control, node):
    """AGT-07: a crash between launch and record. Seen to fail if only recorded pids are adopted: two engines
    would fight for the port."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    pid = bring_up(peer, spec).pid
    agent.kill()
    agent.wait()
    (file,) = node.state.glob("shards/*.json")
    record = json.loads(file.read_text())
    del record["pid"], record["started"]
    record["state"] = "starting"
    file.write_text(json.dumps(record))
    node.agent()
    peer, _, register = control.session()
    assert [s.pid for s in register.shards] == [pid]
    until(lambda: json.loads(file.read_text()).get("state") == "ready")
    assert json.loads(file.read_text())["pid"] == pid


def test_an_unidentified_engine_is_killed(control, node):
    """AGT-07: it holds devices and ports that nobody accounts for; another agent's engine is left alone."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    bring_up(peer, node.spec(todo={"stubborn": True, "sidecar": True}))
    agent.kill()
    agent.wait()
    for file in node.state.glob("shards/*.json"):
        file.unlink()
    environment = {"LLMGW_SHARD": "x-1/0.1", "LLMGW_AGENT_STATE": "/another/agent", "LLMGW_NODE": "node-b"}
    stranger = subprocess.Popen(["/bin/sleep", "60"], env=environment, start_new_session=True)
    try:
        node.agent()
        _, _, register = control.session()
        assert register.shards == ()
        until(lambda: node.engines() == [])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_reused_pid_is_not_adopted(control, node):
    """AGT-07: pid alone proves nothing."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    pid = bring_up(peer, spec).pid
    agent.kill()
    agent.wait()
    os.kill(pid, signal.SIGKILL)
    until(lambda: node.engines() == [])
    stranger = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    try:
        (file,) = node.state.glob("shards/*.json")
        record = json.loads(file.read_text())
        record["pid"] = stranger.pid
        file.write_text(json.dumps(record))
        node.agent()
        _, _, register = control.session()
        assert register.shards == ()
        assert [exit.key for exit in register.exits] == [spec.key]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_reboot_is_told_apart_from_a_restart(control, node):
    """AGT-07, case 16: after a reboot another process may have the recorded pid and start time; it is neither
    adopted nor signalled, and the exit says what happened. Without the boot id it would pass for the engine."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    bring_up(peer, spec)
    agent.kill()
    agent.wait()
    for pid in node.engines():
        os.kill(pid, signal.SIGKILL)
    until(lambda: node.engines() == [])
    stranger = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
    try:
        (file,) = node.state.glob("shards/*.json")
        record = json.loads(file.read_text())
        record |= {"pid": stranger.pid, "started": proc.read_stat(stranger.pid).started, "boot_id": "before-the-reboot"}
        file.write_text(json.dumps(record))
        node.agent()
        peer, hello, register = control.session()
        assert hello.boot_id == proc.boot_id()
        assert register.shards == ()
        (exit,) = register.exits
        assert (exit.key, exit.code, exit.message) == (spec.key, "exited", "the node was restarted")
        peer.send(stop(spec))
        assert peer.take(ShardExited).exit.key == spec.key
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_engine_that_answers_nothing_is_not_dead(control, node):
    """AGT-08, case 28: an engine too busy to answer is left alone once it was ready, also by an agent that has
    just started: it lives. A probe that judged it would end it, or make it start anew."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    pid = bring_up(peer, spec).pid
    (file,) = node.state.glob("shards/*.json")
    until(lambda: json.loads(file.read_text()).get("state") == "ready")
    os.kill(pid, signal.SIGSTOP)
    agent.kill()
    agent.wait()
    node.agent()
    peer, _, register = control.session()
    assert [(s.pid, s.state, s.adopted) for s in register.shards] == [(pid, "ready", True)]
    seen = peer.heartbeats.get(timeout=10).sequence
    until(lambda: peer.heartbeats.get(timeout=10).sequence > seen + 10)
    assert not [message for message in peer.inbox.queue if isinstance(message, (ShardExited, ShardChanged))]
    os.kill(pid, signal.SIGCONT)
    assert urllib.request.urlopen(f"http://127.0.0.1:{spec.port}/health", timeout=5).status == 200
    assert node.engines() == [pid]


def test_commands_are_deduplicated_after_kill_9(control, node):
    """AGT-04: on disk, by id; the next agent too obeys no leader of an older epoch, nor a command of one."""
    agent = node.agent()
    peer, _, _ = ready_session(control)
    spec = node.spec()
    command = start(spec, epoch=5)
    peer.send(command)
    peer.take(ShardChanged, where=lambda m: m.status.state == "ready")
    agent.kill()
    agent.wait()
    node.agent()
    until(lambda: "is not obeyed: epoch 1 is older than 5" in node.log())
    control.welcome = replace(control.welcome, epoch=5)

    def registered(peer):
        return any(isinstance(message, Register) for message in list(peer.inbox.queue))

    peer = until(lambda: next(filter(registered, control.peers[1:]), None))
    hello = peer.take(Hello)
    assert (hello.highest_epoch, hello.last_command) == (5, command.command_id)
    peer.send(command)
    assert peer.take(CommandResult).outcome == "duplicate"
    peer.send(stop(spec, epoch=4))
    result = peer.take(CommandResult)
    assert (result.outcome, result.code) == ("refused", "stale_epoch")
    assert len(node.engines()) == 1


def test_two_agents_never_share_a_state_directory(control, node):
    """AGT-07: a clear error instead of two supervisors for one engine."""
    node.agent()
    control.session()
    second = node.agent()
    assert second.wait(15) == 2
    assert "another agent (pid" in node.log()


def test_bad_settings(node):
    """Errors a person sees: the place, what is wrong, the remedy; all at once; exit status 2, no traceback."""
    node.settings |= {"address": "a b", "node_id": "a b", "engines": {"llamacp": {"kind": "x"}}}
    assert node.agent().wait(15) == 2
    for words in ("address: must be", "node_id: must be", "did you mean llamacpp", "3 faults"):
        assert words in node.log()
    assert "Traceback" not in node.log()


def test_missing_engine_is_told_in_the_inventory(control, node):
    """PLC-12: the refusal of a placement carries the node's words."""
    node.settings["engines"]["llamacpp"]["path"] = "/opt/none/llama-server"
    node.agent()
    _, _, register = ready_session(control)
    (engine,) = register.inventory.engines
    assert engine.state == "failed"
    assert "/opt/none/llama-server does not exist" in engine.detail


def test_bad_record_files_are_set_aside(control, node):
    """AGT-07: one broken file must not keep the agent from its other shards."""
    (node.state / "shards").mkdir(parents=True)
    (node.state / "shards" / "x-0.1.json").write_text("{broken")
    (node.state / "agent.json").write_text('{"highest_epoch": "seven"}')
    node.agent()
    _, hello, register = control.session()
    assert (hello.highest_epoch, register.shards) == (0, ())
    assert (node.state / "shards" / "x-0.1.bad").exists()
    assert "set aside" in node.log()


def test_simulated_engine(control, node):
    """ENG-01, ENG-07: the built-in engine behind the same adapter protocol, keyed."""
    node.settings["engines"] = {"sim": {"kind": "builtin"}}
    node.agent()
    peer, _, register = ready_session(control)
    assert [(e.name, e.state) for e in register.inventory.engines] == [("sim", "ready")]
    spec = node.spec(engine="sim", source="sim:")
    bring_up(peer, spec)
    request = urllib.request.Request(f"http://127.0.0.1:{spec.port}/v1/chat/completions", b"{}")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=5)  # noqa: S310
    assert caught.value.code == 401
    peer.send(stop(spec))
    assert peer.take(ShardExited).exit.code == "stopped"
