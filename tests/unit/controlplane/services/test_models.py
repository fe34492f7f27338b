"""Models added live when the store does not behave, and when two ask at once."""

from pathlib import Path

import gevent
import pytest
import yaml

from controlplane.catalog.source import SourceReport
from controlplane.events import CatalogChanged
from controlplane.services import models as module
from controlplane.services.changes import Principal
from controlplane.services.errors import Refused
from controlplane.store.values import Grant
from tests.unit.controlplane.services.harness import ADMIN, SIM, World, ask, until


def names(world: World) -> set[str]:
    return set(world.catalog.current.models)


def test_an_answer_that_got_lost_is_found_out(world: World) -> None:
    """STO-03, CAT-06: the commit was made, its answer lost: the caller is told that it is
    not known, and the model is in force once the store can be asked."""
    world.store.lose = True
    with pytest.raises(Refused) as refused:
        world.models.create(ask(), "m", SIM)
    assert refused.value.status == 503
    until(lambda: names(world) == {"m"})
    (event,) = world.events()
    assert isinstance(event, CatalogChanged) and set(event.catalog.models) == {"m"}
    changed = world.models.put(ask(if_match='"1"'), "m", {**SIM, "class": "critical"})
    assert changed.stored is not None and changed.stored.version == 2


def test_what_got_lost_is_found_out_beside_a_later_change(world: World) -> None:
    """CAT-06: it is looked up before another model is added, and told of after that."""
    world.store.lose = True
    with pytest.raises(Refused):
        world.models.create(ask(), "lost", SIM)
    later = gevent.spawn(world.models.create, ask(), "later", SIM)
    world.store.held.append(later)
    gevent.sleep(0.2)
    world.store.go_on.set()
    later.get(timeout=20)
    until(lambda: names(world) == {"lost", "later"})
    gevent.sleep(0.05)
    assert names(world) == {"lost", "later"}


def test_a_lost_removal_is_found_out(world: World) -> None:
    """The same for what is gone."""
    world.models.create(ask(), "m", SIM)
    world.store.lose = True
    with pytest.raises(Refused):
        world.models.remove(ask(), "m")
    until(lambda: names(world) == set())


def test_without_a_store_nothing_changes(world: World) -> None:
    """STO-03: refused in words; the loop is told nothing."""
    world.store.away = True
    with pytest.raises(Refused) as refused:
        world.models.create(ask(), "m", SIM)
    assert (refused.value.code, refused.value.status) == ("store_unavailable", 503)
    assert names(world) == set() and world.events() == []


def test_two_at_once_and_one_is_told(world: World) -> None:
    """API-04: both looked at the same version while their sources were checked; one wins,
    the other must read again. Nothing of the first is lost."""
    world.models.create(ask(), "m", SIM)
    going = [gevent.event.Event(), gevent.event.Event()]
    waiting = iter(going)

    def slow(source: str) -> SourceReport:
        next(waiting).wait()
        return SourceReport(source, "exists", "is there")

    world.report = slow
    other = {**SIM, "profiles": [{"engine": "llamacpp", "source": "file:/m.gguf", "min_memory_gb": 1}]}
    first = gevent.spawn(world.models.put, ask(), "m", other)
    second = gevent.spawn(world.models.put, ask(), "m", {**other, "class": "critical"})
    gevent.sleep(0)
    until(lambda: len(world.looked) == 3)
    for event in going:
        event.set()
    gevent.joinall([first, second])
    failed = [greenlet for greenlet in (first, second) if greenlet.exception is not None]
    (loser,) = failed
    assert isinstance(loser.exception, Refused) and loser.exception.status == 409
    assert world.catalog.stored["m"].version == 2


def test_what_another_process_changed_is_not_overwritten(world: World) -> None:
    """STO-03: the version in the store decides, whatever memory says."""
    made = world.models.create(ask(), "m", SIM).stored
    assert made is not None
    other = type(made)(
        made.name, {**SIM, "class": "critical"}, made.created_at, "eve", made.updated_at, "eve", version=2
    )
    world.store.write(lambda tx: tx.models.put(other))
    with pytest.raises(Refused) as refused:
        world.models.put(ask(), "m", SIM)
    assert refused.value.status == 409
    assert world.store.read(lambda tx: tx.models.all()) == (other,)


def test_only_new_sources_are_looked_at(world: World) -> None:
    """CAT-09: an edit that leaves the source alone asks nobody; a new one is asked for."""
    world.models.create(ask(), "m", SIM)
    assert world.looked == ["sim:"]
    world.models.put(ask(), "m", {**SIM, "class": "critical"})
    world.models.patch(ask(), "m", {"scaling": {"min": 0, "max": 0}})
    assert world.looked == ["sim:"]
    file = {"engine": "llamacpp", "source": "file:/srv/m.gguf", "min_memory_gb": 1}
    outcome = world.models.put(ask(), "m", {**SIM, "profiles": [*SIM["profiles"], file]})
    assert world.looked == ["sim:", "file:/srv/m.gguf"] and outcome.sources[0].size_bytes == 7


def test_an_invalid_model_asks_nobody(world: World) -> None:
    """CAT-09, SEC-04: a definition with faults makes no request to anywhere."""
    bad = {**SIM, "profiles": [{"engine": "sim", "source": "https://example.com/x", "min_memory_gb": 1}]}
    with pytest.raises(Refused):
        world.models.create(ask(), "m", bad)
    assert world.looked == []


def test_taking_a_part_away(world: World) -> None:
    """CAT-12: null takes a part away, what is not named stays."""
    world.models.create(ask(), "m", {**SIM, "class": "critical", "resources": {"cpu_cores": 2}})
    outcome = world.models.patch(ask(), "m", {"class": None, "scaling": {"min": 2, "max": 2}})
    assert outcome.definition == {
        "scaling": {"min": 2, "max": 2},
        "profiles": SIM["profiles"],
        "resources": {"cpu_cores": 2},
    }
    with pytest.raises(Refused) as refused:
        world.models.patch(ask(), "m", {"scaling": {"min": 3, "max": 2}})
    assert refused.value.faults[0].path == "models.m.scaling.min"
    assert world.catalog.current.models["m"].scaling.min == 2


def test_the_store_outlives_the_process(tmp_path: Path) -> None:
    """CAT-06: the models of the store are there again, with their versions."""
    first = World(tmp_path)
    first.models.create(ask(), "m", SIM)
    first.models.patch(ask(), "m", {"class": "critical"})
    first.close()
    second = World(tmp_path)
    assert second.catalog.stored["m"].version == 2 and names(second) == {"m"}
    second.close()


def test_a_file_that_is_faulty_now_stops_no_live_change(world: World) -> None:
    """CAT-06: live changes stand on the files as they were last taken; the refusal of the
    file stays told until a good one is read."""
    world.path.write_text("models: [")
    with pytest.raises(Refused):
        world.catalog.reload("ada")
    world.models.create(ask(), "m", SIM)
    assert names(world) == {"m"} and world.catalog.refusal is not None
    world.path.write_text("models: {}")
    world.catalog.reload("ada")
    assert names(world) == {"m"} and world.catalog.refusal is None


def test_files_come_into_force_beyond_doubt_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """HA-01: whoever leads by now may have read them otherwise, and routers still take our table."""
    world.models.create(ask(), "m", SIM)
    world.path.write_text(yaml.safe_dump({"models": {"from-a-file": SIM}}))
    monkeypatch.setattr(world.catalog, "_sure", lambda: False)
    with pytest.raises(Refused, match="has not renewed this control plane's lease") as refused:
        world.catalog.reload("SIGHUP")
    assert (refused.value.code, refused.value.status) == ("store_unavailable", 503)
    assert names(world) == {"m"} and len(world.inbox) == 1
    monkeypatch.undo()
    world.catalog.reload("SIGHUP")
    assert names(world) == {"m", "from-a-file"}


def test_the_audit_stands_with_the_change(world: World) -> None:
    """API-05: what was before and after, by whom; nothing of what was refused."""
    world.models.create(ask("models.add", said="cli:root (sudo by eve)"), "m", SIM)
    with pytest.raises(Refused):
        world.models.create(ask(), "m", SIM)
    world.models.remove(ask("models.remove"), "m")
    page = world.store.read(lambda tx: tx.audit.page(10))
    told = [(entry.operation, entry.actor, entry.target, entry.before, entry.after) for entry in page.items]
    assert told == [
        ("models.remove", "ada", "m", SIM, None),
        ("models.add", "ada (cli:root (sudo by eve))", "m", None, SIM),
    ]


def test_what_was_removed_and_added_meanwhile_is_another(world: World) -> None:
    """API-04: its version is 1 again, but it is not the one that was to be changed."""
    world.models.create(ask(), "m", SIM)
    new = {**SIM, "profiles": [{"engine": "llamacpp", "source": "file:/m.gguf", "min_memory_gb": 1}]}

    def meddle(source: str) -> SourceReport:
        world.clock.advance(1)
        world.models.remove(ask(), "m")
        world.models.create(ask(), "m", {**SIM, "class": "critical"}, check=False)
        return SourceReport(source, "exists", "is there")

    world.report = meddle
    with pytest.raises(Refused) as refused:
        world.models.put(ask(), "m", new)
    assert refused.value.status == 409
    assert world.catalog.stored["m"].definition["class"] == "critical"


def test_an_owner_s_slow_sources_keep_no_operator_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """CAT-09: looks of owners have turns of their own, and who waits too long for one is
    told to try again later."""
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    slow = gevent.event.Event()

    def look(source: str) -> SourceReport:
        if source == "slow":
            slow.wait()
        return SourceReport(source, "exists", "is there")

    world.report = look
    owner = Principal("olga", "tok", (Grant("owner", "acme"),))
    looks = [gevent.spawn(world.models.check_source, owner, "slow") for _ in range(module.OF_OWNERS)]
    until(lambda: len(world.looked) == module.OF_OWNERS)
    with pytest.raises(Refused) as refused:
        world.models.check_source(owner, "quick")
    assert (refused.value.code, refused.value.status) == ("busy", 503)
    for _ in range(2 * module.AT_ONCE):
        assert world.models.check_source(ADMIN, "quick").usable
    slow.set()
    gevent.joinall(looks, raise_error=True)
    assert world.models.check_source(owner, "quick").usable
