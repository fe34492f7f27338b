"""How fast replicas are placed, by planning alone: ``python bench/placement.py --nodes 2000``.

Two of every three devices of the fleet are given away, to 40 models of two kinds and beside one that cannot fit.
"""

import argparse
import random
import time
from collections.abc import Iterator

from controlplane.catalog.model import Catalog, Model, Profile, Scaling
from controlplane.planning.candidates import Candidates
from controlplane.planning.overlay import Overlay
from controlplane.planning.plan import Place, Plan
from controlplane.planning.policy import LoopSettings
from controlplane.planning.reconcile import plan
from controlplane.planning.view import FleetView, NodeView, ReplicaView, Settling, ShardView
from controlplane.planning.work import Measured
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.garbage import Garbage
from llmgw.sim.fleet_node import GIB, Node, Shape

MODELS = 40
DEVICES = 8


def fleet(nodes: int) -> FleetView:
    """Nodes in session, and models that want two thirds of their devices."""

    def profile(gpus: int) -> Profile:
        return Profile("p", "sim", "sim:", "f", gpu_class="h100-80g", gpus=gpus, memory_bytes=32 * GIB, cpu_cores=4.0)

    each = nodes * DEVICES * 2 // 3 // MODELS // 3
    models = {
        f"model-{number:02}": Model(f"model-{number:02}", (profile(2 + 2 * (number % 2)),), Scaling(each, each))
        for number in range(MODELS)
    }
    models["too-large"] = Model("too-large", (profile(2 * DEVICES),), Scaling(1, 1))
    view = FleetView(catalog=Catalog(models=models), settling=Settling(active=False))
    for number in range(nodes):
        node = Node(number, f"node-{number:04}", Shape(DEVICES), random.Random(number))
        view.nodes[node.name] = NodeView(
            id=node.name,
            status="connected",
            session="s",
            registered=True,
            inventory=node.inventory(),
            measurements=node.measure(0.0),
            last_heard=0.0,
        )
    return view


class Passes:
    """Passes over one view, as the loop makes them. ``longest`` is the longest slice."""

    def __init__(self, view: FleetView) -> None:
        self.view = view
        self.longest = 0.0
        self._rng = random.Random(1)
        self._candidates = Candidates()
        self._garbage = Garbage(SystemClock())  # as the control plane has it
        self._garbage.whole()

    def make(self) -> Plan:
        """One pass, carried out."""
        work = plan(
            self.view,
            Overlay(self.view, later=True),
            LoopSettings(),
            routers={},
            now=1.0,
            rng=self._rng,
            work=Measured(time.monotonic),
            candidates=self._candidates,
        )
        made = self._ended(work)
        for action in made.actions:
            if isinstance(action, Place):
                self._place(action)
        self.view.version += 1
        self._garbage.look()
        return made

    def _ended(self, work: Iterator[None]) -> Plan:
        while True:
            begin = time.process_time()
            try:
                next(work)
            except StopIteration as done:
                result: Plan = done.value
                return result
            finally:
                self.longest = max(self.longest, time.process_time() - begin)

    def _place(self, action: Place) -> None:
        shards = {0: ShardView(spec=action.shards[0].spec, node_id=action.shards[0].node_id, phase="ready")}
        self.view.replicas[action.replica] = ReplicaView(
            id=action.replica,
            model=action.model,
            profile=action.profile,
            fingerprint=action.fingerprint,
            state="ready",
            since=0.0,
            created=0.0,
            reason=action.reason,
            shards=shards,
            rejected=action.rejected,
        )


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[200, 2000, 5000])
    options = parser.parse_args()
    print(f"{'nodes':>6} {'placed':>7} {'placed/s':>9} {'longest slice ms':>17} {'pass without room ms':>21}")
    for nodes in options.nodes:
        passes = Passes(fleet(nodes))
        begin = time.process_time()
        while not passes.make().complete:
            pass
        took, placed = time.process_time() - begin, len(passes.view.replicas)
        begin = time.process_time()
        for _ in range(5):
            passes.make()
        again = (time.process_time() - begin) / 5
        print(f"{nodes:6} {placed:7} {placed / took:9.0f} {passes.longest * 1000:17.1f} {again * 1000:21.1f}")


if __name__ == "__main__":
    main()
