"""Models: kinds, scaling, schedule, names, and one catalog out of files and the store."""

import json
from pathlib import Path

import pytest

from controlplane.catalog.load import load_catalog, merge, parse_catalog, parse_model, read_files
from controlplane.catalog.model import Adapter, External, Scaling, Window
from llmgw.runtime.settings import SettingsError
from tests.unit.controlplane.catalog.trees import SIM, catalog, faults, tree

# ---------------------------------------------------------------- kinds of models


def test_an_external_model_needs_only_its_provider() -> None:
    """CAT-10: no profiles, no scaling; the base URL has no slash at its end."""
    model = catalog("""
        models:
          gpt:
            aliases: [cloud]
            class: standard
            owner: org/team
            external: {url: "https://api.example.com/openai/v1/", model: gpt-9, api_key_file: /etc/llmgw/provider.key}
          local: {external: {url: "http://127.0.0.1:11434/v1", model: "qwen:7b"}}
    """).models["gpt"]
    assert model.external == External("https://api.example.com/openai/v1", "gpt-9", "/etc/llmgw/provider.key")
    assert (model.profiles, model.scaling, model.aliases) == ((), Scaling(), ("cloud",))
    assert (model.service_class, model.owner) == ("standard", "org/team")


def test_an_adapter_names_its_base_by_name_or_alias() -> None:
    """CAT-14, CAT-02: resolved when the catalog is made."""
    found = catalog("""
        models:
          base:
            aliases: [b]
            profiles:
              - {engine: sglang, source: "hf:o/m", gpu_class: h100, gpus: 1}
              - {engine: sim, source: "sim:", min_memory_gb: 1}
          tuned: {adapter: {base: b, source: "hf:me/lora@v2"}}
    """).models["tuned"]
    assert found.adapter == Adapter("base", "hf:me/lora@v2")


@pytest.mark.parametrize(
    "kinds", ["profiles: [%s], external: %s", "external: %s, adapter: %s", "profiles: [%s], adapter: %s"]
)
def test_a_model_is_of_one_kind(kinds: str) -> None:
    """The three exclude each other."""
    made = {"profiles": SIM, "external": "{url: 'https://h/v1', model: m}", "adapter": "{base: x, source: 'hf:a/b'}"}
    names = [part.split(":")[0].strip() for part in kinds.split("%s")[:-1]]
    text = kinds % tuple(made[name.strip("], [").strip(", ")] for name in names)
    assert any("cannot stand beside" in fault for fault in faults(f"models: {{m: {{{text}}}}}"))


def test_a_guard_may_be_external_and_may_fall_back_to_a_guard() -> None:
    """CAT-11: judges may stand in for each other, never for a model."""
    found = catalog(f"""
        models:
          judge: {{role: guard, fallbacks: [spare], profiles: [{SIM}]}}
          spare: {{role: guard, external: {{url: "https://h.example/v1", model: m}}}}
    """)
    assert found.models["judge"].fallbacks == ("spare",)
    assert found.models["spare"].role == "guard"


# ---------------------------------------------------------------- scaling


def test_a_schedule_becomes_windows() -> None:
    """DEM-06: days, from, to (also over midnight, also unquoted), min, max, prewarm; overlaps are allowed."""
    scaling = (
        catalog(f"""
        models:
          m:
            scaling:
              min: 0
              max: 2
              idle_timeout: 30m
              schedule:
                - {{days: mon-fri, from: 08:00, to: 18:00, min: 2, max: 4, prewarm: true}}
                - {{days: [sat, sun, fri-mon], from: 22:00, to: 6:30, min: 1, max: 1}}
                - {{from: "00:00", to: "24:00", min: 0, max: 3}}
            profiles: [{SIM}]
    """)
        .models["m"]
        .scaling
    )
    assert scaling == Scaling(
        min=0,
        max=2,
        idle_timeout=1800.0,
        schedule=(
            Window(frozenset(range(5)), 480, 1080, 2, 4, True),
            Window(frozenset({4, 5, 6, 0}), 1320, 390, 1, 1),
            Window(frozenset(range(7)), 0, 1440, 0, 3),
        ),
    )


@pytest.mark.parametrize(
    ("bounds", "mode"), [("0, max: 0", "off"), ("0, max: 1", "on-demand"), ("1, max: 1", "always")]
)
def test_two_numbers_say_what_is_meant(bounds: str, mode: str) -> None:
    """CAT-05."""
    assert catalog(f"models: {{m: {{scaling: {{min: {bounds}}}, profiles: [{SIM}]}}}}").models["m"].scaling.mode == mode


# ---------------------------------------------------------------- names


def test_fallbacks_resolve_to_models() -> None:
    """CAT-02: by name or alias, an external model too; a chain is no circle."""
    found = catalog(f"""
        models:
          a: {{fallbacks: [b, c-alias], profiles: [{SIM}]}}
          b: {{fallbacks: [c], profiles: [{SIM}]}}
          c: {{aliases: [c-alias], external: {{url: "https://h.example/v1", model: m}}}}
    """)
    assert found.models["a"].fallbacks == ("b", "c")


def test_every_circle_is_told_once_with_the_way_round() -> None:
    """CAT-02: also a long one, and two at a time."""
    ring = "".join(f"\n  m{i}: {{fallbacks: [m{(i + 1) % 300}], profiles: [{SIM}]}}" for i in range(300))
    told = faults(
        f"models:{ring}\n  x: {{fallbacks: [y, m7], profiles: [{SIM}]}}\n  y: {{fallbacks: [x], profiles: [{SIM}]}}"
    )
    assert len(told) == 2
    assert told[0].startswith("models.m0.fallbacks: go round in a circle: m0 -> m1 -> m2 -> ")
    assert told[1] == "models.x.fallbacks: go round in a circle: x -> y -> x; take one of them out"


def test_a_weighted_alias_keeps_the_shares_above_zero() -> None:
    """CAT-13: a canary at 0 gets nothing; sticky as written; aliases of models are resolved."""
    found = catalog(f"""
        models:
          qwen: {{aliases: [q], profiles: [{SIM}]}}
          qwen-new: {{profiles: [{SIM}]}}
          old: {{profiles: [{SIM}]}}
        aliases:
          chat: {{models: {{q: 90, qwen-new: 10, old: 0}}, sticky: true}}
          org/chat:latest: {{models: {{old: 0.5}}}}
    """)
    chat = found.aliases["chat"]
    assert (chat.targets, chat.sticky, chat.origin) == ((("qwen", 90), ("qwen-new", 10)), True, "catalog.yaml")
    assert found.aliases["org/chat:latest"].targets == (("old", 0.5),)


ONE = f"models: {{a: {{aliases: [x], profiles: [{SIM}]}}}}"


@pytest.mark.parametrize(
    ("two", "fault"),
    [
        (f"models: {{a: {{profiles: [{SIM}]}}}}", "2.yaml: models.a: is also in 1.yaml: keep one"),
        (f"models: {{x: {{profiles: [{SIM}]}}}}", "1.yaml: models.a.aliases[0]: x is the name of a model"),
        (
            f"models: {{b: {{aliases: [x], profiles: [{SIM}]}}}}",
            "2.yaml: models.b.aliases[0]: x is already an alias of a",
        ),
        ("models: {}\naliases: {a: {models: {a: 1}}}", "2.yaml: aliases.a: is the name of a model"),
        ("models: {}\naliases: {x: {models: {a: 1}}}", "1.yaml: models.a.aliases[0]: x is also a weighted alias"),
        ("models: {}\naliases: {w: {models: {a: 1}}}", "2.yaml: aliases.w: is also in 1.yaml: keep one"),
    ],
)
def test_names_that_collide_across_files(two: str, fault: str) -> None:
    """CAT-02: of any two kinds; the place names the file."""
    with pytest.raises(SettingsError) as caught:
        parse_catalog({"1.yaml": tree(f"{ONE}\naliases: {{w: {{models: {{a: 1}}}}}}"), "2.yaml": tree(two)})
    assert any(fault in str(told) for told in caught.value.faults)


# ---------------------------------------------------------------- files and the store

STORED = {
    "added": {"scaling": {"min": 1, "max": 1}, "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1}]}
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A catalog file with one model."""
    path = tmp_path / "catalog.yaml"
    path.write_text(f"models: {{written: {{profiles: [{SIM}]}}}}")
    return path


def test_files_and_the_store_make_one_catalog(file: Path) -> None:
    """CAT-06: each model knows where it comes from, and how it was written."""
    made = load_catalog(file, STORED)
    assert {name: model.origin for name, model in made.models.items()} == {"added": "store", "written": "catalog.yaml"}
    assert made.definitions["added"] == STORED["added"]
    assert made.definitions["written"] == {"profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1}]}
    assert json.loads(json.dumps(dict(made.definitions))) == dict(made.definitions)
    assert made.models["added"].scaling.min == 1


def test_a_live_change_does_not_read_the_file_again(file: Path) -> None:
    """CAT-06: what was read is merged with other stored models; the file may be gone."""
    files = read_files(file)
    file.unlink()
    assert [*merge(files, STORED).models] == ["added", "written"]
    assert [*merge(files).models] == ["written"]
    assert merge(files).modified > 0


def test_a_model_of_the_file_and_the_store_is_refused_naming_both(file: Path) -> None:
    """The error names both, and what to do."""
    with pytest.raises(SettingsError) as caught:
        load_catalog(file, {"written": STORED["added"]})
    assert [str(fault) for fault in caught.value.faults] == [
        (
            "store: models.written: is in catalog.yaml and in the store: take it out of the file, "
            "or run llmgw ctl model remove written"
        )
    ]


def test_a_file_called_store_is_not_the_store(tmp_path: Path) -> None:
    """Names of files are people's."""
    (tmp_path / "store").write_text(f"models: {{written: {{profiles: [{SIM}]}}}}")
    assert [*load_catalog(tmp_path / "store", STORED).models] == ["added", "written"]


def test_faults_of_a_file_and_of_the_store_are_told_together(tmp_path: Path) -> None:
    """CAT-01: all at once, each with its source."""
    (tmp_path / "catalog.yaml").write_text("models: {m: {profiles: []}}")
    with pytest.raises(SettingsError) as caught:
        load_catalog(tmp_path / "catalog.yaml", {"n": {"profiles": [{"engine": "sim"}]}})
    places = [fault.path for fault in caught.value.faults]
    assert places == [
        "catalog.yaml: models.m.profiles",
        "store: models.n.profiles[0].source",
        "store: models.n.profiles[0].min_memory_gb",
    ]


@pytest.mark.parametrize("content", ["models: {", "\t", "models: {m: {profiles: []}}"])
def test_reading_and_merging_tells_what_loading_tells(tmp_path: Path, content: str) -> None:
    """One door: a file that cannot be read is a fault of the merge too."""
    (tmp_path / "catalog.yaml").write_text(content)
    told = []
    for way in (lambda path: merge(read_files(path)), load_catalog):
        with pytest.raises(SettingsError) as caught:
            way(tmp_path / "catalog.yaml")
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_one_model_by_itself() -> None:
    """API-04: a body's faults have places within the body; other models are not looked at."""
    model = parse_model("m", {**STORED["added"], "fallbacks": ["somewhere"]})
    assert (model.name, model.fallbacks) == ("m", ("somewhere",))
    with pytest.raises(SettingsError) as caught:
        parse_model("m", {"profiles": [{"engine": "sim", "source": "sim:", "tp": 0}], "scalin": 1})
    assert [fault.path for fault in caught.value.faults] == ["profiles[0].tp", "scalin", "profiles[0].min_memory_gb"]
    for body in (None, [], "x", 3):
        with pytest.raises(SettingsError, match=r"must be a mapping with profiles|has no value"):
            parse_model("m", body)
    with pytest.raises(SettingsError, match="the name must be 1 to 64"):
        parse_model("no/slash", STORED["added"])


def test_a_definition_is_what_was_written_not_what_it_became() -> None:
    """Show and edit give back what somebody wrote: durations, times and names as they were."""
    text = {
        "scaling": {
            "min": 0,
            "max": 1,
            "idle_timeout": "30m",
            "schedule": [{"from": "08:00", "to": "9:00", "min": 1, "max": 1}],
        },
        "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 0.5, "startup_timeout": "5m"}],
        "class": "critical",
    }
    assert parse_catalog({"store": {"models": {"m": text}}}).definitions["m"] == text
