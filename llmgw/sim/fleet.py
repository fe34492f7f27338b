"""A fleet of simulated agents on real connections, to see a control plane with many nodes.

``python -m llmgw.sim.fleet --control-plane 127.0.0.1:7001 --tokens FILE --nodes 2000``
holds one session per node: inventory, heartbeats with drawn measurements, and shards
that become ready without an engine. Nothing listens; no request can be served.
"""

from gevent import monkey

monkey.patch_all()

import random  # noqa: E402
import sys  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402

import click  # noqa: E402
import gevent  # noqa: E402
import yaml  # noqa: E402
from gevent import socket  # noqa: E402

from llmgw import __version__  # noqa: E402
from llmgw.runtime.settings import Address, parse_address  # noqa: E402
from llmgw.wire.frames import down_decoder, encode  # noqa: E402
from llmgw.wire.messages import (  # noqa: E402
    CommandResult,
    Cpu,
    Device,
    DeviceUse,
    EngineInstall,
    Heartbeat,
    Hello,
    Inventory,
    Measurements,
    Message,
    PortRange,
    Refuse,
    Register,
    ShardChanged,
    ShardExit,
    ShardExited,
    ShardKey,
    ShardStatus,
    Start,
    Stop,
    Welcome,
)

GIB = 1024**3
RACK = 16
"""Nodes of one rack."""

START_SECONDS = 0.5
RECONNECT = (0.5, 5.0)


@dataclass(frozen=True)
class Shape:
    """What every node has."""

    devices: int = 8
    device_class: str = "h100-80g"
    device_memory: int = 80 * GIB
    memory: int = 1024 * GIB
    cores: int = 128


@dataclass
class Node:
    """One simulated node. ``sessions`` counts those it had, ``why`` says what ended the last."""

    index: int
    name: str
    token: str
    shape: Shape
    rng: random.Random
    registered: bool = False
    sessions: int = 0
    why: str = ""
    shards: dict[ShardKey, ShardStatus] = field(default_factory=dict)

    def inventory(self) -> Inventory:
        """The node as it registers."""
        shape = self.shape
        return Inventory(
            address="127.0.0.1",
            hostname=self.name,
            os="simulated",
            arch="x86_64",
            boot_id=f"boot-{self.index}",
            driver="570.00" if shape.devices else None,
            cpu=Cpu(model="simulated", count=shape.cores),
            memory_bytes=shape.memory,
            engine_ports=PortRange(first=20000, last=20999),
            engines=tuple(EngineInstall(name=name, state="ready", version="1") for name in ("sim", "vllm", "llamacpp")),
            devices=tuple(
                Device(
                    uuid=f"GPU-{self.index:05}-{number}",
                    index=number,
                    name="Simulated GPU",
                    device_class=shape.device_class,
                    memory_bytes=shape.device_memory,
                )
                for number in range(shape.devices)
            ),
            labels={"llmgw.io/rack": f"r{self.index // RACK:03}", "llmgw.io/room": f"hall-{self.index // (RACK * 20)}"},
        )

    def measure(self) -> Measurements:
        """Drawn figures; busier where shards run."""
        busy = 0.7 if self.shards else 0.05
        used = {device for status in self.shards.values() for device in status.spec.devices}
        return Measurements(
            cpu_percent=round(100 * busy * self.rng.uniform(0.8, 1.2), 1),
            load1=round(self.shape.cores * busy * self.rng.uniform(0.8, 1.2), 2),
            memory_used_bytes=int(self.shape.memory * busy * self.rng.uniform(0.5, 1.0)),
            memory_available_bytes=int(self.shape.memory * (1 - busy) * self.rng.uniform(0.5, 1.0)),
            devices=tuple(
                DeviceUse(
                    uuid=device.uuid,
                    memory_used_bytes=int(device.memory_bytes * 0.9)
                    if device.uuid in used and device.memory_bytes
                    else GIB,
                    utilization_percent=round(self.rng.uniform(40, 100), 1) if device.uuid in used else 0.0,
                    temperature_celsius=round(self.rng.uniform(35, 75), 1),
                    power_watts=round(self.rng.uniform(80, 650), 1),
                )
                for device in self.inventory().devices
            ),
        )


class Session:
    """One connection of one node, until it ends."""

    def __init__(self, node: Node, address: Address) -> None:
        self.node = node
        self._sock = socket.create_connection((address.host, address.port), timeout=30)
        self._decoder = down_decoder()
        self._tasks: list[gevent.Greenlet[..., None]] = []

    def run(self) -> str:
        """Hold the session; why it ended, in words."""
        try:
            refused = self._upgrade()
            if refused:
                return refused
            return self._serve()
        finally:
            self.node.registered = False
            gevent.killall(self._tasks)
            self._sock.close()

    def _upgrade(self) -> str:
        head = (
            "GET /agent/v1/session HTTP/1.1\r\nHost: controlplane\r\nConnection: Upgrade\r\nUpgrade: llmgw-agent/1\r\n"
            f"Authorization: Bearer {self.node.token}\r\nLlmgw-Node: {self.node.name}\r\n\r\n"
        )
        self._sock.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            more = self._sock.recv(1)  # what follows the head belongs to the frames
            if not more:
                return "closed before it answered"
            answer += more
        line = answer.split(b"\r\n", 1)[0].decode("ascii", "replace")
        return "" if " 101 " in line else line

    def _serve(self) -> str:
        node = self.node
        self._send(Hello(node_id=node.name, version=__version__, oldest_protocol=1, newest_protocol=1))
        self._send(Register(inventory=node.inventory(), shards=tuple(node.shards.values())))
        while True:
            data = self._sock.recv(65536)
            if not data:
                return "closed by the control plane"
            for message in self._decoder.feed(data):
                match message:
                    case Welcome():
                        node.registered = True
                        node.sessions += 1
                        self._sock.settimeout(message.silence_seconds)
                        self._tasks.append(gevent.spawn(self._beat, message.heartbeat_seconds))
                    case Refuse():
                        return message.message
                    case Start():
                        self._tasks.append(gevent.spawn(self._start, message))
                    case Stop():
                        self._stop(message)

    def _beat(self, every: float) -> None:
        sequence = 0
        gevent.sleep(every * self.node.rng.random())
        while True:
            sequence += 1
            self._send(Heartbeat(sequence=sequence, measurements=self.node.measure()))
            gevent.sleep(every)

    def _start(self, start: Start) -> None:
        spec = start.spec.without_secret()
        self._send(CommandResult(command_id=start.command_id, outcome="accepted"))
        starting = ShardStatus(spec=spec, state="starting", pid=100_000 + self.node.index)
        self.node.shards[spec.key] = starting
        self._send(ShardChanged(status=starting))
        gevent.sleep(START_SECONDS * self.node.rng.uniform(0.5, 2))
        if spec.key in self.node.shards:
            ready = ShardStatus(spec=spec, state="ready", pid=100_000 + self.node.index)
            self.node.shards[spec.key] = ready
            self._send(ShardChanged(status=ready))

    def _stop(self, stop: Stop) -> None:
        known = self.node.shards.pop(stop.key, None)
        self._send(CommandResult(command_id=stop.command_id, outcome="accepted"))
        self._send(
            ShardExited(
                exit=ShardExit(
                    replica_id=stop.replica_id,
                    rank=stop.rank,
                    incarnation=stop.incarnation,
                    code="stopped" if known else "not_found",
                    model=known.spec.model if known else "",
                    requested=True,
                )
            )
        )

    def _send(self, message: Message) -> None:
        self._sock.sendall(encode(message))


class SimFleet:
    """All nodes, each reconnecting by itself."""

    def __init__(self, address: Address, tokens: dict[str, str], shape: Shape, seed: int = 0) -> None:
        self._address = address
        self.nodes = [
            Node(index, name, token, shape, random.Random(f"{seed}-{name}"))  # noqa: S311 - a simulation
            for index, (name, token) in enumerate(tokens.items())
        ]
        self._greenlets: list[gevent.Greenlet[..., None]] = []

    @property
    def registered(self) -> int:
        """Nodes in session now."""
        return sum(node.registered for node in self.nodes)

    def start(self) -> "SimFleet":
        """Connect all at once, as after a restart."""
        self._greenlets = [gevent.spawn(self._hold, node) for node in self.nodes]
        return self

    def lose(self, count: int) -> None:
        """The first ``count`` nodes vanish, as by a cut of power."""
        gevent.killall(self._greenlets[:count])

    def stop(self) -> None:
        """Drop every connection."""
        gevent.killall(self._greenlets)

    def _hold(self, node: Node) -> None:
        while True:
            try:
                node.why = Session(node, self._address).run()
            except OSError as error:
                node.why = str(error)
            gevent.sleep(node.rng.uniform(*RECONNECT))


@click.command()
@click.option("--control-plane", required=True, metavar="HOST:PORT", help="Its agents.listen.")
@click.option("--tokens", required=True, type=click.Path(path_type=Path, exists=True), help="Its fleet_tokens file.")
@click.option("--nodes", type=click.IntRange(1), help="How many of the file's nodes. Default: all.")
@click.option("--devices", default=8, show_default=True, help="GPUs of each node.")
@click.option("--seed", default=0, show_default=True, help="For the drawn measurements.")
def main(control_plane: str, tokens: Path, nodes: int | None, devices: int, seed: int) -> None:
    """Hold the sessions of many simulated nodes until Ctrl-C.

    Example: python -m llmgw.sim.fleet --control-plane 127.0.0.1:7001 --tokens fleet-tokens.yaml
    """
    enrolled = dict(list(yaml.safe_load(tokens.read_text())["nodes"].items())[:nodes])
    fleet = SimFleet(parse_address(control_plane), enrolled, Shape(devices=devices), seed).start()
    try:
        while True:
            gevent.sleep(1)
            reasons = {node.why for node in fleet.nodes if node.why and not node.registered}
            sys.stderr.write(f"\r{fleet.registered} of {len(fleet.nodes)} in session {'; '.join(sorted(reasons)[:3])} ")
    except KeyboardInterrupt:
        fleet.stop()


if __name__ == "__main__":
    main()
