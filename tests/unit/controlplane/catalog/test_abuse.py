"""Catalogs that are made to cost: the look at them ends, and so does what is said (CAT-01, STO-03)."""

import difflib
from typing import Any

import pytest

from controlplane.catalog.load import Files, merge
from controlplane.catalog.locator import parse_locator
from controlplane.catalog.references import MAX_HINTS
from controlplane.catalog.validate import MAX_FAULTS, parse_catalog
from llmgw.runtime import faults as faulty
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.settings import SettingsError

SIM = {"engine": "sim", "source": "sim:", "min_memory_gb": 1}


def refused(tree: dict[str, Any]) -> list[str]:
    with pytest.raises(SettingsError) as error:
        parse_catalog({"body": tree})
    return [str(fault) for fault in error.value.faults]


@pytest.mark.parametrize("number", [10**400, -(10**400), 10**13])
def test_a_whole_number_of_any_size_is_a_fault(number: int) -> None:
    """YAML and JSON have whole numbers that no float can hold."""
    (fault,) = refused(
        {"models": {"m": {"scaling": {"min": 0, "max": number}, "profiles": [SIM]}}}
        if number > 0
        else {"models": {"m": {"scaling": {"min": number, "max": 1}, "profiles": [SIM]}}}
    )
    assert fault.endswith("is not a usable number")


def test_as_many_faults_as_a_person_reads() -> None:
    """A megabyte of nothing but faults was answered with twenty-seven."""
    faults = refused({"models": {f"m{index}": {"zz": 1} for index in range(2000)}})
    assert len(faults) == MAX_FAULTS + 1
    assert faults[-1] == "3000 more faults are not listed: mend these first, then look again"


def test_unknown_names_without_end_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of unknown fallbacks among thousands of models took minutes of processor time."""
    compared: list[str] = []
    real = difflib.get_close_matches
    monkeypatch.setattr(faulty.difflib, "get_close_matches", lambda *a, **k: compared.append(a[0]) or real(*a, **k))
    models = {f"m{n}": {"fallbacks": [f"nope{k}" for k in range(16)], "profiles": [SIM]} for n in range(50)}
    faults = refused({"models": models})
    assert len(faults) == 800 and len(compared) <= MAX_HINTS


def test_a_hint_among_thousands_looks_closely_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare 5,000 names held the hub for 0.1 s at every misspelt name."""
    looked: list[int] = []
    real = difflib.get_close_matches

    def counting(word: str, names: list[str], **options: Any) -> list[str]:
        looked.append(len(names))
        return real(word, names, **options)

    monkeypatch.setattr(faulty.difflib, "get_close_matches", counting)
    names = [f"model-{index}" for index in range(5000)] + ["qwen3-8b-instruct"]
    assert did_you_mean("qwen3-8b-instuct", names) == "; did you mean qwen3-8b-instruct?"
    assert did_you_mean("wen3-8b-instruct", names) == "; did you mean qwen3-8b-instruct?"
    assert did_you_mean("x" * 4000, names) == ""
    assert max(looked) <= faulty.MANY


def test_a_change_of_one_model_reads_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """To add the 5,000th model took 3 s, as all the others were checked again."""
    files = Files("c", {"catalog.yaml": {"models": {f"f{index}": {"profiles": [SIM]} for index in range(5)}}})
    stored: dict[str, Any] = {f"s{index}": {"profiles": [SIM]} for index in range(5)}
    known = merge(files, stored)
    read: list[str] = []
    real = parse_catalog.__globals__["_model"]
    monkeypatch.setitem(parse_catalog.__globals__, "_model", lambda name, *rest: read.append(name) or real(name, *rest))
    fresh = merge(
        files, {**stored, "s1": {"profiles": [SIM], "class": "critical"}, "new": {"profiles": [SIM]}}, (), known
    )
    assert read == ["s1", "new"]
    assert fresh.models["s1"].service_class == "critical" and len(fresh.models) == 11
    assert fresh == merge(
        files, fresh.definitions and {**stored, "s1": fresh.definitions["s1"], "new": fresh.definitions["new"]}
    )


def test_what_was_taken_over_is_looked_up_anew() -> None:
    """Another model takes over the alias that a fallback names; a flag is no longer allowed;
    a model moves from the store to a file: none of it is what the earlier catalog says."""
    first = {"fallbacks": ["spare"], "profiles": [SIM]}
    one, two, plain = (
        {"aliases": ["spare"], "profiles": [SIM]},
        {"aliases": ["spare"], "profiles": [SIM]},
        {"profiles": [SIM]},
    )
    files = Files("c", {"catalog.yaml": {"models": {}}})
    known = merge(files, {"first": first, "one": one})
    assert known.models["first"].fallbacks == ("one",)
    after = merge(files, {"first": first, "one": plain, "two": two}, (), known)
    assert after.models["first"].fallbacks == ("two",)
    assert (
        merge(Files("c", {"catalog.yaml": {"models": {"one": one}}}), {}, (), known).models["one"].origin
        == "catalog.yaml"
    )
    vllm = {
        "profiles": [
            {"engine": "vllm", "source": "hf:a/b", "gpus": 1, "gpu_class": "x", "args": ["--trust-remote-code"]}
        ]
    }
    allowed = merge(files, {"v": vllm}, ["vllm --trust-remote-code"])
    with pytest.raises(SettingsError, match="--trust-remote-code is not allowed"):
        merge(files, {"v": vllm}, (), allowed)


@pytest.mark.parametrize("source", ["file:/srv/a\nb", "file:/srv/a\x00b", "file:/srv/a\x1b[2J", "file:/srv/\u202ea"])
def test_a_path_has_no_character_that_cannot_be_seen(source: str) -> None:
    """It is shown, logged and handed to an engine."""
    with pytest.raises(ValueError, match="cannot be seen: type the path anew"):
        parse_locator(source)
