"""The catalog of files and store as a control plane begins with it (CAT-06)."""

import pytest

from controlplane.catalog.load import Files, merge, without_clashes
from controlplane.startup import Whole, whole_catalog
from controlplane.store.values import StoredModel
from llmgw.runtime.settings import SettingsError
from tests.unit.controlplane.catalog.trees import SIM, tree


def files(text: str) -> Files:
    """One catalog file."""
    return Files("/etc/catalog.yaml", {"catalog.yaml": tree(text)}, modified=7)


def stored(text: str) -> dict[str, StoredModel]:
    """What was added live."""
    return {name: StoredModel(name, model, 0.0, "ada", 0.0, "ada") for name, model in tree(text).items()}


def whole(file: str, live: str) -> Whole:
    """Of both."""
    return whole_catalog(files(file), stored(live), ())


def test_without_a_clash_nothing_is_left_out() -> None:
    """CAT-06: the very files."""
    made = whole(f"models: {{a: {{profiles: [{SIM}]}}}}", f"b: {{profiles: [{SIM}]}}")
    assert sorted(made.catalog.models) == ["a", "b"] and made.files.modified == 7
    assert (made.refusal, made.left_out) == (None, ())


@pytest.mark.parametrize(
    ("file", "live", "left_out", "place"),
    [
        ("models: {a: {profiles: [SIM]}, m: {profiles: [SIM, SIM]}}", "m: {profiles: [SIM]}", "m", "models.m"),
        (
            "models: {a: {aliases: [nice, m, b], profiles: [SIM]}}",
            "m: {aliases: [nice], profiles: [SIM]}",
            "nice (an alias of a)|m (an alias of a)",
            "models.a.aliases",
        ),
        (
            "models: {a: {profiles: [SIM]}, nice: {profiles: [SIM]}}",
            "m: {aliases: [nice], profiles: [SIM]}",
            "nice",
            "nice is the name of a model",
        ),
        (
            "{models: {a: {profiles: [SIM]}}, aliases: {m: {models: {a: 1}}}}",
            "m: {profiles: [SIM]}",
            "m",
            "aliases.m",
        ),
        (
            "{models: {a: {profiles: [SIM]}}, aliases: {nice: {models: {a: 1}}}}",
            "m: {aliases: [nice], profiles: [SIM]}",
            "nice",
            "aliases.nice",
        ),
    ],
    ids=["model", "alias", "model as an alias", "weighted alias", "weighted alias as an alias"],
)
def test_a_name_that_was_given_live_is_the_store_s(
    file: str, live: str, left_out: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """CAT-06, HA-01: what was served goes on, and so does the rest of the files; what is wrong is told."""
    made = whole(file.replace("SIM", SIM), live.replace("SIM", SIM))
    assert sorted(made.catalog.models) == ["a", "m"] and dict(made.catalog.aliases) == {}
    assert made.catalog.models["m"].origin == "store" and len(made.catalog.models["m"].profiles) == 1
    assert made.catalog.models["a"].aliases == (("b",) if "b" in file else ())
    assert made.left_out == tuple(left_out.split("|"))
    assert made.refusal is not None and place in str(made.refusal) and "left out" in caplog.text
    again = merge(made.files, {"m": made.catalog.definitions["m"]})
    assert again.models == made.catalog.models, "live changes stand on what is in force"


def test_other_faults_end_the_start_with_their_remedies() -> None:
    """CAT-06: a model of the store may name one that is in no file any more."""
    with pytest.raises(SettingsError) as caught:
        whole(f"models: {{a: {{profiles: [{SIM}]}}}}", f"m: {{fallbacks: [gone], profiles: [{SIM}]}}")
    told = [str(fault) for fault in caught.value.faults]
    assert told[0].startswith("store: models.m.fallbacks[0]: gone is not a model")
    assert told[1].endswith("llmgw store remove-model NAME")
    with pytest.raises(SettingsError) as caught:
        whole(
            f"models: {{a: {{fallbacks: [old], profiles: [{SIM}]}}, m: {{aliases: [old], profiles: [{SIM}]}}}}",
            f"m: {{profiles: [{SIM}]}}",
        )
    told = [str(fault) for fault in caught.value.faults]
    assert "is in catalog.yaml and in the store" in told[0]


def test_what_is_no_catalog_is_left_as_it_is() -> None:
    """CAT-06: its faults are told by who reads it."""
    odd = files("{models: [a], aliases: {x: 1}, more: 2}")
    assert without_clashes(odd, {"m": {"aliases": None}}) == (odd, ())
