"""A start-up deadline that passed while the agent could not look (found by the simulator)."""

from agent import events as ev
from agent.records import AgentState, ShardRecord
from agent.shard import PROBE_TIMEOUT
from tests.unit.agent.shards import make_spec
from tests.unit.agent.test_machine import Rig, of

SPEC = make_spec(startup_timeout=30.0)


def test_a_stopped_agent_asks_before_it_gives_up():
    """AGT-09: an agent that was stopped past the deadline asks the engine once more."""
    rig = Rig()
    rig.run(SPEC, ready=False)
    rig.feed(ev.Probed(SPEC.key, False, "HTTP 503"))
    rig.now += 60.0
    effects = rig.feed(ev.Woke())
    assert of(effects, ev.Probe) and not of(effects, ev.Signal)
    assert not of(rig.feed(ev.Probed(SPEC.key, True)), ev.Signal)
    assert rig.machine.shards[SPEC.key].state == "ready"


def test_an_engine_adopted_after_its_deadline_is_asked_first():
    """AGT-07, AGT-09: the record says starting, the engine may be serving for long."""
    record = ShardRecord(spec=SPEC, boot_id="boot-1", pid=7, started=7, state="starting")
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(record, alive=True, age=900.0),)))
    effects = rig.feed(ev.Woke())
    assert of(effects, ev.Probe) and not of(effects, ev.Signal)
    rig.feed(ev.Probed(SPEC.key, False, "HTTP 503"))
    done = rig.until(rig.now + PROBE_TIMEOUT + 1)
    assert [effect.signal for _, effect in done if isinstance(effect, ev.Signal)] == ["TERM"]


def test_an_agent_that_looked_all_along_gives_up_on_time():
    """REC-04: the deadline of an engine that keeps saying no is not put off."""
    rig = Rig()
    rig.run(SPEC, ready=False)
    begin = rig.now
    while not of(rig.log, ev.Signal) and rig.now < begin + 60:
        rig.now = rig.machine.next_wake
        if of(rig.feed(ev.Woke()), ev.Probe):
            rig.feed(ev.Probed(SPEC.key, False, "HTTP 503"))
    assert 30.0 <= rig.now - begin < 31.0


def test_an_answer_that_is_on_its_way_is_waited_for():
    """AGT-07, AGT-09: adopted a moment before its deadline, it is asked; the deadline passes while the answer is on
    its way, and the answer decides. One that never comes is not waited for."""
    record = ShardRecord(spec=SPEC, boot_id="boot-1", pid=7, started=7, state="starting")
    for answer in (True, None):
        rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(record, alive=True, age=29.99),)))
        assert of(rig.feed(ev.Woke()), ev.Probe)
        rig.now += 0.02
        assert not of(rig.feed(ev.Woke()), ev.Signal)
        if answer:
            rig.feed(ev.Probed(SPEC.key, True))
            assert rig.machine.shards[SPEC.key].state == "ready"
        done = rig.until(rig.now + PROBE_TIMEOUT + 1)
        assert [effect.signal for _, effect in done if isinstance(effect, ev.Signal)] == ([] if answer else ["TERM"])
