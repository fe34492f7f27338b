"""One profile: what it may ask of its engine, its arithmetic, and the value it becomes
(CAT-03, CAT-04). Pure."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from controlplane.catalog.arguments import flag_fault, variable_fault
from controlplane.catalog.engines import ENGINES, EngineRules
from controlplane.catalog.fingerprint import fingerprint
from controlplane.catalog.locator import engine_fault, parse_locator
from controlplane.catalog.model import Profile, Resources
from llmgw.runtime.faults import Fault, did_you_mean

GIB = 1024**3
"""Bytes of one GB as people write memory here: 2**30, as operating systems show it."""

_RANKS = ("tp", "pp", "dp")


def gib(amount: float | None) -> int | None:
    """Bytes of an amount in GB."""
    return None if amount is None else round(amount * GIB)


def profile_faults(
    entry: Mapping[str, Any], raw: Mapping[str, Any], place: str, allowed: Collection[str]
) -> Iterator[Fault]:
    """Faults of a profile beyond those of single fields. ``entry`` is what of it could be
    read, ``raw`` what was written; ``allowed`` are flags the operator permits."""
    engine = entry.get("engine")
    rules = ENGINES.get(engine) if engine is not None else None
    if engine is not None and rules is None:
        known = ", ".join(sorted(ENGINES))
        yield Fault(f"{place}.engine", f"{engine} is not an engine (known: {known}){did_you_mean(engine, ENGINES)}")
    if "source" in entry:
        problem = source_fault(entry["source"], engine if rules else None)
        if problem:
            yield Fault(f"{place}.source", problem)
    if "gpus" in raw and "gpu_class" not in raw:
        yield Fault(f"{place}.gpus", "needs gpu_class: which devices?")
    if "gpu_class" in raw and "gpus" not in raw:
        yield Fault(f"{place}.gpu_class", "needs gpus: how many devices?")
    if not {"gpus", "gpu_class", "min_memory_gb"} & raw.keys():
        yield Fault(
            f"{place}.min_memory_gb", "is required for a profile without devices: the GB it takes on a node, such as 8"
        )
    yield from _spread(entry, raw, place, engine or "the engine", rules)
    if rules is None:
        return
    for index, argument in enumerate(entry.get("args", ())):
        problem = flag_fault(rules, argument, allowed)
        if problem:
            yield Fault(f"{place}.args[{index}]", problem)
    for name in entry.get("env", {}):
        problem = variable_fault(rules, name)
        if problem:
            yield Fault(f"{place}.env.{name}", problem)


def source_fault(source: str, engine: str | None) -> str | None:
    """Why a source cannot be used, by ``engine`` if that is known."""
    try:
        parse_locator(source)
    except ValueError as error:
        return str(error)
    return engine_fault(engine, source) if engine is not None else None


def _spread(
    entry: Mapping[str, Any], raw: Mapping[str, Any], place: str, engine: str, rules: EngineRules | None
) -> Iterator[Fault]:
    """CAT-03: how the profile spreads over devices and nodes."""
    unread = [name for name in ("gpus", "nodes", *_RANKS) if name in raw and name not in entry]
    if unread:
        return
    nodes, gpus = entry.get("nodes", 1), entry.get("gpus", 0)
    if "-mig-" in entry.get("gpu_class", ""):
        for name in ("gpus", "nodes", *_RANKS):
            if entry.get(name, 1) != 1:
                yield Fault(f"{place}.{name}", f"is {entry[name]}, but must be 1: an engine uses one MIG instance")
        return
    if "launch_mode" in entry and nodes == 1:
        yield Fault(f"{place}.launch_mode", "is for a replica that spans several nodes: set nodes, or leave it out")
    if rules is None:
        return
    if nodes > 1 and not rules.launch_modes:
        able = " or ".join(name for name, row in ENGINES.items() if len(row.launch_modes) and name != "sim")
        yield Fault(
            f"{place}.nodes", f"is {nodes}, but a replica of {engine} runs on one node: use 1, or {able} as the engine"
        )
        return
    mode = entry.get("launch_mode")
    if nodes > 1 and mode is not None and mode not in rules.launch_modes:
        yield Fault(f"{place}.launch_mode", f"{engine} knows no {mode}: use {' or '.join(rules.launch_modes)}")
    asked = [name for name in _RANKS if name in entry]
    if asked and not rules.spreads:
        for name in asked:
            yield Fault(f"{place}.{name}", f"{engine} spreads over its devices by itself: leave {name} out")
        return
    if not gpus:
        for name in [*asked, *(["nodes"] if nodes > 1 else [])]:
            if entry[name] != 1 and "gpu_class" not in raw:
                yield Fault(
                    f"{place}.{name}", f"is {entry[name]}, but the profile has no devices: set gpu_class and gpus"
                )
        return
    yield from _arithmetic(entry, place, nodes, gpus)


def _arithmetic(entry: Mapping[str, Any], place: str, nodes: int, gpus: int) -> Iterator[Fault]:
    total = nodes * gpus
    have = f"nodes {nodes} x gpus {gpus} = {total}" if nodes > 1 else f"gpus is {gpus}"
    if nodes > 1 and not {"tp", "pp"} & entry.keys():
        suggestion = f"tp: {gpus} and pp: {nodes}"
        yield Fault(
            f"{place}.tp", f"is required with nodes {nodes}: say how {total} devices are used, such as {suggestion}"
        )
        return
    pp, dp = entry.get("pp", 1), entry.get("dp", 1)
    if "tp" not in entry:
        if total % (pp * dp):
            said = " x ".join(f"{name} {entry[name]}" for name in ("pp", "dp") if name in entry)
            yield Fault(f"{place}.{'pp' if 'pp' in entry else 'dp'}", f"{have}, which {said} does not divide")
        return
    tp = entry["tp"]
    if tp * pp * dp != total:
        product = " x ".join(f"{name} {entry[name]}" for name in _RANKS if name in entry)
        equals = f" = {tp * pp * dp}" if " x " in product else ""
        rest = pp * dp
        remedy = f"set tp: {total // rest}" if total % rest == 0 else "make both sides equal"
        if total % (tp * dp) == 0:
            remedy += f" or pp: {total // (tp * dp)}"
        yield Fault(f"{place}.tp", f"{have}, but {product}{equals}: {remedy}")
    elif (gpus % tp if tp <= gpus else tp % gpus) != 0:
        yield Fault(
            f"{place}.tp",
            f"is {tp}, which must divide the {gpus} devices of a node, or be a multiple of them to span whole nodes",
        )


def build_profile(name: str, entry: Mapping[str, Any], resources: Resources | None) -> Profile:
    """The value of a profile that has no fault, with its model's ``resources`` applied."""
    rules = ENGINES[entry["engine"]]
    nodes, gpus = entry.get("nodes", 1), entry.get("gpus", 0)
    tp, pp, dp = (entry.get(rank) for rank in _RANKS)
    if rules.spreads and gpus:
        pp, dp = pp or 1, dp or 1
        tp = nodes * gpus // (pp * dp)
    cores, memory = entry.get("cpu_cores"), gib(entry.get("min_memory_gb"))
    if resources is not None:
        cores = cores if resources.cpu_cores is None else resources.cpu_cores
        memory = memory if resources.memory_bytes is None else resources.memory_bytes
    engine_facts: dict[str, Any] = {
        "engine": entry["engine"],
        "source": entry["source"],
        "gpu_class": entry.get("gpu_class"),
        "gpus": gpus,
        "cpu_cores": cores,
        "context": entry.get("context"),
        "slots": entry.get("slots"),
        "args": entry.get("args", ()),
        "env": MappingProxyType(entry.get("env", {})),
        "nodes": nodes,
        "pp": pp,
        "dp": dp,
        "launch_mode": entry.get("launch_mode", "native") if nodes > 1 else None,
    }
    plain = ("priority", "startup_timeout", "weight", "max_inflight", "keep_within", "power_watts")
    others = {key: entry[key] for key in (*plain, "target_waiting", "kv_ceiling") if key in entry}
    return Profile(
        name=name,
        fingerprint=fingerprint(**engine_facts),
        memory_bytes=memory,
        node_selector=MappingProxyType(entry.get("node_selector", {})),
        tp=tp,
        **engine_facts,
        **others,
    )
