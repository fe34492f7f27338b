"""What must be true once faults have stopped and time has passed.

``problems`` lists what is not as desired yet; a simulation ends well when the list
is empty and stays so.
"""

from collections.abc import Iterator

from controlplane import events
from controlplane.catalog.model import Model, Profile
from llmgw.sim.cluster import Cluster
from llmgw.sim.host import Host, Proc
from llmgw.wire.routing import RoutedModel


def problems(cluster: Cluster) -> list[str]:
    """Everything that keeps the fleet from its desired state."""
    return [
        *_processes(cluster),
        *_agents(cluster),
        *_leadership(cluster),
        *_control(cluster),
        *_models(cluster),
        *_routers(cluster),
    ]


def restless(cluster: Cluster) -> list[str]:
    """What repeated passes over the state reached would still do: it must be nothing."""
    leader, term = cluster.leader, cluster.term
    if leader is None or term is None:
        return ["nobody leads"]
    found = []
    for _ in range(3):
        work = term.loop.run_pass(leader.site.clock.monotonic())
        while True:
            try:
                next(work)
            except StopIteration as done:
                effects = done.value
                break
        found += [f"a repeated pass wants {effect}" for effect in effects if not isinstance(effect, events.Note)]
    return found


def _processes(cluster: Cluster) -> Iterator[str]:
    """Processes that nobody knows (orphans)."""
    for host in cluster.hosts.values():
        agent = cluster.agents[host.name]
        known = agent.agent.machine.shards if agent.alive else {}
        for proc in host.procs.values():
            if proc.key is None:
                continue
            shard = known.get(proc.key)
            if shard is None:
                yield f"{proc} on {host.name} is an orphan: its agent does not know it"
            elif proc.main and shard.process != proc.identity:
                yield f"{proc} on {host.name} is taken by its agent for {shard.process}"


def _agents(cluster: Cluster) -> Iterator[str]:
    for name, agent in cluster.agents.items():
        if not agent.alive:
            yield f"agent {name} is down"
        elif not agent.agent.session.live:
            yield f"agent {name} has no session: {agent.agent.session.phase}"
        elif agent.agent.machine.exits:
            yield f"agent {name} still holds exits: {[str(key) for key in agent.agent.machine.exits]}"
        if agent.records() != set(agent.agent.machine.shards):
            yield f"agent {name} has records {agent.records()} of shards {set(agent.agent.machine.shards)}"


def _leadership(cluster: Cluster) -> Iterator[str]:
    """One control plane leads, beyond doubt, and every node is in session with it."""
    for host, control in cluster.controls.items():
        if not control.alive:
            yield f"control plane {host} is down"
    sure = [control for control in cluster.controls.values() if control.sure]
    if len(sure) != 1:
        yield f"{len(sure)} control planes lead: {', '.join(control.name for control in sure) or 'none'}"
        return
    (leader,) = sure
    doubtful = [control.name for control in cluster.controls.values() if control.leading and not control.sure]
    if doubtful:
        yield f"{', '.join(doubtful)} lead in doubt"
    for name, agent in cluster.agents.items():
        welcome = agent.agent.session.welcome
        if welcome is not None and welcome.leader != leader.owner:
            yield f"node {name} is in session with {welcome.leader}; {leader.name} leads"
    for name, router in cluster.routers.items():
        if router.table is not None and router.table.leader != leader.owner:
            yield f"router {name} has a table of {router.table.leader}; {leader.name} leads"


def _control(cluster: Cluster) -> Iterator[str]:
    term = cluster.term
    if term is None:
        return
    view = term.loop.view
    if view.settling.active:
        yield f"settling: {view.settling.reason}"
    durable = cluster.durable
    for node in view.nodes.values():
        if node.status != "connected" or not node.registered:
            yield f"node {node.id} is {node.status}"
        if dict(node.labels) != cluster.labels(node.id):
            yield f"node {node.id} has labels {node.labels}, people and its agent say {cluster.labels(node.id)}"
        if node.cordon != durable.cordons.get(node.id):
            yield f"node {node.id} has cordon {node.cordon}, people want {durable.cordons.get(node.id)}"
    if view.holds != durable.holds or view.serving.stopped != durable.serving.stopped:
        yield f"holds {view.holds} and {view.serving}; people want {durable.holds} and {durable.serving}"
    if view.in_place:
        yield f"room is kept for {view.in_place}"
    for replica in view.replicas.values():
        if replica.state == "failed" and not any(shard.live for shard in replica.shards.values()):
            continue
        if replica.state != "ready" or replica.restarting is not None:
            yield f"replica {replica.id} is {replica.state}: {replica.reason}; restart {replica.restart}"
        for shard in replica.shards.values():
            main = _main(cluster.hosts[shard.node_id], shard.spec.replica_id)
            if main is None or main.pid != shard.pid:
                yield f"replica {replica.id} should run on {shard.node_id} as pid {shard.pid}; there is {main}"
    known = {shard.spec.key for replica in view.replicas.values() for shard in replica.shards.values()}
    for host in cluster.hosts.values():
        for proc in host.engines():
            if proc.key not in known:
                yield f"{proc} on {host.name} is an orphan: the control plane does not know it"


def _main(host: Host, replica: str) -> Proc | None:
    return next((proc for proc in host.engines() if proc.key is not None and proc.key.replica_id == replica), None)


def _models(cluster: Cluster) -> Iterator[str]:
    term = cluster.term
    models = cluster.durable.catalog.models
    running: dict[str, list[Proc]] = {}
    for host in cluster.hosts.values():
        for proc in host.engines():
            if proc.spec is not None:
                running.setdefault(proc.spec.model, []).append(proc)
    stopped = cluster.durable.serving.stopped
    for name, procs in running.items():
        _, most = _bounds(models.get(name), stopped)
        if len(procs) > most:
            yield f"model {name} has {len(procs)} engines and may have {most}"
        loading = [proc for proc in procs if proc.ready_since is None]
        if loading:
            yield f"model {name}: {loading[0]} is not ready"
    for name, model in models.items():
        least, _ = _bounds(model, stopped)
        ready = sum(proc.ready_since is not None for proc in running.get(name, ()))
        if ready >= least or term is None:
            continue
        health = term.loop.view.health.get(name)
        place = _room(cluster, model)
        if place is not None:
            words = health.refusal.message if health and health.refusal else "no refusal is told"
            parked = " (parked)" if health and health.parked else ""
            yield f"model {name} has {ready} of {least} ready; it would fit on {place}{parked}; {words}"
        elif health is None or health.refusal is None or not health.refusal.message:
            yield f"model {name} has {ready} of {least} ready, does not fit, and no refusal says why"
        elif not health.refusal.verdicts or not all(verdict.reasons for verdict in health.refusal.verdicts):
            yield f"the refusal of model {name} lacks reasons: {health.refusal}"


def _bounds(model: Model | None, stopped: bool) -> tuple[int, int]:
    """Least and most replicas: an always-on model has exactly its ``min``; none has any
    while serving is stopped."""
    if model is None or stopped or model.external is not None or model.scaling.mode == "off":
        return 0, 0
    if model.scaling.mode == "on-demand":
        return 0, model.scaling.max
    return model.scaling.min, model.scaling.min


def _room(cluster: Cluster, model: Model) -> str | None:
    """A node that has room for one more by its process table, counted anew here."""
    for profile in model.profiles:
        for name, host in cluster.hosts.items():
            labels = cluster.labels(name)
            allowed = all(labels.get(label) == value for label, value in profile.node_selector.items())
            if allowed and not cluster.held(name) and _fits(cluster, host, profile):
                return f"{name} with profile {profile.name}"
    return None


def _fits(cluster: Cluster, host: Host, profile: Profile) -> bool:
    specs = [proc.spec for proc in host.engines() if proc.spec is not None]
    memory = sum(spec.memory_bytes or 0 for spec in specs)
    cores = sum(spec.cpu_cores or 0.0 for spec in specs)
    held = {uuid for spec in specs for uuid in spec.devices}
    free = [uuid for uuid in host.devices if uuid not in held]
    span = cluster.plans[host.name].ports
    taken = {spec.port for spec in specs}
    return (
        memory + (profile.memory_bytes or 0) <= host.memory
        and cores + (profile.cpu_cores or 0.0) <= host.cores
        and len(free) >= profile.gpus
        and any(port not in taken for port in range(span.first, span.last + 1))
    )


def _routers(cluster: Cluster) -> Iterator[str]:
    ready = {
        proc.key.replica_id: proc
        for host in cluster.hosts.values()
        for proc in host.engines()
        if proc.key is not None and proc.ready_since is not None
    }
    for name, router in cluster.routers.items():
        if not router.alive or router.table is None:
            yield f"router {name} has no table"
            continue
        routed: set[str] = set()
        for model in router.table.models:
            yield from _provider(cluster, name, model)
            for endpoint in model.endpoints:
                if endpoint.external:
                    continue
                routed.add(endpoint.id)
                proc = ready.get(endpoint.id)
                outcome = router.try_endpoint(endpoint)
                if proc is None or proc.spec is None or proc.spec.model != model.name or outcome != "ok":
                    yield f"router {name} sends {model.name} to {endpoint}: {outcome}"
        missing = sorted(set(ready) - routed)
        if missing:
            yield f"router {name} does not know {', '.join(missing)}"
        if router.table.settling:
            yield f"router {name} holds a settling table"
        if [model.name for model in router.table.models] != sorted(cluster.durable.catalog.models):
            yield f"router {name} knows other models than the catalog"


def _provider(cluster: Cluster, router: str, routed: RoutedModel) -> Iterator[str]:
    """An external model is routed with the key that its file holds now, unless people
    stopped serving; no other model is, and with serving stopped every model says so."""
    model = cluster.durable.catalog.models.get(routed.name)
    external = model.external if model is not None else None
    stopped = cluster.durable.serving.stopped
    if stopped != (routed.state == "stopped"):
        yield f"router {router} is told that {routed.name} is {routed.state}; serving stopped: {stopped}"
    has = [(endpoint.key, endpoint.upstream_model) for endpoint in routed.endpoints if endpoint.external]
    wanted = []
    if external is not None and not stopped:
        wanted = [(cluster.durable.key_files[external.api_key_file or ""].key, external.model)]
    if has != wanted:
        yield f"router {router} sends {routed.name} out with {has}, not {wanted}"
