"""The pure agent machine."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import events as ev
from agent.machine import MAX_HELD, Machine
from agent.records import MAX_COMMANDS, MAX_EXITS, AgentState, Process, ShardRecord
from llmgw.wire.messages import (
    CommandResult,
    Forget,
    Inventory,
    Measurements,
    Register,
    ShardChanged,
    ShardExited,
)
from tests.unit.agent.shards import make_spec, start, stop

INVENTORY = Inventory(address="127.0.0.1")


class Rig:
    """Feeds a machine and keeps its disk. ``auto`` answers saves at once."""

    def __init__(self, auto=True, booted=None):
        self.now = 1000.0
        self.machine = Machine("node-a", "0.1.0")
        self.auto = auto
        self.disk = {}
        self.state = AgentState(highest_epoch=1, leader="lead-1")
        self.log = []
        self.feed(booted or ev.Booted(boot_id="boot-1", state=self.state))
        self.feed(ev.InventoryRead(INVENTORY))

    def feed(self, event):
        effects = self.machine.handle(event, self.now)
        self.log += effects
        for effect in effects:
            if isinstance(effect, ev.Save):
                self.store(effect.item)
                if self.auto:
                    effects = effects + self.feed(ev.Saved(effect.sequence))
        return effects

    def store(self, item):
        match item:
            case ShardRecord():
                self.disk[item.spec.key] = item
            case AgentState():
                self.state = item
            case ev.RemoveRecord(key):
                self.disk.pop(key, None)

    def command(self, message):
        return self.feed(ev.Commanded(message))

    def run(self, spec, pid=4711, ready=True):
        self.command(start(spec))
        self.feed(ev.Validated(spec.key))
        self.feed(ev.Launched(spec.key, Process(pid, 99)))
        if ready:
            self.feed(ev.Probed(spec.key, True))

    def until(self, moment):
        """Wake the machine whenever it asks for it, up to ``moment``; what it did, by time."""
        done = []
        while (wake := self.machine.next_wake) is not None and wake <= moment:
            self.now = max(self.now, wake)
            done += [(self.now, effect) for effect in self.feed(ev.Woke())]
        self.now = moment
        return done


def reports(effects, kind):
    return [e.message for e in effects if isinstance(e, ev.Report) and isinstance(e.message, kind)]


def of(effects, kind):
    return [e for e in effects if isinstance(e, kind)]


def exit_of(effects):
    (exited,) = reports(effects, ShardExited)
    return exited.exit


SPEC = make_spec()


def test_record_is_on_disk_before_launch_and_again_after():
    """AGT-07: the spec is written before anything runs, and the process after."""
    rig = Rig(auto=False)
    effects = rig.command(start(SPEC))
    saves = of(effects, ev.Save)
    assert rig.disk[SPEC.key].process is None
    assert not of(effects, ev.Validate)
    effects = [e for save in saves for e in rig.feed(ev.Saved(save.sequence))]
    assert of(effects, ev.Validate)
    assert of(rig.feed(ev.Validated(SPEC.key)), ev.Launch)
    effects = rig.feed(ev.Launched(SPEC.key, Process(4711, 99)))
    assert of(effects, ev.Save)
    record = rig.disk[SPEC.key]
    assert (record.pid, record.started, record.boot_id) == (4711, 99, "boot-1")


def test_nothing_is_launched_if_the_record_cannot_be_written():
    """AGT-07: an engine that could not be found again is not started."""
    rig = Rig(auto=False)
    (save, _) = of(rig.command(start(SPEC)), ev.Save)
    effects = rig.feed(ev.Saved(save.sequence, "No space left on device"))
    exit = exit_of(effects)
    assert (exit.code, exit.requested) == ("agent_error", False)
    assert "No space left" in exit.message
    assert not of(rig.log, ev.Launch)


def test_all_faults_of_a_spec_are_told():
    """AGT-05: errors in seconds, every one of them."""
    rig = Rig()
    rig.command(start(SPEC))
    faults = (ev.SpecFault("weights_missing", "no file"), ev.SpecFault("port_in_use", "taken"))
    exit = exit_of(rig.feed(ev.Validated(SPEC.key, faults)))
    assert exit.code == "weights_missing"
    assert exit.message == "no file; taken"
    assert not of(rig.log, ev.Launch)


def test_ready_after_a_good_probe():
    """AGT-08: readiness is the engine's own answer."""
    rig = Rig()
    rig.run(SPEC, ready=False)
    assert rig.machine.registration(rig.now).shards[0].state == "starting"
    (_, probe), *_ = [(t, e) for t, e in rig.until(rig.now + 0.2) if isinstance(e, ev.Probe)]
    assert probe.spec == SPEC
    rig.feed(ev.Probed(SPEC.key, False, "503 loading"))
    assert rig.machine.registration(rig.now).shards[0].detail == "503 loading"
    effects = rig.feed(ev.Probed(SPEC.key, True))
    assert reports(effects, ShardChanged)[0].status.state == "ready"
    assert rig.disk[SPEC.key].state == "ready"
    assert rig.until(rig.now + 3600) == []


def test_a_rank_that_serves_no_http_is_ready_by_living():
    """AGT-08: workers are judged by staying alive."""
    rig = Rig()
    rig.command(start(SPEC))
    rig.feed(ev.Validated(SPEC.key))
    effects = rig.feed(ev.Launched(SPEC.key, Process(1, 1), probed=False))
    assert reports(effects, ShardChanged)[0].status.state == "ready"


def test_startup_timeout_fails_with_output():
    """REC-04, AGT-06: not ready in time: stopped, and told why with its last lines."""
    rig = Rig()
    spec = make_spec(startup_timeout=30.0)
    rig.run(spec, ready=False)
    rig.feed(ev.Probed(spec.key, False, "HTTP 503"))
    done = rig.until(rig.now + 41)
    signals = [(round(t - 1000.0), e.signal) for t, e in done if isinstance(e, ev.Signal)]
    assert signals[:3] == [(30, "TERM"), (35, "TERM"), (40, "KILL")]
    exit = exit_of(rig.feed(ev.Gone(spec.key, -9, ("last words",))))
    assert (exit.code, exit.requested, exit.tail) == ("startup_timeout", False, ("last words",))
    assert "HTTP 503" in exit.message


def test_stop_is_term_term_kill_and_done_only_when_gone():
    """AGT-06: a busy engine hangs after the first SIGTERM and leaves at the second."""
    rig = Rig()
    rig.run(SPEC)
    begin = rig.now
    effects = rig.command(stop(SPEC, grace=10))
    done = [(begin, e) for e in effects] + rig.until(begin + 12)
    assert [(t - begin, e.signal) for t, e in done if isinstance(e, ev.Signal)] == [
        (0, "TERM"),
        (5, "TERM"),
        (10, "KILL"),
        (11, "KILL"),
        (12, "KILL"),
    ]
    assert not reports(rig.log, ShardExited)
    assert rig.machine.registration(rig.now).shards[0].state == "stopping"
    exit = exit_of(rig.feed(ev.Gone(SPEC.key, 0)))
    assert (exit.code, exit.requested, exit.exit_status) == ("stopped", True, 0)
    assert rig.machine.registration(rig.now).shards == ()


def test_a_shorter_grace_overrides_and_a_longer_one_does_not():
    """AGT-06: a repeated stop is idempotent."""
    rig = Rig()
    rig.run(SPEC)
    rig.command(stop(SPEC, grace=100))
    assert not of(rig.command(stop(SPEC, grace=200)), ev.Signal)
    rig.command(stop(SPEC, grace=4))
    kills = [t for t, e in rig.until(rig.now + 4.5) if isinstance(e, ev.Signal) and e.signal == "KILL"]
    assert kills == [1004.0]


@pytest.mark.parametrize("phase", ["accepted", "validating", "launching"])
def test_stop_before_the_engine_runs(phase):
    """AGT-06: a stop is never lost, whatever the shard is doing."""
    rig = Rig(auto=phase != "accepted")
    rig.command(start(SPEC))
    if phase == "launching":
        rig.feed(ev.Validated(SPEC.key))
    effects = rig.command(stop(SPEC))
    if phase == "launching":
        assert not reports(effects, ShardExited)
        assert of(rig.feed(ev.Launched(SPEC.key, Process(5, 5))), ev.Signal)
        effects = rig.feed(ev.Gone(SPEC.key, -15))
    assert exit_of(effects).code == "stopped"
    assert not of(rig.feed(ev.Validated(SPEC.key)), ev.Launch)


def test_unexpected_exit_tells_status_and_tail_and_kills_what_is_left():
    """AGT-06: sidecars die with the shard; the output travels with the failure."""
    rig = Rig()
    rig.run(SPEC)
    assert of(rig.feed(ev.Exited(SPEC.key, -11)), ev.Signal) == [ev.Signal(SPEC.key, "KILL")]
    exit = exit_of(rig.feed(ev.Gone(SPEC.key, -11, ("boom",))))
    assert (exit.code, exit.exit_status, exit.tail, exit.requested) == ("exited", -11, ("boom",), False)
    assert "SIGSEGV" in exit.message


def test_cause_read_from_the_output_replaces_exited():
    """PLC-13: a port taken in the last moment is told as such."""
    rig = Rig()
    rig.run(SPEC, ready=False)
    rig.feed(ev.Exited(SPEC.key, 1))
    exit = exit_of(rig.feed(ev.Gone(SPEC.key, 1, (), ev.SpecFault("port_in_use", "port 20000 is taken"))))
    assert exit.code == "port_in_use"


def test_exits_are_kept_until_forgotten_also_on_disk():
    """AGT-04: an exit during a lost connection still tells why, after an agent crash too."""
    rig = Rig()
    rig.run(SPEC)
    rig.feed(ev.Gone(SPEC.key, 3, ("why",)))
    again = Rig(booted=ev.Booted("boot-1", rig.state, tuple(ev.Stored(r) for r in rig.disk.values())))
    (kept,) = again.machine.registration(again.now).exits
    assert (kept.exit_status, kept.tail) == (3, ("why",))
    again.disk = dict(rig.disk)
    again.command(Forget(shards=(SPEC.key,)))
    assert again.machine.registration(again.now).exits == ()
    assert again.disk == {}


def test_the_disk_forgets_the_key_of_a_gone_shard():
    """SEC-03: an engine key is kept only as long as the engine."""
    rig = Rig()
    rig.run(SPEC)
    assert rig.disk[SPEC.key].spec.engine_key
    rig.feed(ev.Gone(SPEC.key, 0))
    assert rig.disk[SPEC.key].spec.engine_key == ""


def test_exits_are_bounded():
    """AGT-04: the oldest exits go first."""
    rig = Rig()
    for index in range(MAX_EXITS + 5):
        rig.run(spec := make_spec(f"tiny-{index:08x}"))
        rig.feed(ev.Gone(spec.key, 0))
    kept = rig.machine.registration(rig.now).exits
    assert [e.replica_id for e in kept] == [f"tiny-{index:08x}" for index in range(5, MAX_EXITS + 5)]
    assert len(rig.disk) == MAX_EXITS


def test_lower_epochs_are_refused():
    """AGT-04: the highest epoch is persisted, and lower ones change nothing."""
    rig = Rig()
    rig.feed(ev.EpochSeen(7))
    assert rig.state.highest_epoch == 7
    again = Rig(booted=ev.Booted("boot-1", rig.state))
    assert again.machine.hello(0).highest_epoch == 7
    for command in (start(SPEC, epoch=6), stop(SPEC, epoch=6)):
        effects = again.command(command)
        (result,) = reports(effects, CommandResult)
        assert (result.outcome, result.code) == ("refused", "stale_epoch")
        assert len(effects) == 1
    again.command(start(SPEC, epoch=8))
    assert again.state.highest_epoch == 8


def test_an_epoch_is_kept_with_its_leader():
    """AGT-04: both survive a restart and are told at hello; an unknown leader is learnt, and
    no other of the same epoch is obeyed."""
    rig = Rig()
    rig.feed(ev.EpochSeen(7, "lead-7"))
    again = Rig(booted=ev.Booted("boot-1", rig.state))
    hello = again.machine.hello(0)
    assert (hello.highest_epoch, hello.leader) == (7, "lead-7")
    allegiance = again.machine.allegiance
    assert "another leader" in allegiance.objection(7, "stranger")
    assert "older than 7" in allegiance.objection(6, "lead-7")
    assert not allegiance.objection(7, "lead-7") and not allegiance.objection(8, "stranger")
    unknown = Rig(booted=ev.Booted("boot-1", AgentState(highest_epoch=7)))
    unknown.feed(ev.EpochSeen(7, "lead-7"))
    assert unknown.state.leader == "lead-7"


@pytest.mark.parametrize("raised_by", ["welcome", "command"])
def test_a_command_waits_until_its_epoch_is_on_disk(raised_by):
    """AGT-04: else a crash would make the node forget whom it obeyed, and obey an older leader."""
    rig = Rig(auto=False)
    if raised_by == "welcome":
        (save,) = of(rig.feed(ev.EpochSeen(5, "lead-5")), ev.Save)
        assert rig.command(start(SPEC, epoch=5)) == []
    else:
        (save,) = rig.command(start(SPEC, epoch=5))
    assert rig.command(stop(SPEC, epoch=5)) == []
    assert rig.machine.shards == {}
    effects = rig.feed(ev.Saved(save.sequence))
    assert [result.outcome for result in reports(effects, CommandResult)] == ["accepted", "accepted"]
    assert rig.command(start(make_spec("other"), epoch=5)) != []


def test_commands_that_wait_end_with_their_session():
    """AGT-04: the next registration tells that they were not applied; they must not be after all."""
    rig = Rig(auto=False)
    (save,) = of(rig.feed(ev.EpochSeen(5, "lead-5")), ev.Save)
    rig.command(start(SPEC, epoch=5))
    (again,) = of(rig.feed(ev.EpochSeen(6, "lead-6")), ev.Save)
    for each in (save, again):
        assert reports(rig.feed(ev.Saved(each.sequence)), CommandResult) == []
    assert rig.machine.shards == {}


def test_commands_that_wait_are_bounded():
    """AGT-04: a disk that takes nothing is told, it does not fill the memory."""
    rig = Rig(auto=False)
    (save,) = of(rig.feed(ev.EpochSeen(5, "lead-5")), ev.Save)
    rig.feed(ev.Saved(save.sequence, "No space left on device"))
    results = [reports(rig.command(stop(SPEC, epoch=5)), CommandResult) for _ in range(MAX_HELD + 1)]
    assert not any(results[:-1])
    assert (results[-1][0].outcome, results[-1][0].code) == ("refused", "agent_error")


def test_commands_are_deduplicated_by_id_across_restarts():
    """AGT-04: a command applied before a crash is not applied again."""
    rig = Rig()
    command = start(SPEC)
    rig.command(command)
    rig.command(stop(SPEC))
    rig.command(Forget(shards=(SPEC.key,)))
    again = Rig(booted=ev.Booted("boot-1", rig.state))
    assert again.machine.registration(0).last_command == rig.state.last_command
    effects = again.command(command)
    assert [r.outcome for r in reports(effects, CommandResult)] == ["duplicate"]
    assert again.machine.shards == {}


def test_a_second_start_of_a_shard_is_a_duplicate():
    """AGT-04: starts are also de-duplicated by shard key."""
    rig = Rig()
    rig.run(SPEC)
    effects = rig.command(start(SPEC))
    assert [r.outcome for r in reports(effects, CommandResult)] == ["duplicate"]
    assert not of(effects, ev.Validate)
    rig.feed(ev.Gone(SPEC.key, 1))
    effects = rig.command(start(SPEC))
    assert exit_of(effects).exit_status == 1


def test_remembered_commands_are_bounded():
    """AGT-04: bounded on disk."""
    rig = Rig()
    for index in range(MAX_COMMANDS + 10):
        rig.command(stop(make_spec(f"x-{index}")))
    assert len(rig.state.commands) == MAX_COMMANDS
    assert rig.state.commands[-1] == rig.state.last_command


def test_stop_of_an_unknown_shard_is_answered():
    """AGT-04: idempotent; the exit says ``not_found``."""
    rig = Rig()
    effects = rig.command(stop(SPEC))
    assert exit_of(effects).code == "not_found"
    assert rig.machine.exits == {}


@pytest.mark.parametrize("bad", ["", "../../etc/passwd", "a/b", ".hidden", "a" * 200, "a\0b"])
def test_replica_ids_that_cannot_be_file_names_are_refused(bad):
    """AGT-07: nothing from outside becomes a path."""
    rig = Rig()
    (result,) = reports(rig.command(start(make_spec(bad))), CommandResult)
    assert (result.outcome, result.code) == ("refused", "invalid_spec")
    assert rig.disk == {}


def test_specs_are_bounded():
    """AGT-01: all shards fit into one registration."""
    rig = Rig()
    (result,) = reports(rig.command(start(make_spec(args=("x" * 20_000,)))), CommandResult)
    assert (result.outcome, result.code) == ("refused", "invalid_spec")
    assert rig.machine.shards == {}


def test_one_owner_per_port_and_device():
    """AGT-05: what another shard of the node holds is refused before anything starts."""
    rig = Rig()
    rig.run(make_spec(devices=("GPU-1",)))
    exit = exit_of(rig.command(start(make_spec("b-1"))))
    assert exit.code == "port_in_use"
    exit = exit_of(rig.command(start(make_spec("b-2", port=20001, devices=("GPU-1",)))))
    assert exit.code == "device_busy"


def stored(**changes):
    values = {"spec": SPEC, "boot_id": "boot-1", "pid": 4711, "started": 99, "state": "ready"}
    return ShardRecord(**(values | changes))


def test_adopts_the_recorded_process():
    """AGT-07: a live engine is taken over with its state, and watched."""
    found = ev.Found(SPEC.key, (4711,), Process(4711, 99), 50.0)
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(stored(), alive=True, age=50.0),), (found,)))
    (status,) = rig.machine.registration(rig.now).shards
    assert (status.state, status.adopted, status.pid, status.age) == ("ready", True, 4711, 50.0)
    assert of(rig.log, ev.Watch) == [ev.Watch(SPEC, Process(4711, 99))]
    assert not of(rig.log, ev.Signal) + of(rig.log, ev.KillUnidentified)
    rig.command(stop(SPEC))
    assert of(rig.log, ev.Signal)[0].signal == "TERM"


def test_adopts_an_engine_whose_pid_was_not_recorded_yet():
    """AGT-07: a crash between launch and record orphans nothing."""
    found = ev.Found(SPEC.key, (4711, 4712), Process(4711, 99), 3.0)
    record = stored(pid=None, started=None, state="starting")
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(record),), (found,)))
    assert rig.machine.registration(rig.now).shards[0].pid == 4711
    assert rig.disk[SPEC.key].process == Process(4711, 99)
    rig.until(rig.now + 0.1)
    assert of(rig.log, ev.Probe)


def test_a_record_without_a_process_becomes_an_exit():
    """AGT-07: an engine that ended meanwhile, or whose pid was reused, is not adopted."""
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(stored(), tail=("bye",)),)))
    (exit,) = rig.machine.registration(rig.now).exits
    assert (exit.code, exit.exit_status, exit.tail) == ("exited", None, ("bye",))
    assert rig.machine.shards == {}


def test_a_start_cut_short_by_a_crash_of_the_agent_is_told_as_such():
    """AGT-07: nothing was launched: our fault, not the engine's."""
    record = stored(pid=None, started=None, state="starting")
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(record),)))
    assert rig.machine.exits[SPEC.key].code == "agent_error"


def test_what_a_dead_main_process_left_behind_is_killed_first():
    """AGT-06: the exit is told only when no process is left."""
    left = ev.Found(SPEC.key, (4800,), Process(4800, 120), 3.0)
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (ev.Stored(stored()),), (left,)))
    assert of(rig.log, ev.Watch) == [ev.Watch(SPEC, None)]
    assert of(rig.log, ev.Signal)[0].signal == "KILL"
    assert rig.machine.exits == {}
    rig.feed(ev.Gone(SPEC.key))
    assert rig.machine.exits[SPEC.key].code == "exited"


def test_nothing_is_adopted_across_a_reboot():
    """AGT-07: the boot id decides, whatever runs under the old pid now."""
    rig = Rig(booted=ev.Booted("boot-2", AgentState(), (ev.Stored(stored(), alive=True),)))
    assert rig.machine.shards == {}
    assert rig.machine.exits[SPEC.key].message == "the node was restarted"


def test_an_interrupted_stop_goes_on():
    """AGT-06: a stop that was accepted is finished after an agent restart."""
    rig = Rig()
    rig.run(SPEC)
    rig.command(stop(SPEC, grace=6))
    record = rig.disk[SPEC.key]
    again = Rig(booted=ev.Booted("boot-1", rig.state, (ev.Stored(record, alive=True),)))
    assert of(again.log, ev.Signal)[0].signal == "TERM"
    assert exit_of(again.feed(ev.Gone(SPEC.key))).code == "stopped"


def test_unidentified_engines_are_killed():
    """AGT-07: an engine without a record holds devices nobody accounts for."""
    stray = ev.Found(make_spec("stray-1").key, (4900,), None)
    rig = Rig(booted=ev.Booted("boot-1", AgentState(), (), (stray,)))
    assert of(rig.log, ev.KillUnidentified) == [ev.KillUnidentified(stray.key, (4900,))]


def test_a_new_inventory_is_registered_only_if_it_differs():
    """AGT-01: inventory refreshed when engines or devices change."""
    rig = Rig()
    assert rig.feed(ev.InventoryRead(INVENTORY)) == []
    changed = msgspec.structs.replace(INVENTORY, notes=("driver failing",))
    (register,) = reports(rig.feed(ev.InventoryRead(changed)), Register)
    assert register.inventory == changed


def test_old_measurements_are_left_out():
    """AGT-02: a measurement older than a minute is not repeated."""
    rig = Rig()
    rig.feed(ev.Measured(Measurements(load1=1.0)))
    assert rig.machine.measurements(rig.now + 60).load1 == 1.0
    assert rig.machine.measurements(rig.now + 61) == Measurements()


def test_registration_has_no_secret():
    """SEC-03: keys do not travel up."""
    rig = Rig()
    rig.run(SPEC)
    (status,) = rig.machine.registration(rig.now).shards
    assert (status.spec.engine_key, status.spec.keyed) == ("", True)


SPECS = [make_spec(f"m-{index}", port=20000 + index % 2) for index in range(3)]
KEYS = [spec.key for spec in SPECS]
EVENTS = st.one_of(
    st.builds(ev.Commanded, st.builds(start, st.sampled_from(SPECS), st.integers(1, 3))),
    st.builds(ev.Commanded, st.builds(stop, st.sampled_from(SPECS), st.integers(1, 3), grace=st.floats(0, 20))),
    st.builds(ev.Commanded, st.builds(lambda k: Forget(shards=(k,)), st.sampled_from(KEYS))),
    st.builds(ev.Validated, st.sampled_from(KEYS)),
    st.builds(ev.Validated, st.sampled_from(KEYS), st.just((ev.SpecFault("weights_missing", "x"),))),
    st.builds(ev.Launched, st.sampled_from(KEYS), st.builds(Process, st.integers(2, 9), st.integers(1, 9))),
    st.builds(ev.LaunchFailed, st.sampled_from(KEYS), st.just("launch_failed"), st.just("x")),
    st.builds(ev.Probed, st.sampled_from(KEYS), st.booleans()),
    st.builds(ev.Exited, st.sampled_from(KEYS), st.just(1)),
    st.builds(ev.Gone, st.sampled_from(KEYS), st.just(1)),
    st.just(ev.Woke()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 15)), max_size=40), st.booleans())
def test_invariants_whatever_happens(steps, auto):
    """AGT-04 to AGT-07: under any order of events: a live shard is on disk before it runs; epochs only
    rise; a stop is signalled or confirmed; each exit is told and kept; ports have one owner."""
    rig = Rig(auto=auto)
    highest = 0
    for event, pause in steps:
        rig.now += pause
        had = set(rig.machine.shards)
        effects = rig.feed(event)
        assert rig.machine.allegiance.epoch >= highest
        highest = rig.machine.allegiance.epoch
        assert rig.state.highest_epoch == highest
        for launch in of(effects, ev.Launch):
            assert launch.spec.key in rig.disk
        gone = had - set(rig.machine.shards)
        assert {m.exit.key for m in reports(effects, ShardExited) if m.exit.code != "not_found"} >= gone
        running = [shard for shard in rig.machine.shards.values() if shard.holds_process]
        assert len({shard.spec.port for shard in running}) == len(running)
        assert set(rig.machine.shards).isdisjoint(rig.machine.exits)
        for shard in running:
            if shard.ending is not None and shard.phase != "launching":
                assert shard.next_wake is not None
        assert set(rig.disk) == set(rig.machine.shards) | set(rig.machine.exits)


class TestFailedWrites:
    """AGT-04: what must be durable is written again when a write of it failed."""

    def test_epoch_and_command_ids(self):
        rig = Rig(auto=False)
        effects = rig.feed(ev.EpochSeen(7))
        (save,) = [e for e in effects if isinstance(e, ev.Save)]
        rig.feed(ev.Saved(save.sequence, "No space left on device"))
        rig.state = AgentState()
        assert rig.until(rig.now + 1.0) == []
        rig.until(rig.now + 60.0)
        assert rig.state.highest_epoch == 7
        (again,) = [e for e in rig.log if isinstance(e, ev.Save) and e.sequence > save.sequence]
        rig.feed(ev.Saved(again.sequence))
        assert rig.until(rig.now + 60.0) == []

    def test_removal_of_an_acknowledged_exit(self):
        """Otherwise the next agent tells it as new, and its record stays for ever."""
        rig = Rig()
        spec = make_spec()
        rig.run(spec)
        rig.feed(ev.Exited(spec.key, 1))
        rig.feed(ev.Gone(spec.key, 1))
        rig.auto = False
        effects = rig.feed(ev.Commanded(Forget(shards=(spec.key,))))
        (save,) = [e for e in effects if isinstance(e, ev.Save)]
        rig.feed(ev.Saved(save.sequence, "Read-only file system"))
        done = [effect.item for _, effect in rig.until(rig.now + 60.0) if isinstance(effect, ev.Save)]
        assert done == [ev.RemoveRecord(spec.key)]
