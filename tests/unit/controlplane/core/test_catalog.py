"""The catalog from files: what is read, and every fault with its place, all at once."""

import os
from pathlib import Path

import jsonschema
import pytest

from controlplane.catalog.load import load_catalog
from controlplane.catalog.schema import json_schema
from llmgw.runtime.settings import SettingsError, read_yaml

FILES = Path(__file__).parent / "catalogs"

GOLDEN = (
    "everything_wrong.yaml",
    "args.yaml",
    "sources.yaml",
    "numbers.yaml",
    "list.yaml",
    "twice.yaml",
    "directory_clash",
)
"""Files and directories with faults; beside each is a text with the exact words."""


def faults(name: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_catalog(FILES / name)
    assert str(FILES / name) in str(caught.value)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize("name", GOLDEN)
def test_faults_are_told_all_at_once_with_their_places(name):
    """CAT-01 to CAT-05: golden messages of bad files."""
    assert faults(name) == (FILES / name).with_suffix(".txt").read_text().splitlines()


def test_bad_yaml_names_line_and_column():
    """A typing error is found by its place."""
    (fault,) = faults("not_yaml.yaml")
    assert fault.startswith("line 2, column 1: is not valid YAML")


def test_a_missing_file_is_one_clear_fault(tmp_path):
    """No traceback for a path that is not there, and what to write if nothing is to be served."""
    with pytest.raises(
        SettingsError, match=r"catalog\.yaml: 1 fault\n  is not there: write one with models: \{\} to serve nothing"
    ):
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
