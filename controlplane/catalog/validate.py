"""From the trees of catalog files and of the store to a ``Catalog``: everything is
checked, all faults are told at once, each with its place (CAT-01 to CAT-05). Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from controlplane.catalog.arguments import allowances
from controlplane.catalog.engines import ENGINES
from controlplane.catalog.fields import unquoted
from controlplane.catalog.locator import parse_locator, parse_url
from controlplane.catalog.messages import flatten, read
from controlplane.catalog.model import (
    Adapter,
    Catalog,
    External,
    Model,
    Profile,
    Resources,
    Scaling,
    WeightedAlias,
    Window,
)
from controlplane.catalog.profiles import build_profile, gib, profile_faults
from controlplane.catalog.references import Names, alias_faults, resolved, weighted
from controlplane.catalog.schema import (
    ALIAS_EXPECTED,
    ALIAS_NAME,
    MODEL_NAME,
    MODEL_NAME_EXPECTED,
    SECTIONS,
    AliasSchema,
    ModelSchema,
    ProfileSchema,
)
from llmgw.runtime.faults import Fault, SettingsError, did_you_mean

STORE = "store"
"""Source, and ``origin``, of the models that were added live."""

MAX_FAULTS = 1000
"""Most faults that are told of one catalog."""

_ALL_WEEK = frozenset(range(7))
_KINDS = ("profiles", "external", "adapter")


@dataclass
class _Reading:
    """A catalog on its way."""

    allowed: tuple[str, ...]
    known: Catalog | None = None
    faults: list[Fault] = field(default_factory=list)
    models: dict[str, Model] = field(default_factory=dict)
    definitions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    aliases: list[tuple[str, str, str]] = field(default_factory=list)
    shared: dict[str, tuple[str, str, Any]] = field(default_factory=dict)

    def fault(self, place: str, message: str) -> None:
        self.faults.append(Fault(place, message))

    def read_before(self, name: str, value: Any, origin: str) -> Model | None:
        """The model that the known catalog made of this very definition."""
        known = self.known
        if known is None or known.allowed != self.allowed or known.definitions.get(name) is not value:
            return None
        model = known.unresolved.get(name)
        return model if model is not None and model.origin == origin else None


def parse_catalog(
    sources: Mapping[str, Mapping[str, Any]],
    source: str | None = None,
    *,
    allowed: Iterable[str] = (),
    known: Catalog | None = None,
) -> Catalog:
    """The catalog of one or more trees, ``{file name: tree}``; those of the models that
    were added live stand under ``STORE``. ``source`` names the whole (default: the file
    names), ``allowed`` are the operator's ``ENGINE FLAG`` pairs (``engines.allow``).
    Models whose definition is the very object that ``known``, an earlier catalog, was made
    of are taken over from it: a change of one model of thousands reads one.

    Raises ``SettingsError`` with every fault; where there are several sources each
    fault's place begins with its own.
    """
    label = source or ", ".join(sources) or "catalog"
    reading = _Reading(tuple(allowed), known)
    for origin, tree in sources.items():
        _source(origin, tree, f"{origin}: " if len(sources) > 1 else "", reading)
    faults, names = reading.faults, reading.names
    faults.extend(alias_faults(reading.aliases, names))
    models = resolved(reading.models, names, faults)
    aliases = {}
    for name, (origin, place, value) in reading.shared.items():
        alias = _weighted(name, value, place=place, origin=origin, models=models, reading=reading)
        if alias is not None:
            aliases[name] = alias
    if faults:
        raise SettingsError(label, _told(faults))
    return Catalog(
        models=MappingProxyType(dict(sorted(models.items()))),
        source=label,
        aliases=MappingProxyType(dict(sorted(aliases.items()))),
        definitions=MappingProxyType(dict(sorted(reading.definitions.items()))),
        unresolved=MappingProxyType(reading.models),
        allowed=reading.allowed,
    )


def _told(faults: list[Fault]) -> list[Fault]:
    """As many as a person can read; a file of nothing but faults has no end of them."""
    if len(faults) <= MAX_FAULTS:
        return faults
    more = f"{len(faults) - MAX_FAULTS} more faults are not listed: mend these first, then look again"
    return [*faults[:MAX_FAULTS], Fault("", more)]


def parse_model(name: str, tree: Any, *, allowed: Iterable[str] = ()) -> Model:
    """One model by itself, as a file or the body of a request gives it. What it names in
    other models is not looked at: ``parse_catalog`` does. Raises ``SettingsError`` with
    every fault, each place relative to the model, such as ``profiles[0].tp``."""
    reading = _Reading(tuple(allowed))
    model = None
    if not re.fullmatch(MODEL_NAME, name):
        reading.fault("", f"the name {MODEL_NAME_EXPECTED}")
    else:
        model = _model(name, tree, name, "", reading)
    faults = [Fault(fault.path.removeprefix(name).removeprefix("."), fault.message) for fault in reading.faults]
    if faults or model is None:
        raise SettingsError(name, faults)
    return model


def _source(origin: str, tree: Mapping[str, Any], prefix: str, reading: _Reading) -> None:
    for key in tree:
        if key not in SECTIONS:
            words = "is not a section of a catalog (those are models and aliases)"
            if isinstance(tree[key], dict) and {"profiles", "external", "adapter"} & tree[key].keys():
                words += ": models stand under models:, indented"
            reading.fault(f"{prefix}{key}", f"{words}{did_you_mean(str(key), SECTIONS)}")
    if "models" not in tree and not did_you_mean("models", [str(key) for key in tree]):
        # A file cut short by an editor or a full disk must not end everything.
        empty = ", but there is nothing here" if not tree else ""
        reading.fault(f"{prefix}models", f"is required{empty}: write models: {{}} to serve nothing")
    for name, value, place in _section(tree, "models", "models", prefix, reading):
        if not re.fullmatch(MODEL_NAME, name):
            reading.fault(place, f"the name {MODEL_NAME_EXPECTED}")
        elif name in reading.origin:
            reading.fault(place, _twice(name, reading.origin[name], origin))
        else:
            reading.origin[name] = origin
            reading.names.models[name] = place
        reading.aliases += [(f"{place}.aliases[{index}]", alias, name) for index, alias in written_aliases(value)]
        model = reading.read_before(name, value, origin) or _model(name, value, place, origin, reading)
        if model is not None and reading.names.models.get(name) == place:
            reading.models[name] = model
            reading.definitions[name] = value
    for name, value, place in _section(tree, "aliases", "weighted aliases", prefix, reading):
        if not re.fullmatch(ALIAS_NAME, name):
            reading.fault(place, f"the name {ALIAS_EXPECTED}")
        elif name in reading.shared:
            reading.fault(place, f"is also in {reading.shared[name][0]}: keep one")
        else:
            reading.shared[name] = (origin, place, value)
            reading.names.shared[name] = place


def _section(
    tree: Mapping[str, Any], section: str, what: str, prefix: str, reading: _Reading
) -> Iterator[tuple[str, Any, str]]:
    """Name, value and place of each entry of a section."""
    entries = tree.get(section, {})
    place = f"{prefix}{section}"
    if not isinstance(entries, dict):
        hint = ""
        if isinstance(entries, list):
            hint = ", not a list: write NAME: instead of '- name: NAME'"
        elif section == "models" and entries is None:
            hint = ": write models: {} to serve nothing"
        reading.fault(place, f"must be a mapping of names to {what}{hint}")
        return
    for name, value in entries.items():
        if isinstance(name, str):
            yield name, value, f"{place}.{name}"
        else:
            reading.fault(f"{place}.{name}", "the name must be text" + unquoted(name))


def _twice(name: str, first: str, second: str) -> str:
    if STORE in (first, second):
        file = second if first == STORE else first
        return f"is in {file} and in the store: take it out of the file, or run llmgw ctl model remove {name}"
    return f"is also in {first}: keep one"


def written_aliases(value: Any) -> list[tuple[int, str]]:
    """The aliases of a model as written, also of one that has faults, each with its index."""
    written = value.get("aliases") if isinstance(value, dict) else None
    return [
        (i, alias) for i, alias in enumerate(written if isinstance(written, list) else []) if isinstance(alias, str)
    ]


def _model(name: str, value: Any, place: str, origin: str, reading: _Reading) -> Model | None:
    faults = reading.faults
    clean = len(faults)
    data, messages = read(ModelSchema, value)
    if messages is not None:
        faults.extend(flatten(messages, place, ModelSchema))
    if not isinstance(value, dict):
        return None
    _kind(value, place, reading)
    _scaling_faults(data.get("scaling"), f"{place}.scaling", reading)
    _external_faults(data.get("external"), f"{place}.external", reading)
    if value.get("resources") == {}:
        reading.fault(f"{place}.resources", "must give cpu_cores or min_memory_gb")
    adapter = data.get("adapter")
    if isinstance(adapter, dict) and "source" in adapter:
        problem = _adapter_source(adapter["source"])
        if problem:
            reading.fault(f"{place}.adapter.source", problem)
    known = data.get("profiles") if messages is None else None
    profiles = _profiles(value.get("profiles"), known, _resources(data.get("resources")), place, reading)
    if len(faults) > clean:
        return None
    return Model(
        name=name,
        profiles=tuple(sorted(profiles, key=lambda profile: -profile.priority)),
        scaling=_scaling(data.get("scaling")),
        aliases=data.get("aliases", ()),
        fallbacks=data.get("fallbacks", ()),
        external=_external(data.get("external")),
        adapter=Adapter(**adapter) if adapter else None,
        role=data.get("role"),
        service_class=data.get("service_class"),
        owner=data.get("owner", ""),
        resources=_resources(data.get("resources")),
        origin=origin,
    )


def _kind(value: Mapping[str, Any], place: str, reading: _Reading) -> None:
    """A model has profiles, or is external, or is an adapter."""
    kinds = [kind for kind in _KINDS if kind in value]
    if not kinds:
        reading.fault(f"{place}.profiles", "is required: at least one way to run the model (or external, or adapter)")
    elif len(kinds) > 1:
        reading.fault(
            f"{place}.{kinds[1]}", f"cannot stand beside {kinds[0]}: make two models, and name one in fallbacks"
        )
    elif kinds != ["profiles"]:
        why = "has no replicas here" if kinds == ["external"] else "is served by its base model's replicas"
        what = "an external model" if kinds == ["external"] else "an adapter"
        for name in ("scaling", "resources"):
            if name in value:
                reading.fault(f"{place}.{name}", f"has no meaning: {what} {why}; leave it out")
        if kinds == ["adapter"] and "role" in value:
            reading.fault(f"{place}.role", "an adapter cannot be a guard: make its base model one")


def _profiles(
    written: Any, known: list[dict[str, Any]] | None, resources: Resources | None, place: str, reading: _Reading
) -> list[Profile]:
    """``known`` are the profiles as the schema read them, if it found no fault in the model."""
    if written == []:
        reading.fault(f"{place}.profiles", "must hold at least one profile")
    clean = len(reading.faults)
    seen: dict[str, int] = {}
    profiles: list[Profile] = []
    for index, raw in enumerate(written if isinstance(written, list) else []):
        if not isinstance(raw, dict):
            continue
        where = f"{place}.profiles[{index}]"
        entry, messages = (known[index], None) if known is not None else read(ProfileSchema, raw)
        allowed = allowances(str(entry.get("engine")), reading.allowed)
        reading.faults.extend(profile_faults(entry, raw, where, allowed))
        label = entry.get("name", f"p{index}")
        if label in seen:
            reading.fault(f"{where}.name", f"{label} is also the name of profiles[{seen[label]}]: choose another")
        seen.setdefault(label, index)
        if len(reading.faults) == clean and messages is None:
            profiles.append(build_profile(label, entry, resources))
    return profiles


def _scaling_faults(scaling: Any, place: str, reading: _Reading) -> None:
    if not isinstance(scaling, dict):
        return
    _bounds(scaling, place, reading)
    for index, window in enumerate(scaling.get("schedule", ())):
        if not isinstance(window, dict):
            continue
        where = f"{place}.schedule[{index}]"
        _bounds(window, where, reading)
        if window.get("start") == 24 * 60:
            reading.fault(f"{where}.from", 'is the end of the day: write "00:00" and the day after')
        elif "start" in window and window["start"] == window.get("end"):
            reading.fault(f"{where}.to", 'is the same as from: for the whole day write from "00:00" to "24:00"')


def _bounds(entry: Mapping[str, Any], place: str, reading: _Reading) -> None:
    if {"min", "max"} <= entry.keys() and entry["min"] > entry["max"]:
        reading.fault(f"{place}.min", f"is {entry['min']}, more than max {entry['max']}")


def _scaling(data: Mapping[str, Any] | None) -> Scaling:
    if not data:
        return Scaling()
    windows = tuple(
        Window(**{"days": _ALL_WEEK, **window})  # what the schema read has the names of the value's fields
        for window in data.get("schedule", ())
    )
    return Scaling(**{**data, "schedule": windows})


def _external_faults(external: Any, place: str, reading: _Reading) -> None:
    url = external.get("url") if isinstance(external, dict) else None
    if url is None:
        return
    try:
        parse_url(url, ("http", "https"))
    except ValueError as error:
        reading.fault(f"{place}.url", str(error))
        return
    base = url.rstrip("/")
    for tail in ("/chat/completions", "/completions", "/embeddings", "/models"):
        if base.endswith(tail):
            reading.fault(f"{place}.url", f"must end before {tail}: {base.removesuffix(tail)}")
            return
    if "?" in url:
        reading.fault(f"{place}.url", "must not have a ?query: paths are appended to it")


def _external(data: Mapping[str, Any] | None) -> External | None:
    return External(**{**data, "url": data["url"].rstrip("/")}) if data else None


def _resources(data: Any) -> Resources | None:
    if not isinstance(data, dict) or not data:
        return None
    return Resources(cpu_cores=data.get("cpu_cores"), memory_bytes=gib(data.get("min_memory_gb")))


def _adapter_source(source: str) -> str | None:
    try:
        locator = parse_locator(source)
    except ValueError as error:
        return str(error)
    if locator.scheme not in ("hf", "file") or locator.file:
        able = " and ".join(name for name, rules in ENGINES.items() if rules.adapters)
        return f"must be hf:ORG/NAME or file:/absolute/directory: {able} load an adapter from a directory"
    return None


def _weighted(
    name: str, value: Any, *, place: str, origin: str, models: Mapping[str, Model], reading: _Reading
) -> WeightedAlias | None:
    data, messages = read(AliasSchema, value)
    if messages is not None:
        reading.faults.extend(flatten(messages, place, AliasSchema))
    if name in reading.names.models:
        reading.fault(place, "is the name of a model too: choose another")
    if "models" not in data:
        return None
    alias, faults = weighted(
        name,
        data["models"],
        sticky=data.get("sticky", False),
        place=place,
        origin=origin,
        models=models,
        names=reading.names,
    )
    reading.faults.extend(faults)
    return alias
