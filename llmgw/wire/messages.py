"""Messages of an agent session (AGT-01 to AGT-04).

One connection per node carries them as frames (see ``frames``). Up: hello, then
register with *everything*, then heartbeats and shard events. Down: welcome or
refuse, then commands. Durations are seconds as floats and never timestamps: two
hosts do not share a clock. Sizes are bytes. ``None`` means unknown.
"""

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

# What a peer may send at most. Decoding holds to it, so that one peer's lie, or its
# fault, costs it its session and reaches neither tables nor answers. Each is well above
# what this code sends; not-a-number is outside every range.

Name = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=8192)]
ReplicaId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Finite = Annotated[float, Meta(ge=-1e15, le=1e15)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Words = Annotated[tuple[Text, ...], Meta(max_length=4096)]
Table = Annotated[dict[Name, Text], Meta(max_length=256)]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """A frame's content. The tag names the kind."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
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

    model: Text | None = None
    count: Count | None = None
    flags: Words = ()


DeviceKind = Literal["gpu", "mig"]


class Device(Part, frozen=True):
    """A whole GPU or one MIG instance, keyed by UUID (PLC-01, PLC-08).

    ``excluded`` is the reason why the device must not be used (ECC fault, in MIG
    mode with nothing carved ...); such a device is neither used nor free (PLC-02).
    """

    uuid: Name
    kind: DeviceKind = "gpu"
    index: Count | None = None
    name: Name = ""
    device_class: Name = ""
    memory_bytes: Bytes | None = None
    parent: Name | None = None
    excluded: Text | None = None


EngineState = Literal["ready", "failed", "probing", "installing"]


class EngineInstall(Part, frozen=True):
    """One engine on one node: ``ready`` only after it was seen to run (PLC-12)."""

    name: Name
    state: EngineState
    version: Name | None = None
    detail: Text = ""


class PortRange(Part, frozen=True):
    """Ports ``first`` to ``last``, both included."""

    first: Port
    last: Port


class Filesystem(Part, frozen=True):
    """Space of one filesystem the node was told to watch (PLC-06)."""

    path: Text
    total_bytes: Bytes | None = None
    free_bytes: Bytes | None = None
    shared: bool = False


class Inventory(Part, frozen=True):
    """What a node has. ``address`` is where its engines can be reached."""

    address: Name
    hostname: Name = ""
    os: Name = ""
    arch: Name = ""
    kernel: Name = ""
    boot_id: Name = ""
    driver: Name | None = None
    cpu: Cpu = Cpu()
    memory_bytes: Bytes | None = None
    ephemeral_ports: PortRange | None = None
    engine_ports: PortRange | None = None
    devices: Annotated[tuple[Device, ...], Meta(max_length=1024)] = ()
    engines: Annotated[tuple[EngineInstall, ...], Meta(max_length=256)] | None = None
    filesystems: Annotated[tuple[Filesystem, ...], Meta(max_length=1024)] = ()
    labels: Table = {}
    notes: Words = ()
    """Warnings in words, such as a failing driver or a CPU without AVX2."""


# ---------------------------------------------------------------- shards


class ShardSpec(Part, frozen=True):
    """All an agent needs to run one shard; written to the node's disk (AGT-07).

    ``engine_key`` is the secret clients must present to the engine (ENG-03); it goes
    down with a start and is blanked on the way up (``keyed`` says whether there is
    one, ``key_generation`` of which secret it is, SEC-08). ``source`` is a weights source such as ``file:/srv/m.gguf``.
    ``served_name`` is the model name the engine answers to. What of it makes no sense is
    for the agent to refuse in words, not for the decoder.
    """

    replica_id: ReplicaId
    model: Name
    profile: Name
    fingerprint: Name
    engine: Name
    source: Text
    host: Name
    port: Count
    served_name: Name
    rank: Count = 0
    world: Count = 1
    incarnation: Count = 1
    devices: Words = ()
    cpu_cores: Finite | None = None
    memory_bytes: Bytes | None = None
    context: Whole | None = None
    slots: Whole | None = None
    args: Words = ()
    env: Table = {}
    startup_timeout: Finite = 600.0
    engine_key: Name = ""
    keyed: bool = False
    key_generation: Name = ""

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
    pid: Positive | None = None
    age: Amount | None = None
    state_age: Amount | None = None
    adopted: bool = False
    detail: Text = ""


class ShardExit(Part, frozen=True):
    """A shard that is gone: every process of it, confirmed (AGT-06).

    ``code`` is one of ``errors.SHARD``; ``exit_status`` is the process's, negative for
    a signal; ``tail`` its last lines of output. ``requested`` is true if a stop asked
    for it. Kept by the agent until ``Forget`` acknowledges it, so that an exit
    during a lost connection still tells why. ``model`` is told for a control plane that
    never knew the replica; empty = unknown.
    """

    replica_id: ReplicaId
    code: Name
    model: Name = ""
    rank: Count = 0
    incarnation: Count = 1
    message: Text = ""
    exit_status: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    tail: Words = ()
    requested: bool = False

    @property
    def key(self) -> ShardKey:
        """Identity of the shard."""
        return ShardKey(self.replica_id, self.rank, self.incarnation)


# ---------------------------------------------------------------- measurements


class DeviceUse(Part, frozen=True):
    """Measured use of one device. Power in watts, temperature in degrees Celsius."""

    uuid: Name
    memory_used_bytes: Bytes | None = None
    utilization_percent: Amount | None = None
    temperature_celsius: Finite | None = None
    power_watts: Amount | None = None
    foreign_processes: Words = ()


class ShardUse(Part, frozen=True):
    """Measured use of one shard's whole process group."""

    replica_id: ReplicaId
    rank: Count = 0
    cpu_cores: Amount | None = None
    memory_bytes: Bytes | None = None


class Measurements(Part, frozen=True):
    """What a node measured since the last heartbeat (AGT-02)."""

    cpu_percent: Amount | None = None
    load1: Amount | None = None
    memory_used_bytes: Bytes | None = None
    memory_available_bytes: Bytes | None = None
    devices: Annotated[tuple[DeviceUse, ...], Meta(max_length=1024)] = ()
    shards: Annotated[tuple[ShardUse, ...], Meta(max_length=1024)] = ()
    filesystems: Annotated[tuple[Filesystem, ...], Meta(max_length=1024)] = ()


# ---------------------------------------------------------------- agent to control plane


class Hello(Message, frozen=True, tag="hello"):
    """First frame of a session. Who the node is its certificate has told (SEC-01).
    ``authorities`` is the SHA-256, in hex, of the bundle of authorities it trusts."""

    node_id: Name
    version: Name
    oldest_protocol: Count
    newest_protocol: Count
    capabilities: Words = ()
    highest_epoch: Bytes = 0
    leader: Name = ""
    """Whose ``highest_epoch`` was: ``Welcome.leader`` of that time, empty = unknown."""
    last_command: Name | None = None
    boot_id: Name = ""
    authorities: Name = ""


class Register(Message, frozen=True, tag="register"):
    """The whole truth about the node, also when it runs nothing (REC-20)."""

    inventory: Inventory
    shards: Annotated[tuple[ShardStatus, ...], Meta(max_length=256)] = ()
    exits: Annotated[tuple[ShardExit, ...], Meta(max_length=256)] = ()
    last_command: Name | None = None


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent every ``Welcome.heartbeat_seconds``; answered by ``HeartbeatAck``."""

    sequence: Positive
    measurements: Measurements = Measurements()


class ShardChanged(Message, frozen=True, tag="shard_changed"):
    """A shard entered a state, or its detail changed."""

    status: ShardStatus


class ShardExited(Message, frozen=True, tag="shard_exited"):
    """A shard is gone, confirmed."""

    exit: ShardExit


class Renew(Message, frozen=True, tag="renew"):
    """Ask for a new certificate of the same identity (SEC-01); ``request`` is a PEM CSR
    with a new key. Answered by ``Credential``."""

    request: Text


CommandOutcome = Literal["accepted", "duplicate", "refused"]


class CommandResult(Message, frozen=True, tag="command_result"):
    """What the agent did with a command; a refusal has a code of ``errors.SHARD``."""

    command_id: Name
    outcome: CommandOutcome
    code: Name = ""
    message: Text = ""


# ---------------------------------------------------------------- control plane to agent


class Welcome(Message, frozen=True, tag="welcome"):
    """The session stands. ``epoch`` goes with every command (AGT-04); ``leader`` is the
    random id of the process whose epoch it is: an agent obeys neither a lower epoch than
    it has seen nor the same one of another leader."""

    session_id: str
    protocol: int
    version: str
    epoch: int
    heartbeat_seconds: float = 10.0
    silence_seconds: float = 30.0
    capabilities: tuple[str, ...] = ()
    leader: str = ""


class Refuse(Message, frozen=True, tag="refuse"):
    """The session ends. ``code`` is one of ``errors.SESSION``.

    ``retry_seconds`` is the least time to wait. With ``not_leader``: ``leader`` is the address
    to try instead, ``takeover_seconds`` after how many seconds who says so may lead itself at
    the earliest, if whoever leads is gone.
    """

    code: str
    message: str
    leader: str | None = None
    retry_seconds: float | None = None
    takeover_seconds: float | None = None


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


class Credential(Message, frozen=True, tag="credential"):
    """What a node shows from now on, and whom it trusts (SEC-01, SEC-08).

    ``certificate`` is a PEM chain for the last ``Renew``, empty if there is none.
    ``authorities`` is a PEM bundle that replaces the node's, empty if it stays. ``renew``
    asks for a ``Renew`` now. ``fault`` says why a ``Renew`` was refused.
    """

    certificate: str = ""
    authorities: str = ""
    renew: bool = False
    fault: str = ""


Up = Hello | Register | Heartbeat | ShardChanged | ShardExited | CommandResult | Renew
Down = Welcome | Refuse | HeartbeatAck | Start | Stop | Forget | Goodbye | Credential


class Unknown(msgspec.Struct, frozen=True):
    """A message of a kind this build does not know: ignored, and counted."""

    kind: str
