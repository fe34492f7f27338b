"""Messages of an agent session (AGT-01 to AGT-04).

One connection per node carries them as frames (see ``frames``). Up: hello, then
register with *everything*, then heartbeats and shard events. Down: welcome or
refuse, then commands. Durations are seconds as floats and never timestamps: two
hosts do not share a clock. Sizes are bytes. ``None`` means unknown.
"""

from typing import Literal, NamedTuple

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """A frame's content. The tag names the kind."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that messages are made of."""


class ShardKey(NamedTuple):
    """Identity of one shard: ``incarnation`` counts restarts in place."""

    replica_id: str
    rank: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.replica_id}/{self.rank}.{self.incarnation}"


# ---------------------------------------------------------------- inventory


class Cpu(Part, frozen=True):
    """Processor of a node. ``count`` is logical CPUs."""

    model: str | None = None
    count: int | None = None
    flags: tuple[str, ...] = ()


DeviceKind = Literal["gpu", "mig"]


class Device(Part, frozen=True):
    """A whole GPU or one MIG instance, keyed by UUID (PLC-01, PLC-08).

    ``excluded`` is the reason why the device must not be used (ECC fault, in MIG
    mode with nothing carved ...); such a device is neither used nor free (PLC-02).
    """

    uuid: str
    kind: DeviceKind = "gpu"
    index: int | None = None
    name: str = ""
    device_class: str = ""
    memory_bytes: int | None = None
    parent: str | None = None
    excluded: str | None = None


EngineState = Literal["ready", "failed", "probing", "installing"]


class EngineInstall(Part, frozen=True):
    """One engine on one node: ``ready`` only after it was seen to run (PLC-12)."""

    name: str
    state: EngineState
    version: str | None = None
    detail: str = ""


class PortRange(Part, frozen=True):
    """Ports ``first`` to ``last``, both included."""

    first: int
    last: int


class Filesystem(Part, frozen=True):
    """Space of one filesystem the node was told to watch (PLC-06)."""

    path: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    shared: bool = False


class Inventory(Part, frozen=True):
    """What a node has. ``address`` is where its engines can be reached."""

    address: str
    hostname: str = ""
    os: str = ""
    arch: str = ""
    kernel: str = ""
    boot_id: str = ""
    driver: str | None = None
    cpu: Cpu = Cpu()
    memory_bytes: int | None = None
    ephemeral_ports: PortRange | None = None
    engine_ports: PortRange | None = None
    devices: tuple[Device, ...] = ()
    engines: tuple[EngineInstall, ...] | None = None
    filesystems: tuple[Filesystem, ...] = ()
    labels: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    """Warnings in words, such as a failing driver or a CPU without AVX2."""


# ---------------------------------------------------------------- shards


class ShardSpec(Part, frozen=True):
    """All an agent needs to run one shard; written to the node's disk (AGT-07).

    ``engine_key`` is the secret clients must present to the engine (ENG-03); it goes
    down with a start and is blanked on the way up (``keyed`` says whether there is
    one). ``source`` is a weights source such as ``file:/srv/m.gguf``.
    ``served_name`` is the model name the engine answers to.
    """

    replica_id: str
    model: str
    profile: str
    fingerprint: str
    engine: str
    source: str
    host: str
    port: int
    served_name: str
    rank: int = 0
    world: int = 1
    incarnation: int = 1
    devices: tuple[str, ...] = ()
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    context: int | None = None
    slots: int | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    startup_timeout: float = 600.0
    engine_key: str = ""
    keyed: bool = False

    @property
    def key(self) -> ShardKey:
        """Identity of the shard."""
        return ShardKey(self.replica_id, self.rank, self.incarnation)

    def without_secret(self) -> "ShardSpec":
        """The same spec, fit to be reported, shown or logged."""
        return msgspec.structs.replace(self, engine_key="", keyed=self.keyed or bool(self.engine_key))

    def __repr__(self) -> str:
        return f"ShardSpec({self.key}, model={self.model!r}, engine={self.engine!r}, port={self.port})"


ShardState = Literal["starting", "ready", "stopping"]


class ShardStatus(Part, frozen=True):
    """A shard that is running, or on its way up or down, as its agent knows it."""

    spec: ShardSpec
    state: ShardState
    pid: int | None = None
    age: float | None = None
    state_age: float | None = None
    adopted: bool = False
    detail: str = ""


class ShardExit(Part, frozen=True):
    """A shard that is gone: every process of it, confirmed (AGT-06).

    ``code`` is one of ``errors.SHARD``; ``exit_status`` is the process's, negative for
    a signal; ``tail`` its last lines of output. ``requested`` is true if a stop asked
    for it. Kept by the agent until ``Forget`` acknowledges it, so that an exit
    during a lost connection still tells why.
    """

    replica_id: str
    code: str
    rank: int = 0
    incarnation: int = 1
    message: str = ""
    exit_status: int | None = None
    tail: tuple[str, ...] = ()
    requested: bool = False

    @property
    def key(self) -> ShardKey:
        """Identity of the shard."""
        return ShardKey(self.replica_id, self.rank, self.incarnation)


# ---------------------------------------------------------------- measurements


class DeviceUse(Part, frozen=True):
    """Measured use of one device. Power in watts, temperature in degrees Celsius."""

    uuid: str
    memory_used_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    foreign_processes: tuple[str, ...] = ()


class ShardUse(Part, frozen=True):
    """Measured use of one shard's whole process group."""

    replica_id: str
    rank: int = 0
    cpu_cores: float | None = None
    memory_bytes: int | None = None


class Measurements(Part, frozen=True):
    """What a node measured since the last heartbeat (AGT-02)."""

    cpu_percent: float | None = None
    load1: float | None = None
    memory_used_bytes: int | None = None
    memory_available_bytes: int | None = None
    devices: tuple[DeviceUse, ...] = ()
    shards: tuple[ShardUse, ...] = ()
    filesystems: tuple[Filesystem, ...] = ()


# ---------------------------------------------------------------- agent to control plane


class Hello(Message, frozen=True, tag="hello"):
    """First frame of a session. The credential travels in the upgrade request."""

    node_id: str
    version: str
    oldest_protocol: int
    newest_protocol: int
    capabilities: tuple[str, ...] = ()
    highest_epoch: int = 0
    last_command: str | None = None
    boot_id: str = ""


class Register(Message, frozen=True, tag="register"):
    """The whole truth about the node, also when it runs nothing (REC-20)."""

    inventory: Inventory
    shards: tuple[ShardStatus, ...] = ()
    exits: tuple[ShardExit, ...] = ()
    last_command: str | None = None


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent every ``Welcome.heartbeat_seconds``; answered by ``HeartbeatAck``."""

    sequence: int
    measurements: Measurements = Measurements()


class ShardChanged(Message, frozen=True, tag="shard_changed"):
    """A shard entered a state, or its detail changed."""

    status: ShardStatus


class ShardExited(Message, frozen=True, tag="shard_exited"):
    """A shard is gone, confirmed."""

    exit: ShardExit


CommandOutcome = Literal["accepted", "duplicate", "refused"]


class CommandResult(Message, frozen=True, tag="command_result"):
    """What the agent did with a command; a refusal has a code of ``errors.SHARD``."""

    command_id: str
    outcome: CommandOutcome
    code: str = ""
    message: str = ""


# ---------------------------------------------------------------- control plane to agent


class Welcome(Message, frozen=True, tag="welcome"):
    """The session stands. ``epoch`` goes with every command (AGT-04)."""

    session_id: str
    protocol: int
    version: str
    epoch: int
    heartbeat_seconds: float = 10.0
    silence_seconds: float = 30.0
    capabilities: tuple[str, ...] = ()


class Refuse(Message, frozen=True, tag="refuse"):
    """The session ends. ``code`` is one of ``errors.SESSION``.

    ``leader`` is the address to try instead (``not_leader``); ``retry_seconds`` the
    least time to wait.
    """

    code: str
    message: str
    leader: str | None = None
    retry_seconds: float | None = None


class HeartbeatAck(Message, frozen=True, tag="heartbeat_ack"):
    """Answer to the heartbeat of that sequence number."""

    sequence: int


class Start(Message, frozen=True, tag="start"):
    """Run this shard. Repeating it changes nothing (same id, or same shard key)."""

    command_id: str
    epoch: int
    spec: ShardSpec


class Stop(Message, frozen=True, tag="stop"):
    """End a shard. Idempotent; for an unknown shard the agent answers with an exit
    of code ``not_found``. ``grace_seconds`` is the time between SIGTERM and SIGKILL."""

    command_id: str
    epoch: int
    replica_id: str
    reason: str
    rank: int = 0
    incarnation: int = 1
    grace_seconds: float = 10.0

    @property
    def key(self) -> ShardKey:
        """Identity of the shard."""
        return ShardKey(self.replica_id, self.rank, self.incarnation)


class Forget(Message, frozen=True, tag="forget"):
    """The exits of these shards were recorded; the agent may drop them."""

    shards: tuple[ShardKey, ...]


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The control plane is going away. Reconnect within ``spread_seconds``, at a
    moment drawn by each agent, so that a fleet does not return in one instant."""

    reason: str
    spread_seconds: float = 5.0


Up = Hello | Register | Heartbeat | ShardChanged | ShardExited | CommandResult
Down = Welcome | Refuse | HeartbeatAck | Start | Stop | Forget | Goodbye


class Unknown(msgspec.Struct, frozen=True):
    """A message of a kind this build does not know: ignored, and counted."""

    kind: str
