"""A fleet in memory, and the services that read it."""

from types import SimpleNamespace
from typing import Any, cast

from controlplane.catalog.validate import parse_catalog
from controlplane.planning.view import FleetView, NodeView, ReplicaView, ShardView
from controlplane.publish.table import Publisher
from controlplane.services.fleet import Fleet
from controlplane.services.status import Identity, Problem, Status
from llmgw.runtime.clock import ManualClock
from llmgw.wire.messages import Cpu, Device, EngineInstall, Inventory, Measurements, ShardSpec

GIB = 1024**3


class Watched:
    """Change ``view``, then ask ``fleet`` and ``status``."""

    def __init__(self, models: dict[str, Any] | None = None, age: float = 60.0) -> None:
        self.clock = ManualClock()
        started = self.clock.monotonic()
        self.clock.advance(age)
        self.view = FleetView(catalog=parse_catalog({"catalog.yaml": {"models": models or {}}}))
        self.view.settling.active = False
        self.catalog = SimpleNamespace(refusal=None, left_out=())
        self.settings = SimpleNamespace(faults={})
        self.scopes: set[str] = set()
        self.store = SimpleNamespace(failing="", failing_for=None)
        self.journal = SimpleNamespace(failing="")
        self.more: list[Problem] = []
        self.refused: dict[tuple[str, str], tuple[float, str]] = {}
        self.fleet = Fleet(
            lambda: self.view,
            publisher=Publisher("boot"),
            inbox=cast(Any, None),
            store=cast(Any, None),
            changes=cast(Any, None),
            clock=self.clock,
        )
        self.status = Status(
            Identity("1", boot="b", started=started, epoch=lambda: 1),
            fleet=self.fleet,
            catalog=cast(Any, self.catalog),
            settings=cast(Any, self.settings),
            scopes=cast(Any, SimpleNamespace(known=lambda path: path in self.scopes)),
            store=cast(Any, self.store),
            clock=self.clock,
            routers=tuple,
            refused=lambda: self.refused,
            journal=cast(Any, self.journal),
            lead=lambda: {"name": "cp-1", "ha": False, "sure": True, "remaining_seconds": None, "failing": None},
            more=(lambda: self.more,),
        )

    def problems(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.status.read()["problems"]
        return found

    def about(self, kind: str) -> list[str]:
        """Problems of one kind, as people read them."""
        return [f"{row['subject']} {row['message']}" for row in self.problems() if row["kind"] == kind]

    def node(self, name: str, devices: int = 0, labels: dict[str, str] | None = None, **more: Any) -> NodeView:
        """A connected node with 64 cores, 512 GB and that many devices of one class."""
        inventory = Inventory(
            address="10.0.0.1",
            hostname=name,
            cpu=Cpu(model="test", count=64),
            memory_bytes=512 * GIB,
            devices=tuple(
                Device(uuid=f"{name}-{index}", index=index, device_class="h100-80g", memory_bytes=80 * GIB)
                for index in range(devices)
            ),
            engines=(EngineInstall(name="sim", state="ready", version="1"),),
            labels=labels or {},
        )
        now = self.clock.monotonic()
        node = NodeView(
            id=name,
            status="connected",
            registered=True,
            since=now,
            inventory=inventory,
            measurements=Measurements(cpu_percent=50, memory_used_bytes=GIB),
            measured_at=now,
        )
        for field, value in more.items():
            setattr(node, field, value)
        self.view.nodes[name] = node
        self.view.version += 1
        return node

    def replica(self, model: str, node: str, number: int = 1, **more: Any) -> ReplicaView:
        """A ready replica on a node."""
        name = f"{model}-{number}"
        spec = ShardSpec(
            replica_id=name,
            model=model,
            profile="p0",
            engine="sim",
            source="sim:",
            incarnation=1,
            host="10.0.0.1",
            port=20000,
            served_name=model,
            fingerprint="f",
            startup_timeout=60,
            devices=more.pop("devices", ()),
        )
        now = self.clock.monotonic()
        replica = ReplicaView(name, model, "p0", "f", state="ready", since=now, created=now, reason="")
        replica.shards[0] = ShardView(spec=spec, node_id=node, phase="ready")
        for field, value in more.items():
            setattr(replica, field, value)
        self.view.replicas[name] = replica
        self.view.version += 1
        return replica
