"""Engine adapters and the checks of a spec."""

import re
import socket
from pathlib import Path

import pytest

from agent.engines import ADAPTERS
from agent.engines.base import Install, NodeFacts, ReadinessProbe
from agent.engines.llamacpp import DENIED_ARGS, DENIED_ENV
from agent.hardware.base import DeviceProcess, DeviceReading
from agent.readiness import ask, read_answer
from agent.validate import NodeState, port_faults, source_faults, spec_faults
from llmgw.wire.messages import Device, EngineInstall, PortRange
from tests.unit.agent.shards import make_spec

HELP = (Path(__file__).parent / "data" / "llama-server-help.txt").read_text()
LLAMA = ADAPTERS["llamacpp"]
SIM = ADAPTERS["sim"]
NODE = NodeFacts(cpu_count=8)


def llama(**changes):
    values = {"engine": "llamacpp", "source": "file:/srv/m.gguf", "context": 4096, "slots": 2}
    spec = make_spec(**(values | changes))
    return LLAMA.plan(spec, Install("llamacpp", "binary", "/opt/llama-server"), NODE)


def known_flags():
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", HELP))


def test_llamacpp_command():
    """ENG-01: what a profile says becomes the engine's own flags."""
    (command,) = llama(cpu_cores=3, args=("--flash-attn", "on")).commands
    assert command.argv == (
        *("/opt/llama-server", "-m", "/srv/m.gguf", "--host", "127.0.0.1", "--port", "20000", "--alias", "tiny"),
        *("-t", "3", "-c", "4096", "-np", "2", "--metrics", "--no-ui", "--offline", "--sse-ping-interval", "2"),
        *("--device", "none", "-ngl", "0", "--flash-attn", "on"),
    )


def test_llamacpp_flags_exist():
    """ENG-08: every flag sent or refused is one of the real engine's help."""
    flags = known_flags()
    sent = llama(devices=("GPU-1",)).commands[0].argv + llama().commands[0].argv
    for arg in sent:
        if re.match(r"--?[a-z]", arg):
            assert arg in flags, arg
    assert set(DENIED_ARGS) <= flags
    variables = set(re.findall(r"LLAMA_\w+", HELP))
    assert set(DENIED_ENV) <= variables


def test_threads_default_to_half_of_the_cpus():
    """ENG-04: cpu_cores, else half of the node's CPUs."""
    argv = llama().commands[0].argv
    assert argv[argv.index("-t") + 1] == "4"
    spec = make_spec(engine="llamacpp", cpu_cores=0.5)
    argv = LLAMA.plan(spec, Install("llamacpp", "binary", "/x"), NodeFacts()).commands[0].argv
    assert argv[argv.index("-t") + 1] == "1"


@pytest.mark.parametrize("adapter", [LLAMA, SIM])
def test_keys_travel_by_environment_only(adapter):
    """ENG-03: never on a command line; the readiness probe presents it."""
    spec = make_spec(engine=adapter.name, source="file:/m")
    plan = adapter.plan(spec, Install(adapter.name, "binary", "/x"), NODE)
    (command,) = plan.commands
    assert spec.engine_key not in " ".join(command.argv)
    assert spec.engine_key in command.env.values()
    assert spec.engine_key not in repr(plan)
    assert plan.probe.headers == {"Authorization": f"Bearer {spec.engine_key}"}
    keyless = adapter.plan(make_spec(engine_key="", keyed=False), Install(adapter.name, "binary", "/x"), NODE)
    assert keyless.probe.headers == {}
    assert not any("API_KEY" in name for name in keyless.commands[0].env)


@pytest.mark.parametrize("adapter", [LLAMA, SIM])
@pytest.mark.parametrize("devices", [(), ("GPU-a",), ("MIG-a", "MIG-b")])
def test_devices_are_bound_by_uuid(adapter, devices):
    """ENG-04: exactly the devices of the placement; none means none."""
    plan = adapter.plan(make_spec(devices=devices), Install(adapter.name, "binary", "/x"), NODE)
    assert plan.commands[0].env["CUDA_VISIBLE_DEVICES"] == ",".join(devices)


def test_profile_cannot_override_the_binding():
    """ENG-04: also not through its own environment."""
    plan = llama(devices=("GPU-a",), env={"CUDA_VISIBLE_DEVICES": "all"})
    assert plan.commands[0].env["CUDA_VISIBLE_DEVICES"] == "GPU-a"


@pytest.mark.parametrize(
    "args",
    [
        ("--api-key", "hidden"),
        ("--api_key", "hidden"),
        ("--api-key=hidden",),
        ("--host", "hidden"),
        ("-m", "hidden"),
        ("-c", "hidden"),
        ("-hf", "hidden"),
        ("--tools", "all"),
        ("-ngl", "99"),
        ("a" * 9000,),
        ("nul\0",),
        tuple("x" * 300),
    ],
)
def test_arguments_that_llmgw_owns_are_refused(args):
    """AGT-05: named, with a remedy, and without the value."""
    faults = LLAMA.faults(make_spec(engine="llamacpp", args=args))
    assert [fault.code for fault in faults] == ["invalid_spec"]
    assert "hidden" not in faults[0].message


@pytest.mark.parametrize(
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "BASH_ENV", "LLMGW_SHARD", "CUDA_VISIBLE_DEVICES"),
        *("LLAMA_API_KEY", "VLLM_API_KEY", "LLAMA_ARG_HOST", "LLAMA_ARG_MODEL", "GGML_VK_VISIBLE_DEVICES", "a-b", ""),
    ],
)
def test_variables_that_change_what_runs_are_refused(name):
    """AGT-05: the environment is no way around."""
    faults = LLAMA.faults(make_spec(engine="llamacpp", env={name: "hidden"}))
    assert [fault.code for fault in faults] == ["invalid_spec"]
    assert "hidden" not in faults[0].message


def test_harmless_arguments_and_variables_pass():
    """AGT-05: refusals are for what matters."""
    spec = make_spec(engine="llamacpp", args=("--flash-attn", "on", "-b", "512"), env={"OMP_NUM_THREADS": "1"})
    assert LLAMA.faults(spec) == []
    assert LLAMA.faults(make_spec(engine="llamacpp", devices=("GPU-1",), args=("-ngl", "20"))) == []
    assert SIM.faults(make_spec(args=("--slots", "2"))) == []


def test_sim_obeys_the_profiles_context_and_slots():
    """ENG-01: fields of a profile mean the same for every engine; arguments come after and win."""
    (command,) = SIM.plan(
        make_spec(context=512, slots=3, args=("--slots", "4")), Install("sim", "builtin"), NODE
    ).commands
    assert command.argv[-6:] == ("--context", "512", "--slots", "3", "--slots", "4")
    (bare,) = SIM.plan(make_spec(context=None, slots=None), Install("sim", "builtin"), NODE).commands
    assert not {"--context", "--slots"} & set(bare.argv)


def test_sim_dialect():
    """ENG-07: metrics in the dialect it was told to speak."""
    install = Install("sim", "builtin", "/python")
    assert SIM.plan(make_spec(), install, NODE).metrics == "vllm"
    assert SIM.plan(make_spec(args=("--dialect", "sglang")), install, NODE).metrics == "sglang"
    assert SIM.plan(make_spec(args=("--dialect=llamacpp",)), install, NODE).metrics == "llamacpp"


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        (("E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18081",), "port_in_use"),
        (("E llama_model_load: error loading model: invalid magic", "exiting due to"), "exited"),
        (("error: invalid argument: --bogus",), "invalid_spec"),
    ],
)
def test_causes_are_read_from_llama_servers_own_words(tail, code):
    """Say why: lines recorded from the real engine."""
    assert LLAMA.cause(tail).code == code
    assert LLAMA.cause(("all is well",)) is None


# ---------------------------------------------------------------- validation


def node_state(**changes):
    values = {
        "engines": {"llamacpp": EngineInstall(name="llamacpp", state="ready")},
        "engine_ports": PortRange(first=20000, last=20999),
        "devices": {},
        "own_pids": frozenset(),
        "memory_available": 8 * 2**30,
    }
    return NodeState(**(values | changes))


def codes(spec, **changes):
    return [fault.code for fault in spec_faults(spec, ADAPTERS.get(spec.engine), node_state(**changes))]


def test_a_good_spec_has_no_faults():
    """AGT-05: nothing is refused for no reason."""
    assert codes(make_spec(engine="llamacpp", memory_bytes=2**30)) == []


@pytest.mark.parametrize("state", ["failed", "probing", "installing"])
def test_an_engine_that_is_not_ready_carries_its_words(state):
    """PLC-12: the node's words."""
    engines = {"llamacpp": EngineInstall(name="llamacpp", state=state, detail="downloading 16 MB")}
    (fault,) = spec_faults(make_spec(engine="llamacpp"), LLAMA, node_state(engines=engines))
    assert fault.code == "engine_missing"
    assert "downloading 16 MB" in fault.message


def test_memory_names_both_figures():
    """PLC-04: needs and has; unknown memory refuses nothing."""
    spec = make_spec(engine="llamacpp", memory_bytes=24 * 2**30)
    (fault,) = spec_faults(spec, LLAMA, node_state())
    assert fault.message == "needs 24.0 GiB of memory, 8.0 GiB are available"
    assert codes(spec, memory_available=None) == []
    assert codes(make_spec(engine="llamacpp"), memory_available=1) == []


def test_devices_must_exist_be_sound_and_free_of_strangers():
    """AGT-05, PLC-02: the foreign pid is named; our own processes are no strangers; unknown refuses nothing."""
    device = Device(uuid="GPU-1")
    reading = DeviceReading(device, processes=(DeviceProcess(4711, "python3", 2**30),))
    spec = make_spec(engine="llamacpp", devices=("GPU-1",))
    (fault,) = spec_faults(spec, LLAMA, node_state(devices={"GPU-1": reading}))
    assert fault.code == "device_busy"
    assert "pid 4711 python3 (1.0 GiB)" in fault.message
    assert codes(spec, devices={"GPU-1": reading}, own_pids=frozenset({4711})) == []
    assert codes(spec) == ["device_missing"]
    assert codes(spec, devices=None) == []
    broken = DeviceReading(Device(uuid="GPU-1", excluded="memory errors"))
    assert codes(spec, devices={"GPU-1": broken}) == ["device_missing"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 1},
        {"port": 19999},
        {"host": ""},
        {"served_name": "a,b"},
        {"served_name": "--x"},
        {"cpu_cores": 0.0},
        {"cpu_cores": float("nan")},
        {"context": 0},
        {"slots": -1},
        {"startup_timeout": float("inf")},
        {"engine_key": "a\r\nX: y"},
    ],
)
def test_nonsense_is_refused(changes):
    """AGT-05: whatever a broken control plane may send."""
    assert set(codes(make_spec(engine="llamacpp", **changes))) == {"invalid_spec"}


def test_sources(tmp_path):
    """AGT-05: weights that are not there, or are something else."""
    good, bad = tmp_path / "m.gguf", tmp_path / "half.gguf"
    good.write_bytes(b"GGUF....")
    bad.write_bytes(b"<html>")
    check = lambda source: [f.code for f in source_faults(make_spec(engine="llamacpp", source=source), LLAMA)]  # noqa: E731
    assert check(f"file:{good}") == []
    for source in (f"file:{bad}", f"file:{tmp_path}", "file:/none", "file:/a\0b"):
        assert check(source) == ["weights_missing"], source
    for source in ("hf:a/b", "file:relative", "", "/srv/m.gguf"):
        assert check(source) == ["invalid_spec"], source
    assert source_faults(make_spec(source="sim:"), SIM) == []
    assert source_faults(make_spec(source="file:/x"), SIM) != []


class TestPorts:
    def port(self):
        server = socket.create_server(("127.0.0.1", 0))
        return server, server.getsockname()[1]

    def test_a_listener_is_an_obstacle_a_finished_connection_is_not(self):
        """PLC-13: SO_REUSEADDR as engines set it; TIME_WAIT does not refuse a port."""
        server, port = self.port()
        assert [f.code for f in port_faults(make_spec(port=port))] == ["port_in_use"]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
        client.close()
        server.close()
        assert port_faults(make_spec(port=port)) == []

    def test_an_outgoing_connection_is_an_obstacle(self):
        """PLC-13: a port taken by an outgoing connection."""
        server, port = self.port()
        with server, socket.create_connection(("127.0.0.1", port)) as client:
            assert port_faults(make_spec(port=client.getsockname()[1])) != []

    @pytest.mark.parametrize("host", ["203.0.113.9", "a\0b", "\u00e9" * 70])
    def test_addresses_that_are_not_ours(self, host):
        """AGT-05: told as a fault of the spec or the settings."""
        assert [f.code for f in port_faults(make_spec(host=host, port=20000))] == ["invalid_spec"]


# ---------------------------------------------------------------- readiness


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", (True, "")),
        (b"HTTP/1.0 200 OK\r\n\r\n", (True, "")),
        (
            b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error":{"message":"Loading model","type":"x"}}',
            (False, "HTTP 503: Loading model"),
        ),
        (b'HTTP/1.1 401 No\r\n\r\n{"error":"Unauthorized"}', (False, "HTTP 401: Unauthorized")),
        (b"HTTP/1.1 503 No\r\n\r\n<html>", (False, "HTTP 503")),
        (b"SSH-2.0-OpenSSH\r\n", (False, "the port does not speak HTTP")),
        (b"", (False, "the port does not speak HTTP")),
    ],
)
def test_readiness_answers(answer, expected):
    """AGT-08: 200 is ready; everything else says why not."""
    assert read_answer(answer) == expected


def test_nobody_listens():
    """AGT-08: an engine that is still starting."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        probe = ReadinessProbe("127.0.0.1", bound.getsockname()[1], "/health")
        assert ask(probe) == (False, "not listening yet")


def test_an_engine_that_accepts_and_says_nothing():
    """AGT-08: bounded."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = ReadinessProbe("127.0.0.1", server.getsockname()[1], "/health")
        assert ask(probe, timeout=0.05) == (False, "no answer within 0.05 s")
