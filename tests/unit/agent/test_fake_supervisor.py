"""The in-memory supervisor, held by the conformance suite."""

import pytest

from agent.engines.base import Command
from tests.fakes.supervisor import FakeSupervisor, World, reused
from tests.unit.agent.supervision_conformance import SupervisionConformance


class Harness:
    def __init__(self):
        self.world = World()

    def supervisor(self, state="main"):
        return FakeSupervisor(self.world, f"/{state}")

    def command(self, program):
        return Command(("program", program.to_json()))

    def bad_command(self):
        return Command(("/does/not/exist",))

    def until(self, predicate):
        assert predicate()

    def die(self, process):
        self.world.processes[process.pid].end(-9)


@pytest.fixture
def harness():
    return Harness()


class TestFakeSupervisor(SupervisionConformance):
    def test_reused_pid(self, harness):
        """AGT-07: the world can hand a pid to a stranger."""
        supervisor = harness.supervisor()
        process = supervisor.launch(("k", 0, 1), (Command(("program", '{"lines": [], "exits": 0}')),))
        reused(harness.world, process)
        assert not supervisor.is_alive(process)
