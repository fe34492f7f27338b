"""The JSON Schema of a catalog, and what is published (CAT-15, CAT-16)."""

import copy
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from controlplane.catalog.engines import ENGINES
from controlplane.catalog.load import load_catalog
from controlplane.catalog.schema import json_schema, model_json_schema
from llmgw.runtime.settings import parse_yaml
from tests.unit.controlplane.catalog.trees import tree
from tests.unit.project.tree import ROOT, documents

CHECK = jsonschema.Draft202012Validator(json_schema())


def published() -> Iterator[tuple[str, str]]:
    """Every catalog that a reader could copy: example files and blocks of pages."""
    for file in sorted((ROOT / "examples").rglob("*.yaml")):
        if "models" in parse_yaml(file.read_bytes(), str(file)):
            yield str(file.relative_to(ROOT)), file.read_text()
    for page in documents():
        for number, block in enumerate(_yaml_blocks(page)):
            held = set(parse_yaml(block.encode(), str(page)))
            if held & {"profiles", "external", "adapter"}:
                yield f"{page.relative_to(ROOT)} block {number}", "models:\n  m:\n" + textwrap.indent(block, "    ")
            elif "models" in held:
                yield f"{page.relative_to(ROOT)} block {number}", block


def _yaml_blocks(page: Path) -> list[str]:
    """Blocks of YAML that are a mapping, also within lists."""
    found = re.findall(r"^( *)```yaml\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
    blocks = [textwrap.dedent(block) for _, block in found]
    return [block for block in blocks if isinstance(yaml.safe_load(block), dict)]


PUBLISHED = dict(published())


def test_published_catalogs_are_found() -> None:
    """The search does not go empty."""
    assert "examples/catalog.yaml" in PUBLISHED
    assert sum(place.startswith("docs/howto/add-a-model.md") for place in PUBLISHED) == 4


@pytest.mark.parametrize("place", PUBLISHED)
def test_every_published_catalog_loads_and_satisfies_the_schema(tmp_path: Path, place: str) -> None:
    """CAT-15: through the code path of production, from a file. CAT-16: an editor finds no fault with it."""
    file = tmp_path / "catalog.yaml"
    file.write_text(PUBLISHED[place])
    assert load_catalog(file).models
    CHECK.validate(parse_yaml(file.read_bytes(), place))


FULL = """
models:
  m:
    aliases: [a, "o/b:c"]
    fallbacks: [e]
    scaling:
      min: 0
      max: 1
      idle_timeout: 5m
      schedule: [{days: [mon, tue-thu], from: "08:00", to: "24:00", min: 1, max: 2, prewarm: true}]
    class: critical
    owner: org/team/project
    resources: {cpu_cores: 1, min_memory_gb: 2}
    profiles:
      - {name: p, engine: vllm, source: "hf:o/m@v:x.gguf", priority: 1, gpu_class: h100, gpus: 8, nodes: 2, tp: 8,
         pp: 2, dp: 1, launch_mode: ray, min_memory_gb: 1.5, cpu_cores: 4, node_selector: {a: b}, keep_within: rack,
         power_watts: 700,
         startup_timeout: 20m, context: 4096, slots: 8, args: [--dtype], env: {NCCL_DEBUG: INFO}, weight: 2,
         target_waiting: 1.5, kv_ceiling: 0.9, max_inflight: 5}
  e: {external: {url: "https://h.example/v1", model: x, api_key_file: /etc/k}}
  g: {role: guard, profiles: [{engine: sim, source: "sim:", min_memory_gb: 1}]}
  t: {adapter: {base: m, source: "file:/srv/lora"}}
aliases:
  w: {models: {m: 1, e: 0}, sticky: false}
"""


def test_every_field_is_known_to_the_schema(tmp_path: Path) -> None:
    """CAT-16: nothing that loads is underlined."""
    jsonschema.Draft202012Validator.check_schema(json_schema())
    CHECK.validate(tree(FULL))
    (tmp_path / "catalog.yaml").write_text(FULL)
    assert len(load_catalog(tmp_path / "catalog.yaml").models) == 4


def _properties(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in schema.get("properties", {}).items():
        if isinstance(entry, dict):
            yield f"{place}.{name}", entry
            for inner in (entry, entry.get("items", {}), entry.get("additionalProperties", {})):
                if isinstance(inner, dict):
                    yield from _properties(inner, f"{place}.{name}")


def test_every_field_says_what_it_is_for() -> None:
    """CAT-16: an editor shows it on hovering."""
    described = dict(_properties(json_schema()))
    assert len(described) > 50
    assert [place for place, entry in described.items() if not entry.get("description", "").endswith(".")] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("scaling", "min"), -1),
        (("scaling", "schedule", 0, "from"), "25:00"),
        (("scaling", "schedule", 0, "days"), ["monday"]),
        (("scaling", "extra"), 1),
        (("class",), "high"),
        (("owner",), "/org"),
        (("resources",), {}),
        (("profiles",), []),
        (("external",), {"url": "https://h/v1", "model": "m"}),
        (("profiles", 0, "engine"), "vlm"),
        (("profiles", 0, "source"), "https://h/m.gguf"),
        (("profiles", 0, "tp"), 0),
        (("profiles", 0, "kv_ceiling"), 2),
        (("profiles", 0, "launch_mode"), "mpi"),
        (("profiles", 0, "keep_within"), "planet"),
        (("profiles", 0, "engine"), "llamacpp"),
        (("profiles", 0, "nodes"), 1),
        (("profiles", 0, "gpu_class"), "a100-80g-mig-3g.40gb"),
        (("aliases",), ["bad name"]),
    ],
)
def test_the_schema_sees_what_it_can(path: tuple[Any, ...], value: Any) -> None:
    """CAT-16: also what depends on another field: the engine's sources, MIG, one node."""
    changed = copy.deepcopy(tree(FULL))
    node = changed["models"]["m"]
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    assert list(CHECK.iter_errors(changed))


@pytest.mark.parametrize(("name", "body"), [("external", "e"), ("adapter", "t")])
def test_only_a_model_with_profiles_scales(name: str, body: str) -> None:
    """CAT-10, CAT-14."""
    changed = tree(FULL)
    changed["models"][body]["scaling"] = {"min": 1, "max": 1}
    assert list(CHECK.iter_errors(changed))


def test_one_schema_for_files_and_for_the_api() -> None:
    """A body of the API is what stands under a name in a file."""
    assert json_schema()["properties"]["models"]["additionalProperties"] == model_json_schema()
    shipped = json.loads((ROOT / "docs/reference/schema/catalog.json").read_text())
    assert shipped == json_schema()
    assert set(model_json_schema()["properties"]["profiles"]["items"]["properties"]["engine"]["enum"]) == set(ENGINES)
