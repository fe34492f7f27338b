"""Settings of an agent, loaded from files as a person writes them."""

import jsonschema
import pytest

from agent.installs import locate, probe
from agent.settings import SETTINGS, configure
from llmgw.runtime.settings import SettingsError


def load(tmp_path, text, environment=None):
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    return configure(SETTINGS.load(file, environment or {}), str(file))


def test_defaults(tmp_path):
    """TST 7: a file with only what is required."""
    config = load(tmp_path, "")
    assert config.node_id
    assert [str(address) for address in config.control_planes] == ["127.0.0.1:7001"]
    assert not config.searches
    assert config.identity == config.state_dir / "identity"
    assert (config.engine_ports.first, config.engine_ports.last) == (20000, 20999)
    assert (config.gpu, config.engines, config.labels) == ("auto", {}, {})


def test_everything(tmp_path):
    """TST 7: every key binds to something."""
    config = load(
        tmp_path,
        """
node_id: n1
control_planes: ["[::1]:7001", "192.0.2.1:7002"]
identity: relative/identity
state_dir: relative/state
address: 192.0.2.5
engine_ports: 21000-21009
labels: {llmgw.io/rack: r1}
engines:
  llamacpp: {kind: python-package, venv: /opt/v, binary: pkg/bin/llama-server}
  sim: {kind: builtin}
weights_dirs: [/srv/models]
hardware: {gpu: "off", nvidia_smi: /opt/nvidia-smi}
log: {level: debug, format: json}
""",
        {"LLMGW_AGENT_NODE_ID": "from-environment"},
    )
    assert config.node_id == "from-environment"
    assert [address.host for address in config.control_planes] == ["::1", "192.0.2.1"]
    assert config.state_dir.is_absolute() and config.identity.is_absolute()
    assert config.address == "192.0.2.5"
    assert config.labels == {"llmgw.io/rack": "r1"}
    assert config.engines["llamacpp"]["venv"] == "/opt/v"
    assert (config.gpu, config.nvidia_smi) == ("off", "/opt/nvidia-smi")


def test_control_planes_may_be_looked_for(tmp_path):
    """AGT-03: instead of addresses; the schema says so too."""
    config = load(tmp_path, "control_planes: mdns")
    assert (config.control_planes, config.searches) == ((), True)
    jsonschema.validate({"control_planes": "mdns"}, SETTINGS.schema())
    jsonschema.validate({"control_planes": ["127.0.0.1:7001"]}, SETTINGS.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"control_planes": "bonjour"}, SETTINGS.schema())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("control_planes: [mdns]", "control_planes: must be HOST:PORT"),
        ("control_planes: []", "control_planes: must be a list of HOST:PORT, or mdns"),
        ("token_file: /etc/llmgw/token", "token_file: is not a setting"),
        ("engines: {llamacp: {kind: binary, path: /x}}", "engines.llamacp: is no engine of this build"),
        ("engines: {llamacpp: {kind: binary}}", "engines.llamacpp.path: is required"),
        ("engines: {llamacpp: {kind: binary, path: x}}", "engines.llamacpp.path: must be an absolute path"),
        ("engines: {llamacpp: {kind: builtin}}", "engines.llamacpp.kind: builtin is"),
        ("engines: {llamacpp: /usr/bin/llama}", "engines.llamacpp.kind: must be one of"),
        ("engines: {llamacpp: {kind: binary, path: /x, pth: /y}}", "engines.llamacpp.pth: is not a setting"),
        ("engines: {llamacpp: {kind: python-package, venv: /v, binary: ../x}}", "without .."),
        ("node_id: a/b", "node_id: must be"),
        ("nodeid: a", "did you mean node_id"),
        ("engine_ports: 9-1", "engine_ports: must be FIRST-LAST"),
        ("address: 'a b'", "address: must be one address"),
    ],
)
def test_faults_name_the_place_and_the_remedy(tmp_path, text, words):
    """Errors a person sees: the place, what is wrong, the remedy."""
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert words in str(caught.value)


def program(tmp_path, text):
    file = tmp_path / "engine"
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(0o755)
    return {"kind": "binary", "path": str(file)}


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        ("echo 'version: 10068 (abc)'", "ready", "b10068"),
        ("echo 'version: 1 (571d0d5)'", "ready", "571d0d5"),
        ("echo 'libgomp.so.1: cannot open shared object file' >&2; exit 127", "failed", "libgomp.so.1"),
        ("kill -ILL $$", "failed", "another processor"),
        ("echo hello", "failed", "did not print a version"),
    ],
)
def test_an_engine_counts_only_if_it_was_seen_to_run(tmp_path, text, state, words):
    """PLC-12: the binary is run; a failure is told in its own words."""
    seen = probe(locate("llamacpp", program(tmp_path, text)))
    assert seen.state == state
    assert words in (seen.version or seen.detail)


def test_engine_in_a_python_package(tmp_path):
    """ENG-05: found by its path inside site-packages; what is missing is said."""
    entry = {"kind": "python-package", "venv": str(tmp_path / "venv"), "binary": "pkg/bin/engine"}
    assert "not a Python virtual environment" in locate("llamacpp", entry).problem
    home = tmp_path / "venv/lib/python3.11/site-packages"
    home.mkdir(parents=True)
    assert "is not in" in locate("llamacpp", entry).problem
    (home / "pkg/bin").mkdir(parents=True)
    (home / "pkg/bin/engine").write_text("#!/bin/sh\n")
    assert "chmod +x" in locate("llamacpp", entry).problem
    (home / "pkg/bin/engine").chmod(0o755)
    assert locate("llamacpp", entry).path == str(home / "pkg/bin/engine")


def test_simulated_engine_is_built_in():
    """ENG-07: nothing to install."""
    seen = probe(locate("sim", {"kind": "builtin"}))
    assert (seen.state, bool(seen.version)) == ("ready", True)
