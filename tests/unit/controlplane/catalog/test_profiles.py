"""Profiles as values: arithmetic, what is filled in, resources, fingerprints (CAT-03, CAT-04, CAT-08, CAT-12)."""

from pathlib import Path

import pytest

from controlplane.catalog.load import load_catalog
from tests.unit.controlplane.catalog.trees import catalog, faults, profile, profile_faults

H100 = 'engine: vllm, source: "hf:o/m", gpu_class: h100'


@pytest.mark.parametrize(
    ("fields", "spread"),
    [
        ("gpus: 1", (1, 1, 1, 1, None)),
        ("gpus: 8", (1, 8, 1, 1, None)),
        ("gpus: 8, tp: 4, pp: 2", (1, 4, 2, 1, None)),
        ("gpus: 8, tp: 4, dp: 2", (1, 4, 1, 2, None)),
        ("gpus: 8, dp: 8", (1, 1, 1, 8, None)),
        ("gpus: 8, pp: 2", (1, 4, 2, 1, None)),
        ("gpus: 8, nodes: 2, tp: 8, pp: 2", (2, 8, 2, 1, "native")),
        ("gpus: 8, nodes: 2, tp: 16", (2, 16, 1, 1, "native")),
        ("gpus: 8, nodes: 4, pp: 4", (4, 8, 4, 1, "native")),
        ("gpus: 6, nodes: 2, tp: 3, pp: 4", (2, 3, 4, 1, "native")),
        ("gpus: 8, nodes: 2, pp: 2, launch_mode: ray", (2, 8, 2, 1, "ray")),
    ],
)
def test_devices_are_spread_as_written_and_the_rest_is_filled_in(fields: str, spread: tuple[object, ...]) -> None:
    """CAT-03: nodes x gpus = tp x pp x dp."""
    made = profile(f"{H100}, {fields}")
    assert (made.nodes, made.tp, made.pp, made.dp, made.launch_mode) == spread
    assert made.nodes * made.gpus == (made.tp or 0) * (made.pp or 0) * (made.dp or 0)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ("gpus: 8, tp: 4", "tp: gpus is 8, but tp 4: set tp: 8 or pp: 2"),
        ("gpus: 8, nodes: 2", "tp: is required with nodes 2: say how 16 devices are used, such as tp: 8 and pp: 2"),
        ("gpus: 8, nodes: 2, tp: 8, pp: 4", "tp: nodes 2 x gpus 8 = 16, but tp 8 x pp 4 = 32: set tp: 4 or pp: 2"),
        ("gpus: 7, tp: 2, pp: 2", "tp: gpus is 7, but tp 2 x pp 2 = 4: make both sides equal"),
        ("gpus: 6, nodes: 2, tp: 4, pp: 3", "tp: is 4, which must divide the 6 devices of a node"),
        ("gpus: 4, nodes: 3, tp: 6, pp: 2", "tp: is 6, which must divide the 4 devices of a node"),
        ("gpus: 4, dp: 3", "dp: gpus is 4, which dp 3 does not divide"),
        ("gpus: 4, launch_mode: native", "launch_mode: is for a replica that spans several nodes"),
        ("gpus: 0", "gpus: is 0, but must be at least 1"),
    ],
)
def test_figures_that_do_not_agree_are_told_with_the_remedy(fields: str, fault: str) -> None:
    """CAT-03: the figures, and what would make them equal."""
    (told,) = profile_faults(f"{H100}, {fields}")
    assert told.startswith(fault)


def test_a_remedy_works() -> None:
    """What a message says to write is taken."""
    assert profile(f"{H100}, gpus: 8, tp: 4, pp: 2").tp == 4
    assert profile(f"{H100}, gpus: 8, nodes: 2, tp: 8, pp: 2").pp == 2


def test_a_mig_instance_is_one_device() -> None:
    """CAT-03: exactly one device, tp = pp = nodes = 1."""
    mig = 'engine: vllm, source: "hf:o/m", gpu_class: a100-80g-mig-3g.40gb'
    made = profile(f"{mig}, gpus: 1, tp: 1, pp: 1, nodes: 1, dp: 1")
    assert (made.gpus, made.tp, made.nodes) == (1, 1, 1)
    assert [fault.split(":")[0] for fault in profile_faults(f"{mig}, gpus: 2, tp: 2, pp: 2, nodes: 2, dp: 3")] == [
        "gpus", "nodes", "tp", "pp", "dp",
    ]  # fmt: skip


def test_a_missing_profile_figure_is_not_reported_twice() -> None:
    """A figure that could not be read is told once, not also as arithmetic."""
    assert profile_faults(f"{H100}, gpus: eight, tp: 8") == ["gpus: must be a whole number: digits only, such as 1"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [("nodes: 2", "nodes"), ("tp: 2", "tp"), ("pp: 2", "pp"), ("dp: 2", "dp"), ("nodes: 2, launch_mode: ray", "nodes")],
)
def test_llamacpp_runs_on_one_node_by_itself(fields: str, field: str) -> None:
    """CAT-03: the engine must support what the profile asks."""
    gpu = 'engine: llamacpp, source: "file:/m.gguf", gpu_class: h100, gpus: 2'
    (told,) = profile_faults(f"{gpu}, {fields}")
    assert told.startswith(f"{field}: ")


def test_every_field_reaches_the_value() -> None:
    """CAT-04: TST-7, from text to value; a key that binds to nothing would pass for weeks."""
    made = profile(
        'name: big, engine: vllm, source: "hf:o/m@v1", priority: 3, gpu_class: h100, gpus: 8, nodes: 2, tp: 8, pp: 2,'
        " dp: 1, launch_mode: ray, min_memory_gb: 1.5, cpu_cores: 4, node_selector: {a: b}, keep_within: rack,"
        " power_watts: 700,"
        " startup_timeout: 20m, context: 4096, slots: 8, args: [--dtype, half], env: {NCCL_DEBUG: INFO}, weight: 2,"
        " target_waiting: 1.5, kv_ceiling: 0.9, max_inflight: 5"
    )
    assert {name: getattr(made, name) for name in made.__slots__ if name != "fingerprint"} == {
        "name": "big",
        "engine": "vllm",
        "source": "hf:o/m@v1",
        "priority": 3,
        "gpu_class": "h100",
        "gpus": 8,
        "memory_bytes": 3 * 2**29,
        "cpu_cores": 4,
        "node_selector": {"a": "b"},
        "startup_timeout": 1200.0,
        "context": 4096,
        "slots": 8,
        "args": ("--dtype", "half"),
        "env": {"NCCL_DEBUG": "INFO"},
        "weight": 2,
        "max_inflight": 5,
        "nodes": 2,
        "tp": 8,
        "pp": 2,
        "dp": 1,
        "launch_mode": "ray",
        "keep_within": "rack",
        "power_watts": 700,
        "target_waiting": 1.5,
        "kv_ceiling": 0.9,
    }


# ---------------------------------------------------------------- resources


RESOURCES = """
models:
  m:
    resources: {%s}
    profiles:
      - {engine: sim, source: "sim:", min_memory_gb: 1, cpu_cores: 1}
      - {engine: sim, source: "sim:", gpu_class: h100, gpus: 1}
"""


def test_resources_stand_for_the_claims_of_every_profile() -> None:
    """CAT-12: what is placed and started is what an operator set live."""
    model = catalog(RESOURCES % "cpu_cores: 4, min_memory_gb: 2").models["m"]
    assert [(made.cpu_cores, made.memory_bytes) for made in model.profiles] == [(4, 2 * 2**30)] * 2
    assert model.resources is not None
    only_cores = catalog(RESOURCES % "cpu_cores: 4").models["m"]
    assert [(made.cpu_cores, made.memory_bytes) for made in only_cores.profiles] == [(4, 2**30), (4, None)]


def test_resources_do_not_replace_the_memory_a_profile_must_declare() -> None:
    """CAT-04: taking the resources away again must leave a valid model."""
    assert faults("""
        models: {m: {resources: {min_memory_gb: 2}, profiles: [{engine: sim, source: "sim:"}]}}
    """)[0].startswith("models.m.profiles[0].min_memory_gb: is required")


# ---------------------------------------------------------------- fingerprints

CORE = Path(__file__).parents[1] / "core/catalogs"
RECORDED = {
    ("good.yaml", "pretend", "p0"): "95150a0eed140043",
    ("good.yaml", "smollm2-135m", "p1"): "5f9fb33a3e2acd50",
    ("good.yaml", "smollm2-135m", "cpu"): "3ada688ed717c7c0",
}


def test_an_upgrade_marks_nothing_stale() -> None:
    """CAT-08: fingerprints of an earlier release, recorded: replicas that it started go on
    as they are."""
    found = {
        ("good.yaml", model.name, made.name): made.fingerprint
        for model in load_catalog(CORE / "good.yaml").models.values()
        for made in model.profiles
    }
    assert found == RECORDED


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ("gpus: 8, nodes: 2, tp: 8, pp: 2", True),
        ("gpus: 8, nodes: 2, pp: 2", True),
        ("gpus: 8, nodes: 2, pp: 2, launch_mode: native", True),
        ("gpus: 8, nodes: 2, pp: 2, dp: 1", True),
        ("gpus: 8, nodes: 2, pp: 2, keep_within: rack", True),
        ("gpus: 8, nodes: 2, pp: 2, power_watts: 7000", True),
        ("gpus: 8, nodes: 2, pp: 2, target_waiting: 2, kv_ceiling: 0.5", True),
        ("gpus: 8, nodes: 2, tp: 16", False),
        ("gpus: 8, nodes: 2, tp: 4, pp: 4", False),
        ("gpus: 8, nodes: 2, tp: 4, pp: 2, dp: 2", False),
        ("gpus: 8, nodes: 2, pp: 2, launch_mode: ray", False),
        ("gpus: 4, nodes: 4, tp: 8, pp: 2", False),
        ("gpus: 8, nodes: 2, pp: 2, context: 1024", False),
    ],
)
def test_a_fingerprint_covers_how_devices_are_spread(fields: str, same: bool) -> None:
    """CAT-08: what changes the running engine, and nothing else."""
    before = profile(f"{H100}, gpus: 8, nodes: 2, tp: 8, pp: 2").fingerprint
    assert before == "a484c625e15d2d64"  # recorded, as those above
    assert (profile(f"{H100}, {fields}").fingerprint == before) is same


def test_resources_change_a_fingerprint_only_by_what_reaches_the_engine() -> None:
    """CAT-08, CAT-12: cores are the engine's threads, memory is a claim."""
    plain = catalog(RESOURCES % "min_memory_gb: 3").models["m"].profiles[0]
    more = catalog(RESOURCES % "min_memory_gb: 9").models["m"].profiles[0]
    threads = catalog(RESOURCES % "cpu_cores: 9").models["m"].profiles[0]
    unset = profile('engine: sim, source: "sim:", min_memory_gb: 1, cpu_cores: 1')
    assert plain.fingerprint == more.fingerprint == unset.fingerprint
    assert threads.fingerprint != plain.fingerprint
