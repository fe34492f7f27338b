"""The catalog from files: what is read, and every fault with its place, all at once."""

import os
from pathlib import Path

import jsonschema
import pytest

from controlplane.catalog.load import load_catalog
from controlplane.catalog.schema import json_schema
from llmgw.runtime.settings import SettingsError, read_yaml

FILES = Path(__file__).parent / "catalogs"

GOLDEN = {
    "everything_wrong.yaml": """\
extra: is not a section of a catalog (only models is)
models.qwen.aliases[2]: must be 1 to 128 letters, digits or any of . _ : / @ -, and begin with a letter or digit
models.qwen.profiles[0].min_memory: is not a field here; did you mean min_memory_gb?
models.qwen.profiles[1].min_memory_gb: must be a number
models.qwen.profiles[1].args[3]: must be text (put it in quotes)
models.qwen.profiles[1].env.A: must be text (put it in quotes)
models.qwen.profiles[2]: must be a mapping
models.qwen.profiles[3]: has no value: give one or leave the line out
models.qwen.scalling: is not a field here; did you mean scaling?
models.qwen.scaling.min: is 3, more than max 1
models.qwen.profiles[0].engine: llamacp is not an engine (known: llamacpp, sim); did you mean llamacpp?
models.qwen.profiles[0].source: must begin with file:; did you mean file?
models.qwen.profiles[0].gpus: needs gpu_class: which devices?
models.qwen.profiles[1].source: hf: is not yet fetched by this release: use file:
models.qwen.profiles[1].name: p0 is also the name of profiles[0]
models.qwen.profiles[4].source: must be just sim: (a simulated engine has no weights)
models.qwen.profiles[4].gpus: must be 1: an engine uses one MIG instance
models.qwen.profiles[4].env.A B: is not a name of an environment variable
models.no-mapping: must be a mapping
models.half.scaling.max: is required
models.half.profiles: must hold at least one profile
models.nothing.scaling: has no value: give one or leave the line out
models.nothing.profiles: is required
models.5: the name must be text (put it in quotes)
models.small.profiles[0].startup_timeout: must be more than 0
models.small.profiles[0].context: must be at least 1
models.small.profiles[0].source: sim cannot load file: use sim:
models.qwen.aliases[1]: small is the name of a model""",
    "args.yaml": """\
models.m.profiles[0].args[0]: -m is not allowed: the model comes from the profile's source
models.m.profiles[0].args[2]: --model is not allowed: the model comes from the profile's source
models.m.profiles[0].args[3]: --port is not allowed: llmgw sets the address, the port and the served name itself
models.m.profiles[0].args[5]: --alias is not allowed: llmgw sets the address, the port and the served name itself
models.m.profiles[0].args[7]: --tools is not allowed: it lets a model or a caller run code or read files
models.m.profiles[0].args[9]: -t is not allowed: use the profile's cpu_cores
models.m.profiles[0].args[11]: --ctx-size is not allowed: use the profile's context
models.m.profiles[0].args[13]: --trust-remote-code is not allowed: it lets a model or a caller run code or read files
models.m.profiles[0].env.LD_LIBRARY_PATH: is not allowed: it changes which code the engine runs
models.m.profiles[0].env.LLAMA_ARG_HOST: is not allowed: use args, context, slots or cpu_cores
models.m.profiles[0].env.LLAMA_API_KEY: is not allowed: keys are made and passed by llmgw; a catalog holds no secret
models.m.profiles[0].env.CUDA_VISIBLE_DEVICES: is not allowed: use gpu_class and gpus: devices are placed by llmgw
models.m.profiles[0].env.LLMGW_NODE: is not allowed: llmgw sets these itself""",
    "sources.yaml": """\
models.a.profiles[0].source: must be file: and an absolute path without '..', such as file:/srv/models/m.gguf
models.b.profiles[0].source: must be file: and an absolute path without '..', such as file:/srv/models/m.gguf
models.c.profiles[0].source: https: is not yet fetched by this release: use file:
models.d.profiles[0].source: mirror: is not yet fetched by this release: use file:
models.e.profiles[0].source: llamacpp cannot load sim: use file:
models.f.profiles[0].source: sim cannot load file: use sim:
models.g.profiles[0].source: must begin with file:""",
    "numbers.yaml": """\
models.a.scaling.min: must be at least 0
models.a.scaling.max: must be a whole number
models.a.profiles[0].priority: must be a whole number
models.a.profiles[0].min_memory_gb: must be more than 0
models.a.profiles[0].cpu_cores: must be more than 0
models.a.profiles[0].slots: must be at least 1
models.a.profiles[0].weight: must be more than 0
models.a.profiles[0].max_inflight: must be a whole number
models.a.profiles[1].min_memory_gb: is not a usable number
models.a.profiles[1].startup_timeout: must be a duration such as 30s, 5m or 1h30m (a bare number is seconds)
models.a.profiles[2].min_memory_gb: is required for a profile without devices
models.a.profiles[3].gpu_class: needs gpus: how many devices?""",
    "list.yaml": "must be a mapping of names to values",
    "twice.yaml": "line 3, column 3: is not valid YAML: 'a' is given twice",
    "directory_clash": """\
three.yaml: line 2, column 1: is not valid YAML: expected the node content, but found '<stream end>'
two.yaml: models.m: is also in one.yaml: keep one
two.yaml: models.n.profiles[0].min_memory_gb: is required for a profile without devices
two.yaml: models.n.aliases[0]: same is already an alias of m
two.yaml: models.n.aliases[1]: m is the name of a model""",
}


def faults(name: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_catalog(FILES / name)
    assert str(FILES / name) in str(caught.value)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize("name", GOLDEN)
def test_faults_are_told_all_at_once_with_their_places(name):
    """CAT-01 to CAT-05: golden messages of bad files."""
    assert faults(name) == GOLDEN[name].splitlines()


def test_bad_yaml_names_line_and_column():
    """A typing error is found by its place."""
    (fault,) = faults("not_yaml.yaml")
    assert fault.startswith("line 2, column 1: is not valid YAML")


def test_a_missing_file_is_one_clear_fault(tmp_path):
    """No traceback for a path that is not there."""
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_catalog(tmp_path / "catalog.yaml")


def test_a_good_file_becomes_a_catalog():
    """CAT-04: units, defaults, order by priority."""
    catalog = load_catalog(FILES / "good.yaml")
    model = catalog.models["smollm2-135m"]
    assert model.aliases == ("smollm", "HuggingFaceTB/SmolLM2-135M")
    assert (model.scaling.min, model.scaling.max, model.scaling.mode) == (1, 2, "always")
    gpu, cpu = model.profiles
    assert (gpu.name, gpu.gpus, gpu.gpu_class, gpu.priority, gpu.memory_bytes) == ("p1", 1, "h100", 10, None)
    assert dict(gpu.node_selector) == {"tier": "gold"}
    assert (gpu.weight, gpu.max_inflight) == (2, 8)
    assert (cpu.name, cpu.gpus, cpu.memory_bytes, cpu.startup_timeout) == ("cpu", 0, 512 * 1024**2, 120.0)
    assert (cpu.context, cpu.slots, cpu.args, dict(cpu.env)) == (
        4096,
        2,
        ("--flash-attn", "on"),
        {"OMP_NUM_THREADS": "1"},
    )
    assert catalog.models["pretend"].scaling.mode == "off"
    assert catalog.source == str(FILES / "good.yaml")


def test_a_directory_is_one_catalog():
    """Each *.yaml counts, anything else does not."""
    catalog = load_catalog(FILES / "directory_good")
    assert sorted(catalog.models) == ["a", "b"]


def test_a_file_of_a_directory_that_would_be_left_out_is_named(tmp_path):
    """A model somebody wrote must not be missing in silence."""
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "b.yml").write_text("models: {}")
    with pytest.raises(SettingsError, match=r"b\.yml: would be left out: rename it to b\.yaml"):
        load_catalog(tmp_path)


def test_models_are_as_old_as_their_file(tmp_path):
    """RTR-01: what /v1/models tells as `created` survives a restart of the control plane."""
    for name, moment in (("a.yaml", 1_700_000_000), ("b.yaml", 1_800_000_000)):
        (tmp_path / name).write_text("models: {}")
        os.utime(tmp_path / name, (moment, moment))
    assert load_catalog(tmp_path).modified == 1_800_000_000
    assert load_catalog(tmp_path / "a.yaml").modified == 1_700_000_000


@pytest.mark.parametrize("text", ["", "# nothing yet", "{}", "models:"])
def test_an_empty_file_is_no_catalog(tmp_path, text):
    """CAT-07: everything is drained only if somebody wrote that; a file cut short by an
    editor or a full disk says nothing."""
    (tmp_path / "catalog.yaml").write_text(text)
    with pytest.raises(SettingsError, match="models"):
        load_catalog(tmp_path / "catalog.yaml")
    with pytest.raises(SettingsError, match="models"):
        load_catalog(tmp_path)


def test_no_models_on_purpose(tmp_path):
    """Nothing to serve is not an error."""
    (tmp_path / "catalog.yaml").write_text("models: {}")
    assert not load_catalog(tmp_path / "catalog.yaml").models
    assert not load_catalog(tmp_path).models


def test_a_directory_without_a_file_is_no_catalog(tmp_path):
    """CAT-07: as an empty file; a file system that is not mounted looks like that."""
    with pytest.raises(SettingsError, match=r"holds no \*\.yaml file"):
        load_catalog(tmp_path)


def test_a_huge_file_is_refused(tmp_path):
    """Everything read from outside is bounded."""
    file = tmp_path / "catalog.yaml"
    file.write_bytes(b"#" * (9 * 1024 * 1024))
    with pytest.raises(SettingsError, match="is larger than"):
        load_catalog(file)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("slots: 2", "slots: 3", False),
        ("context: 4096", "context: 2048", False),
        ("cpu_cores: 1", "cpu_cores: 2", False),
        ('OMP_NUM_THREADS: "1"', 'OMP_NUM_THREADS: "2"', False),
        ('"on"]', '"off"]', False),
        ("min_memory_gb: 0.5", "min_memory_gb: 2", True),
        ("startup_timeout: 2m", "startup_timeout: 3m", True),
        ("name: cpu", "name: other", True),
    ],
)
def test_the_fingerprint_covers_what_changes_the_engine(tmp_path, old, new, same):
    """CAT-08: and nothing else."""
    text = (FILES / "good.yaml").read_text()
    assert old in text
    file = tmp_path / "catalog.yaml"
    file.write_text(text.replace(old, new))
    before = load_catalog(FILES / "good.yaml").models["smollm2-135m"].profiles[1].fingerprint
    after = load_catalog(file).models["smollm2-135m"].profiles[1].fingerprint
    assert (before == after) is same
    assert len(before) == 16


def test_an_equal_catalog_is_equal():
    """Reloading an unchanged file changes nothing."""
    assert load_catalog(FILES / "good.yaml") == load_catalog(FILES / "good.yaml")


@pytest.mark.parametrize("name", ["good.yaml", "directory_good/one.yaml"])
def test_json_schema_accepts_what_loads(name):
    """CAT-16: an editor does not complain about a good file."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(read_yaml(FILES / name))


@pytest.mark.parametrize("name", ["numbers.yaml", "directory_clash/two.yaml", "everything_wrong.yaml"])
def test_json_schema_refuses_what_does_not_load(name):
    """CAT-16: and does complain about a bad one."""
    tree = read_yaml(FILES / name)
    models = {str(key): value for key, value in tree["models"].items()}
    assert list(jsonschema.Draft202012Validator(json_schema()).iter_errors({"models": models}))
