"""Cluster settings when the store does not behave, and what cannot be set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pytest

from controlplane.clustersettings import INDEX, ROWS, FileValue, allowable, file_values
from controlplane.services.changes import Principal
from controlplane.services.errors import Refused
from controlplane.settings import SETTINGS, load
from controlplane.store.values import Grant, StoredSetting
from tests.unit.controlplane.services.harness import World, ask, until


def test_those_who_asked_are_told_once(world: World) -> None:
    """API-06: after the change is durable, with the typed value, and only if it differs."""
    told: list[Any] = []
    world.settings.on_change("requests.retention", told.append)
    world.settings.set(ask(), "requests.retention", "2d")
    world.settings.set(ask(), "requests.retention", 172800)
    world.settings.unset(ask(), "requests.retention")
    assert told == [172800.0, 604800.0]
    with pytest.raises(Refused):
        world.settings.set(ask(), "requests.retention", "no")
    world.store.away = True
    with pytest.raises(Refused):
        world.settings.set(ask(), "requests.retention", "3d")
    assert len(told) == 2 and world.settings.value("requests.retention") == 604800


def test_a_lost_answer_is_found_out(world: World) -> None:
    """STO-03: who asked is told that it is not known, who listens is told the outcome."""
    told: list[Any] = []
    world.settings.on_change("serving.stopped", told.append)
    world.store.lose = True
    with pytest.raises(Refused):
        world.settings.set(ask(), "serving.stopped", True)
    until(lambda: told == [True])
    assert world.settings.one("serving.stopped")["version"] == 1


def test_a_lost_answer_of_what_is_guarded(world: World) -> None:
    """CAT-04: the catalog obeys engines.allow as the store has it."""
    world.store.lose = True
    with pytest.raises(Refused):
        world.settings.set(ask(), "engines.allow", ["vllm --trust-remote-code"])
    until(lambda: world.settings.value("engines.allow") == ("vllm --trust-remote-code",))
    unsafe = {
        "scaling": {"min": 0, "max": 0},
        "profiles": [
            {
                "engine": "vllm",
                "source": "hf:a/b",
                "gpu_class": "h100-80g",
                "gpus": 1,
                "args": ["--trust-remote-code"],
            }
        ],
    }
    world.models.create(ask(), "m", unsafe)


def test_a_value_that_this_release_cannot_use(tmp_path: Path) -> None:
    """API-06: the file's value or the default holds, and it is told; it can be replaced."""
    first = World(tmp_path)
    first.store.write(lambda tx: tx.settings.put(StoredSetting("requests.retention", "soon", 1.0, "eve", 4)))
    first.store.write(lambda tx: tx.settings.put(StoredSetting("of.another.release", 1, 1.0, "eve")))
    first.close()
    world = World(tmp_path, **{"requests.retention": FileValue(7200.0, "a file")})
    assert world.settings.value("requests.retention") == 7200
    assert "must be a duration" in world.settings.faults["requests.retention"]
    shown = world.settings.one("requests.retention")
    assert shown["rules"] == "a file" and shown["store"]["fault"] and shown["version"] == 4
    world.settings.set(ask(if_match='"4"'), "requests.retention", "1d")
    assert world.settings.value("requests.retention") == 86400 and not world.settings.faults
    world.close()


def test_a_file_is_read_again(world: World) -> None:
    """API-06: what changed is told, what its guard refuses stays and is named."""
    told: list[Any] = []
    world.settings.on_change("requests.log", told.append)
    assert world.settings.reread({"requests.log": FileValue(False, "f")}) == []
    assert world.settings.reread({}) == [] and told == [False, True]
    refused = world.settings.reread({"engines.allow": FileValue(("vllm --api-key",), "f")})
    assert "cannot be allowed" in refused[0].faults[0].message
    assert world.settings.value("engines.allow") == ()


def test_every_setting_is_declared_well(tmp_path: Path) -> None:
    """API-06: its default is one of its own values, and each but the log's level may stand
    in a file, which is how a control plane reads it."""
    for row in ROWS:
        assert row.help.endswith(".") and INDEX[row.name] is row
        row.parse(row.default)
    lines = ["log: {level: warning}", "cluster:", "  requests: {retention: 1h}", "  engines: {allow: [vllm --kv-x]}"]
    file = tmp_path / "controlplane.yaml"
    file.write_text("\n".join(lines))
    given = file_values(load(file, {"LLMGW_CONTROLPLANE_CLUSTER_SERVING_STOPPED": "true"}))
    assert given == {
        "log.level": FileValue("warning", str(file)),
        "requests.retention": FileValue(3600.0, str(file)),
        "engines.allow": FileValue(("vllm --kv-x",), str(file)),
        "serving.stopped": FileValue(True, "environment"),
    }
    assert {f"cluster.{row.name}" for row in ROWS if row.name != "log.level"} <= set(SETTINGS.index)
    assert "vllm --trust-remote-code" in allowable()


def test_an_operator_changes_two_of_them(world: World) -> None:
    """API-08: whoever is on call can stop serving; what else reaches everybody is an
    administrator's, and the refusal says so."""
    operator = replace(ask(), principal=Principal("ada", "t", (Grant("operator"),)))
    assert world.settings.set(operator, "serving.stopped", True)["value"] is True
    assert world.settings.unset(operator, "serving.stopped")["value"] is False
    for change in (lambda name: world.settings.set(operator, name, "2d"), lambda n: world.settings.unset(operator, n)):
        with pytest.raises(Refused, match=r"administrators to change; an operator changes log\.level and") as refused:
            change("requests.retention")
        assert refused.value.status == 403


def test_what_was_uncertain_does_not_undo_a_later_change(world: World) -> None:
    """API-04: it is looked up in the store before the later one is made, and told of after it."""
    name = "requests.retention"
    world.store.lose = True
    with pytest.raises(Refused):
        world.settings.set(ask(), name, "2d")
    later = gevent.spawn(world.settings.set, ask(), name, "3d")
    world.store.held.append(later)
    gevent.sleep(0.1)
    world.store.go_on.set()
    later.get(timeout=20)
    gevent.sleep(0.05)
    assert world.settings.value(name) == 3 * 86_400
    assert world.settings.one(name)["store"]["updated_by"] == "ada" and world.settings.one(name)["version"] == 2
