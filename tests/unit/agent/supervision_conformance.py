"""What every supervision backend must do (AGT-06, AGT-07).

A backend's test module subclasses ``SupervisionConformance`` and gives it a
``harness`` fixture with:

- ``supervisor(state="main")``: a new supervisor over the same host, as after an
  agent restart; ``state`` names the agent's state directory;
- ``command(program)``: a command that behaves as the ``Program`` says;
- ``bad_command()``: a command that cannot be started;
- ``until(predicate)``: waits until it holds, with a deadline, or fails;
- ``die(process)``: ends that process alone, as ``kill -9`` does.
"""

import pytest

from agent.records import Process
from agent.supervise.base import TAIL_LINES, LaunchError
from llmgw.wire.messages import ShardKey
from tests.fakes.supervisor import Program

KEY = ShardKey("tiny-0000000a", 0, 1)
OTHER = ShardKey("tiny-0000000b", 0, 1)


class SupervisionConformance:
    """See the module."""

    def run(self, harness, program, key=KEY, supervisor=None):
        supervisor = supervisor or harness.supervisor()
        process = supervisor.launch(key, (harness.command(program),))
        if program.exits is None:
            harness.until(lambda: "up" in supervisor.tail(key))
        return supervisor, process

    def gone(self, harness, supervisor, key=KEY):
        harness.until(lambda: not supervisor.status(key).alive and not supervisor.members(key))

    def test_launched_process_lives_and_is_a_member(self, harness):
        """AGT-06: what was launched can be seen."""
        supervisor, process = self.run(harness, Program(lines=("up",)))
        assert supervisor.status(KEY).alive
        assert supervisor.is_alive(process)
        assert process.pid in supervisor.members(KEY)
        assert supervisor.members_of([KEY, OTHER])[OTHER] == ()
        assert 0 <= supervisor.age(process) < 60
        assert supervisor.use(supervisor.members(KEY)).memory_bytes > 0

    def test_exit_status_is_known(self, harness):
        """AGT-06: the failure's exit status and output."""
        supervisor, process = self.run(harness, Program(lines=("one", "two"), exits=3))
        harness.until(lambda: not supervisor.status(KEY).alive)
        assert supervisor.status(KEY).exit_status == 3
        assert not supervisor.is_alive(process)
        harness.until(lambda: supervisor.members(KEY) == ())
        assert supervisor.tail(KEY) == ("one", "two")

    def test_term_ends_a_willing_process(self, harness):
        """AGT-06: SIGTERM is enough for most."""
        supervisor, process = self.run(harness, Program(lines=("up",)))
        assert process.pid in supervisor.signal(KEY, "TERM")
        self.gone(harness, supervisor)
        assert supervisor.status(KEY).exit_status == -15

    def test_second_term_reaches_an_engine_that_ignored_the_first(self, harness):
        """AGT-06: the two SIGTERMs of a stop are two signals."""
        supervisor, _ = self.run(harness, Program(lines=("up",), on_term="second"))
        supervisor.signal(KEY, "TERM")
        assert supervisor.status(KEY).alive
        harness.until(lambda: supervisor.signal(KEY, "TERM") == () or not supervisor.status(KEY).alive)
        self.gone(harness, supervisor)

    def test_kill_ends_a_process_that_ignores_term(self, harness):
        """AGT-06: nothing survives a stop."""
        supervisor, _ = self.run(harness, Program(lines=("up",), on_term="ignore"))
        supervisor.signal(KEY, "TERM")
        assert supervisor.status(KEY).alive
        supervisor.signal(KEY, "KILL")
        self.gone(harness, supervisor)
        assert supervisor.status(KEY).exit_status == -9

    @pytest.mark.parametrize("sidecar", ["child", "setsid"])
    def test_sidecars_die_with_the_shard(self, harness, sidecar):
        """AGT-06: also one that left the process group and ignores SIGTERM."""
        supervisor, _ = self.run(harness, Program(lines=("up",), sidecar=sidecar))
        harness.until(lambda: len(supervisor.members(KEY)) == 2)
        supervisor.signal(KEY, "TERM")
        harness.until(lambda: not supervisor.status(KEY).alive)
        assert len(supervisor.members(KEY)) == 1
        supervisor.signal(KEY, "KILL")
        self.gone(harness, supervisor)

    def test_shards_are_kept_apart(self, harness):
        """AGT-06: a signal reaches one shard only."""
        supervisor, _ = self.run(harness, Program(lines=("up",)))
        self.run(harness, Program(lines=("up",)), OTHER, supervisor)
        supervisor.signal(KEY, "KILL")
        self.gone(harness, supervisor)
        assert supervisor.status(OTHER).alive
        supervisor.signal(OTHER, "KILL")
        self.gone(harness, supervisor, OTHER)

    def test_a_launch_that_fails_leaves_nothing(self, harness):
        """AGT-05: the reason in words; sidecars that were started already are gone."""
        supervisor = harness.supervisor()
        sidecar = harness.command(Program(on_term="ignore"))
        with pytest.raises(LaunchError, match="No such file"):
            supervisor.launch(KEY, (sidecar, harness.bad_command()))
        harness.until(lambda: supervisor.scan() == ())

    def test_a_later_agent_finds_and_adopts(self, harness):
        """AGT-07: the engine lives on without its agent and is found by its markers."""
        _, process = self.run(harness, Program(lines=("up",), sidecar="setsid"))
        later = harness.supervisor()
        harness.until(lambda: len(later.scan()[0].pids) == 2)
        (found,) = later.scan()
        assert (found.key, found.main) == (KEY, process)
        assert later.is_alive(process)
        later.adopt(KEY, process)
        assert later.status(KEY).alive
        assert later.tail(KEY)[0] == "up"
        later.signal(KEY, "KILL")
        self.gone(harness, later)
        assert later.status(KEY).exit_status is None
        assert later.scan() == ()

    def test_leftovers_of_a_dead_main_process_are_found_and_killed(self, harness):
        """AGT-06: the shard is gone only when they are."""
        supervisor, process = self.run(harness, Program(lines=("up",), sidecar="setsid"))
        harness.until(lambda: len(supervisor.members(KEY)) == 2)
        harness.die(process)
        harness.until(lambda: not supervisor.status(KEY).alive)
        later = harness.supervisor()
        assert not later.is_alive(process)
        (found,) = later.scan()
        assert len(found.pids) == 1
        later.adopt(KEY, None)
        assert not later.status(KEY).alive
        later.signal(KEY, "KILL")
        harness.until(lambda: later.members(KEY) == ())

    def test_another_pid_or_start_time_is_another_process(self, harness):
        """AGT-07: a reused pid is not adopted."""
        supervisor, process = self.run(harness, Program(lines=("up",)))
        assert not supervisor.is_alive(Process(process.pid, process.started + 1))
        supervisor.signal(KEY, "KILL")
        self.gone(harness, supervisor)
        assert not supervisor.is_alive(process)

    def test_another_agents_engines_are_left_alone(self, harness):
        """AGT-07: only engines of this agent's own state directory."""
        supervisor, _ = self.run(harness, Program(lines=("up",)))
        stranger = harness.supervisor("other")
        assert stranger.scan() == ()
        assert stranger.signal(KEY, "KILL") == ()
        assert supervisor.status(KEY).alive
        supervisor.signal(KEY, "KILL")
        self.gone(harness, supervisor)

    def test_unidentified_engines_can_be_killed(self, harness):
        """AGT-07: without a record, by marker alone."""
        self.run(harness, Program(lines=("up",), on_term="ignore"))
        later = harness.supervisor()
        assert later.signal(KEY, "KILL") != ()
        harness.until(lambda: later.scan() == ())

    def test_tail_is_bounded(self, harness):
        """AGT-06: the last 200 lines."""
        lines = tuple(f"line {index}" for index in range(TAIL_LINES + 100))
        supervisor, _ = self.run(harness, Program(lines=lines, exits=1))
        harness.until(lambda: not supervisor.status(KEY).alive)
        assert supervisor.tail(KEY) == lines[-TAIL_LINES:]
        assert supervisor.tail(OTHER) == ()

    def test_release_and_start_again(self, harness):
        """REC-03: the next incarnation is a shard of its own."""
        supervisor, _ = self.run(harness, Program(exits=0))
        self.gone(harness, supervisor)
        supervisor.release(KEY)
        again = KEY._replace(incarnation=2)
        self.run(harness, Program(lines=("up",)), again, supervisor)
        supervisor.signal(again, "KILL")
        self.gone(harness, supervisor, again)
