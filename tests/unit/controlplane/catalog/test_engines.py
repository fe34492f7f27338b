"""What a profile may ask of its engine (CAT-04)."""

import re
from pathlib import Path

import pytest

from controlplane.catalog.arguments import allowances, flag_fault, variable_fault
from controlplane.catalog.engines import ALLOWABLE, ENGINES
from tests.unit.controlplane.catalog.trees import profile, profile_faults

VLLM_FLAGS = frozenset((Path(__file__).parent / "flags-vllm-0.32.0.txt").read_text().split())
LLAMA_HELP = (Path(__file__).parents[2] / "agent/data/llama-server-help.txt").read_text()
LLAMA_FLAGS = frozenset(re.findall(r"(?:^|[ ,])(--?[A-Za-z][A-Za-z0-9-]*)", LLAMA_HELP, re.MULTILINE))

NOT_IN_THIS_VERSION = {
    "vllm": {"--api-key-file", "--device", "--version", "-v"},
    "llamacpp": {"--trust-remote-code"},
}
"""Denied although the version whose flags are known lacks them: older or newer ones, or the same for all engines."""


@pytest.mark.parametrize(("engine", "flags"), [("vllm", VLLM_FLAGS), ("llamacpp", LLAMA_FLAGS)])
def test_denied_flags_exist(engine: str, flags: frozenset[str]) -> None:
    """ENG-08: a denied flag with a typing error protects nothing."""
    assert len(flags) > 200
    assert set(ENGINES[engine].denied) - flags == NOT_IN_THIS_VERSION[engine]


def test_no_flag_of_the_engine_is_taken_for_a_short_form() -> None:
    """A whole flag of vLLM that is the beginning of a denied one can still be used."""
    rules = ENGINES["vllm"]
    refused = {flag for flag in VLLM_FLAGS if flag not in rules.denied and flag_fault(rules, flag)}
    on = {flag.replace("--no-", "--") for flag in refused}
    assert on <= set(rules.denied)
    for flag in ("--reasoning-parser", "--enable-lora", "--max-num-batched-tokens", "--quantization", "--dtype"):
        assert flag_fault(rules, flag) is None


@pytest.mark.parametrize(
    ("engine", "argument", "meant"),
    [
        ("vllm", "--trust-remote-code", "--trust-remote-code"),
        ("vllm", "--trust_remote_code", "--trust-remote-code"),
        ("vllm", "--TRUST-REMOTE-CODE", "--trust-remote-code"),
        ("vllm", "--trust-remote-code=true", "--trust-remote-code"),
        ("vllm", "--trust-remote", "--trust-remote-code"),
        ("vllm", "--trust_rem=1", "--trust-remote-code"),
        ("vllm", "--port", "--port"),
        ("vllm", "--por=80", "--port"),
        ("vllm", "--kv-transfer-config.kv_connector", "--kv-transfer-config"),
        ("vllm", "-tp", "-tp"),
        ("vllm", "-tp=2", "-tp"),
        ("vllm", "-tp2", "-tp"),
        ("vllm", "--no-enable-ssl-refresh", "--enable-ssl-refresh"),
        ("sglang", "--tp", "--tp"),
        ("sglang", "--tensor-parallel", "--tensor-parallel-size"),
        ("sglang", "--served-model", "--served-model-name"),
        ("sglang", "--admin-api", "--admin-api-key"),
        ("llamacpp", "-np4", "-np"),
        ("llamacpp", "--hf_repo", "--hf-repo"),
        ("sim", "--served", "--served-name"),
        ("sim", "--nno", "--nnodes"),
    ],
)
def test_every_way_to_write_a_flag_is_that_flag(engine: str, argument: str, meant: str) -> None:
    """Short forms, `_` for `-`, capitals, a value behind `=`, keys of JSON, abbreviations."""
    fault = flag_fault(ENGINES[engine], argument)
    assert fault is not None
    assert ENGINES[engine].denied[meant] in fault


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("llamacpp", "--trust"),  # llama.cpp knows no abbreviations
        ("llamacpp", "--no-agent"),  # to switch off what is unsafe is safe
        ("llamacpp", "--no-ui"),
        ("vllm", "--no-trust-remote-code"),
        ("vllm", "--no-enable-log-requests"),
        ("llamacpp", "-ngl"),
        ("llamacpp", "-1"),
        ("vllm", "/port"),
        ("vllm", "model"),
        ("vllm", "-O3"),
        ("vllm", "--no-enable-prefix-caching"),
        ("sglang", "--mem-fraction-static=0.8"),
        ("sim", "--ttft"),
    ],
)
def test_what_is_allowed(engine: str, argument: str) -> None:
    """A list of what is denied must not grow into one that denies what people need."""
    assert flag_fault(ENGINES[engine], argument) is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("flag", ["--host", "--port", "--api-key", "--trust-remote-code"])
def test_every_engine_keeps_its_address_its_key_and_its_code(engine: str, flag: str) -> None:
    """CAT-04: a new engine cannot forget them."""
    assert flag in ENGINES[engine].denied


def test_an_operator_can_allow_what_is_only_unsafe() -> None:
    """CAT-04: trust-remote-code, for one engine, and every spelling of it; never the address."""
    gpu = 'engine: vllm, source: "hf:o/m", gpu_class: h100, gpus: 1'
    assert profile_faults(f"{gpu}, args: [--trust-remote-code]")
    for spelling in ("--trust-remote-code", "--trust_remote_code", "--trust-remote"):
        text = f"{gpu}, args: [{spelling}]"
        assert "engines.allow" in profile_faults(text, allowed=["sglang --trust-remote-code"])[0]
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            profile_faults(text, allowed=["vllm --trust-remote-code"])
    assert profile_faults(f"{gpu}, args: [--port, '1']", allowed=["vllm --port"]) == [
        "args[0]: --port is not allowed: llmgw sets the address, the port and the served name itself"
    ]


def test_allowances_are_read_as_engines_read_flags() -> None:
    """What stands in engines.allow means the flag, not its spelling; nonsense means nothing."""
    allowed = ["vllm --trust_remote_code", "sglang --log-requests", "vllm", "vllm a b", ""]
    assert allowances("vllm", allowed) == {"--trust-remote-code"}


def test_reasons_name_the_field_to_use() -> None:
    """Every denied flag has a reason; the size of a model is told in fields."""
    for engine, field in (
        ("vllm", {"--max-model-len": "context", "--max-num-seqs": "slots", "-tp": "tp", "--nnodes": "nodes"}),
        ("sglang", {"--context-length": "context", "--tp-size": "tp", "--dp-size": "dp", "--node-rank": "nodes"}),
        ("llamacpp", {"-c": "context", "-np": "slots", "-t": "cpu_cores"}),
    ):
        for flag, name in field.items():
            assert name in (flag_fault(ENGINES[engine], flag) or "")
    assert all(reason for rules in ENGINES.values() for reason in rules.denied.values())
    assert any(reason in ALLOWABLE for reason in ENGINES["vllm"].denied.values())


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "ld_preload",
        "PYTHONPATH",
        "PYTHONSAFEPATH",
        "PATH",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "VLLM_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "OPENAI_API_KEY_FILE",
        "CUDA_VISIBLE_DEVICES",
        "VLLM_HOST_IP",
        "VLLM_PLUGINS",
        "RAY_ADDRESS",
        "MASTER_ADDR",
        "VLLM_DP_SIZE",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "LLMGW_NODE",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "NCCL_NET_PLUGIN",
        "CUDA_INJECTION64_PATH",
        "GLIBC_TUNABLES",
        "A B",
        "",
        "1A",
        "A=B",
    ],
)
def test_variables_that_an_engine_never_gets_from_a_profile(name: str) -> None:
    """CAT-04: no preload, no keys, no address, no devices, no other source."""
    assert variable_fault(ENGINES["vllm"], name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "OMP_NUM_THREADS",
        "VLLM_ATTENTION_BACKEND",
        "TOKENIZERS_PARALLELISM",
    ],
)
def test_variables_that_it_may_get(name: str) -> None:
    """What tuning needs; TOKENIZERS_ is no token."""
    assert variable_fault(ENGINES["vllm"], name) is None


@pytest.mark.parametrize(
    ("engine", "source"),
    [
        ("llamacpp", "file:/srv/m.gguf"),
        ("llamacpp", "hf:org/name-GGUF:sub/dir/m-Q4_K_M.gguf"),
        ("llamacpp", "hf:org/name-GGUF@refs/pr/1:m.gguf"),
        ("llamacpp", "https://host.example:8443/a/m.gguf"),
        ("vllm", "hf:org/name"),
        ("vllm", "hf:gpt2"),
        ("vllm", "hf:org/name@v1.0"),
        ("vllm", "hf:org/name:m.gguf"),
        ("vllm", "file:/srv/models/name"),
        ("sglang", "hf:org/name@0123abc"),
        ("sim", "sim:"),
    ],
)
def test_sources_that_an_engine_loads(engine: str, source: str) -> None:
    """CAT-04: hf:, file:, https:, a GGUF file within a repository, a revision."""
    assert profile(f'engine: {engine}, source: "{source}", min_memory_gb: 1').source == source


@pytest.mark.parametrize(
    "source",
    [
        "hf:",
        "hf:org/",
        "hf:/name",
        "hf:org/na me",
        "hf:org/name@",
        "hf:org/name:",
        "hf:org/name:../../etc/passwd.gguf",
        "hf:../name",
        "hf:org/..",
        "hf:org/name@../x",
        "hf:org/name:/etc/m.gguf",
        "hf:org/name?x=1",
        "https:",
        "https://",
        "https:///m.gguf",
        "https://host",
        "https://host:0/m.gguf",
        "https://host:99999/m.gguf",
        "https://h ost/m.gguf",
        "https://u:p@host/m.gguf",
        "https://host/m.gguf#x",
        "https://host/m.gguf?token=x",
        "https://[::1/m.gguf",
        "https://host/é.gguf",
        "HTTPS://host/m.gguf",
        "file:",
        "file:m",
        "sim:x",
        "ftp://host/m.gguf",
        "",
    ],
)
def test_sources_that_are_none(source: str) -> None:
    """Nothing odd reaches a node, a URL or a path."""
    assert any(
        fault.startswith("source: ")
        for fault in profile_faults(f'engine: llamacpp, source: "{source}", min_memory_gb: 1')
    )
