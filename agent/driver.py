"""Carries out what the agent's pure machine wants (gevent).

One inbox, one greenlet that feeds the machine; everything that takes time runs in
greenlets of its own or in a native thread and answers with an event. Nothing is
decided here.
"""

import random
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event as Flag
from gevent.queue import Empty, Queue

from agent import core, credentials, events, session
from agent.connection import Connection
from agent.engines import ADAPTERS
from agent.engines.base import LaunchPlan, NodeFacts
from agent.hardware import Devices, choose_readers
from agent.identity import NodeIdentity
from agent.readiness import ask
from agent.settings import Config
from agent.statedir import StateDir
from agent.supervise import proc
from agent.supervise.base import LaunchError, Supervisor
from agent.supervise.output import OutputFiles
from agent.supervise.process_group import ProcessGroups
from agent.validate import port_faults, source_faults, spec_faults
from agent.watch import NodeWatch, offload, signal_shard, watch_shard
from llmgw.identity.holder import Holder
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.wire.messages import ShardKey, ShardSpec

log = Logger("agent")

MEASURE_EVERY = 10.0
"""Seconds between measurements unless the control plane asks for another heartbeat."""

TRIM_EVERY = 1.0
"""Seconds between looks at the size of output files: what an engine that floods can write
in that time lies on the disk beyond the bound."""

SEARCH_SECONDS = 3.0
"""How long to listen for control planes that announce themselves."""

STOP_WAIT = 3.0
"""Seconds that a stopping agent gives its last writes and launches."""


class Driver:
    """See the module. ``run`` returns when ``stopping`` is set."""

    def __init__(self, config: Config, version: str, holder: Holder, clock: Clock, state: StateDir) -> None:
        self._config = config
        self._clock = clock
        self._state = state
        self._boot_id = proc.boot_id()
        self._agent = core.Agent(
            config.node_id, version, config.control_planes, random.SystemRandom(), searches=config.searches
        )
        self._inbox: Queue[core.Event] = Queue()
        self._identity = NodeIdentity(holder, clock, self._inbox.put)
        self._saves: Queue[events.Save] = Queue()
        self._supervisor: Supervisor = ProcessGroups(
            config.node_id, state.directory, OutputFiles(state.directory / "logs")
        )
        readers = choose_readers(config.gpu, config.nvidia_smi)
        devices = Devices(readers, offload, wanted=config.gpu in ("nvml", "nvidia-smi"))
        self._node = NodeWatch(
            config,
            boot_id=self._boot_id,
            supervisor=self._supervisor,
            devices=devices,
            shards=self._shards,
            post=self._inbox.put,
        )
        self._connection: Connection | None = None
        self._launching = 0
        self._unsaved = 0
        self._failure: BaseException | None = None

    # ------------------------------------------------------------ life

    def run(self, stopping: Flag) -> None:
        """Adopt what runs, then serve until told to stop. Engines are left running."""
        self._handle(self._look_around())
        self._essential(self._save_forever)
        self._node.start()
        for forever in (
            self._identity.watch,
            self._measure_forever,
            self._trim_forever,
            self._node.watch_engines,
            self._node.watch_devices,
        ):
            self._essential(forever)
        waiter = gevent.spawn(stopping.wait)
        waiter.link(lambda _: self._inbox.put(session.ShutDown()))
        while not stopping.is_set():
            if self._failure is not None:
                raise RuntimeError("a part of the agent failed") from self._failure
            self._handle(self._next_event())
        self._stop()

    def _essential(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run what the agent cannot do without. If it fails the agent ends: engines live
        on and are adopted by the next one, which is better than an agent that is half dead."""
        greenlet = gevent.spawn(function, *arguments)
        greenlet.link_exception(self._failed)

    def _failed(self, greenlet: gevent.Greenlet) -> None:
        self._failure = greenlet.exception
        self._inbox.put(events.Woke())

    def _stop(self) -> None:
        """Leave in order: launches under way are written down, the session ends (AGT-09)."""
        self._handle(session.ShutDown())
        deadline = self._clock.monotonic() + STOP_WAIT
        while self._clock.monotonic() < deadline and (self._launching or self._unsaved or not self._inbox.empty()):
            try:
                self._handle(self._inbox.get(timeout=0.05))
            except Empty:
                continue
        if self._connection is not None:
            self._connection.wait(1.0)
        log.info("stopped; engines are left running", shards=len(self._agent.machine.shards))

    def _look_around(self) -> events.Booted:
        """What the disk and the process table hold."""
        state, records = self._state.load()
        found = self._supervisor.scan()
        stored = []
        for record in records:
            key, process = record.spec.key, record.process
            alive = record.boot_id == self._boot_id and process is not None and self._supervisor.is_alive(process)
            age = self._supervisor.age(process) if alive and process is not None else None
            tail = () if alive or record.exit is not None else self._supervisor.tail(key)
            stored.append(events.Stored(record, alive, age, tail))
        return events.Booted(self._boot_id, state, tuple(stored), found)

    def _next_event(self) -> core.Event:
        wake = self._agent.next_wake
        timeout = None if wake is None else max(0.0, wake - self._clock.monotonic())
        try:
            event: core.Event = self._inbox.get(timeout=timeout)
        except Empty:
            return events.Woke()
        return event

    def _handle(self, event: core.Event) -> None:
        for effect in self._agent.handle(event, self._clock.monotonic()):
            self._carry_out(effect)

    def _shards(self) -> list[ShardKey]:
        """Shards that may have processes."""
        return [key for key, shard in self._agent.machine.shards.items() if shard.holds_process]

    # ------------------------------------------------------------ effects

    def _carry_out(self, effect: core.Effect) -> None:
        match effect:
            case events.Save():
                self._unsaved += 1
                self._saves.put(effect)
            case events.Validate(spec):
                self._essential(self._validate, spec)
            case events.Launch(spec):
                self._essential(self._launch, spec)
            case events.Watch(spec, process):
                self._supervisor.adopt(spec.key, process)
                self._essential(watch_shard, self._supervisor, spec, self._inbox.put)
            case events.Probe(spec):
                self._essential(self._probe, spec)
            case events.Signal(key, signal):
                self._essential(signal_shard, self._supervisor, key, signal, self._inbox.put)
            case events.KillUnidentified(key):
                self._essential(self._kill_unidentified, key)
            case session.Search():
                self._essential(self._search)
            case session.Connect(attempt, address):
                self._connection = Connection(attempt, address, self._config.node_id, self._identity, self._inbox.put)
            case session.Send(_, message):
                if self._connection is not None:
                    self._connection.send(message)
            case session.Disconnect(_, reason):
                if self._connection is not None:
                    self._connection.close(reason)
            case credentials.MakeRequest():
                self._essential(self._identity.make_request)
            case credentials.Install():
                self._essential(self._identity.install, effect)
            case events.Notice(level, message, fields):
                getattr(log, level)(message, **fields)

    def _search(self) -> None:
        from llmgw.runtime import mdns  # noqa: PLC0415 - only for those who search

        found: tuple[mdns.Found, ...] = ()
        try:
            found = mdns.discover(SEARCH_SECONDS)
        except mdns.MdnsError as error:
            log.warning("control planes cannot be looked for in the network", why=error)
        addresses = tuple(address for one in found for address in one.addresses)
        log.info("looked for control planes in the network", found=", ".join(map(str, addresses)) or "none")
        self._inbox.put(session.Found(addresses))

    def _validate(self, spec: ShardSpec) -> None:
        adapter = ADAPTERS.get(spec.engine)
        faults = spec_faults(spec, adapter, self._node.state())
        if adapter is not None:
            faults += offload(source_faults, spec, adapter)
        faults += port_faults(spec)
        self._inbox.put(events.Validated(spec.key, tuple(faults)))

    def _plan(self, spec: ShardSpec) -> LaunchPlan:
        install = self._node.installs()[spec.engine]
        return ADAPTERS[spec.engine].plan(spec, install, NodeFacts(cpu_count=self._node.cpu_count))

    def _launch(self, spec: ShardSpec) -> None:
        plan = self._plan(spec)
        self._launching += 1
        try:
            process = self._supervisor.launch(spec.key, plan.commands)
        except LaunchError as error:
            self._inbox.put(events.LaunchFailed(spec.key, "launch_failed", str(error)))
            return
        finally:
            self._launching -= 1
        self._inbox.put(events.Launched(spec.key, process, probed=plan.probe is not None))
        self._essential(watch_shard, self._supervisor, spec, self._inbox.put)

    def _probe(self, spec: ShardSpec) -> None:
        if spec.engine not in self._node.installs():
            # Adopted, of an engine that has left the settings: judged by staying alive.
            self._inbox.put(events.Probed(spec.key, True))
            return
        probe = self._plan(spec).probe
        who = "ours" if probe is None else offload(self._who_listens, spec)
        if who == "nobody":
            ready, detail = False, "not listening yet"
        elif who == "stranger":
            # Whoever took the port while the engine loads must get neither its key nor its prompts.
            ready, detail = False, f"port {spec.port} is held by a process that is not of this shard"
        else:
            ready, detail = (True, "") if probe is None else ask(probe)
        self._inbox.put(events.Probed(spec.key, ready, detail))

    def _who_listens(self, spec: ShardSpec) -> proc.Listener:
        """Who listens on a shard's port. Mostly its main process: only if it is another one
        must the whole process table be read."""
        shard = self._agent.machine.shards.get(spec.key)
        main = shard.process if shard is not None else None
        who = "stranger" if main is None else proc.who_listens((main.pid,), spec.port)
        return proc.who_listens(self._supervisor.members(spec.key), spec.port) if who == "stranger" else who

    def _kill_unidentified(self, key: ShardKey) -> None:
        for _ in range(50):
            if not offload(self._supervisor.signal, key, "KILL"):
                return
            gevent.sleep(0.2)
        log.error("an unidentified engine survives SIGKILL", shard=str(key))

    # ------------------------------------------------------------ for ever

    def _save_forever(self) -> None:
        while True:
            save = self._saves.get()
            error = ""
            try:
                offload(self._state.save, save.item)
            except OSError as failure:
                error = failure.strerror or str(failure)
            self._unsaved -= 1
            self._inbox.put(events.Saved(save.sequence, error))

    def _measure_forever(self) -> None:
        """At the pace of the heartbeats, at most once a second; without a session rarely,
        but ready to begin with the next one."""
        last = -MEASURE_EVERY
        while True:
            welcome = self._agent.session.welcome
            pace = MEASURE_EVERY if welcome is None else min(MEASURE_EVERY, max(1.0, welcome.heartbeat_seconds))
            if self._clock.monotonic() - last >= pace:
                self._node.measure()
                last = self._clock.monotonic()
            gevent.sleep(min(1.0, pace / 2))

    def _trim_forever(self) -> None:
        while True:
            try:
                offload(self._supervisor.trim, list(self._agent.machine.shards))
            except OSError as error:
                log.warning("output files could not be bounded", error=error.strerror or str(error))
            gevent.sleep(TRIM_EVERY)
