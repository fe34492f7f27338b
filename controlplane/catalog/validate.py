"""From the trees of catalog files to a ``Catalog``: everything is checked, all
faults are told at once, each with its place (CAT-01 to CAT-05). Pure."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from marshmallow import Schema, ValidationError

from controlplane.catalog.engines import ENGINES, NOT_YET, SCHEMES, flag_fault, variable_fault
from controlplane.catalog.fields import GIB
from controlplane.catalog.fingerprint import fingerprint
from controlplane.catalog.model import Catalog, Model, Profile, Scaling
from controlplane.catalog.schema import (
    MODEL_NAME,
    MODEL_NAME_EXPECTED,
    ModelSchema,
    ProfileSchema,
    ScalingSchema,
    known_fields,
)
from llmgw.runtime.settings import Fault, SettingsError, did_you_mean

_NESTED: dict[str, type[Schema]] = {"profiles": ProfileSchema, "scaling": ScalingSchema}
_WORDS = {
    "Missing data for required field.": "is required",
    "Field may not be null.": "has no value: give one or leave the line out",
    "Not a valid list.": "must be a list",
    "Invalid input type.": "must be a mapping",
    "Unknown field.": "is not a field here",
}


def parse_catalog(sources: Mapping[str, Mapping[str, Any]], source: str | None = None) -> Catalog:
    """The catalog of one or more files, ``{file name: tree}``. ``source`` names the
    whole (default: the file names). Raises ``SettingsError`` with every fault; where
    there are several files each fault's place begins with its file."""
    label = source or ", ".join(sources) or "catalog"
    faults: list[Fault] = []
    models: dict[str, Model] = {}
    origin: dict[str, str] = {}
    aliases: list[tuple[str, str, str]] = []
    for file, tree in sources.items():
        prefix = f"{file}: " if len(sources) > 1 else ""
        for key in tree:
            if key != "models":
                hint = did_you_mean(str(key), ["models"])
                faults.append(Fault(f"{prefix}{key}", f"is not a section of a catalog (only models is){hint}"))
        if "models" not in tree:
            # A file cut short by an editor or a full disk must not end everything.
            faults.append(Fault(f"{prefix}models", "is required: write models: {} to serve nothing"))
        section = tree.get("models", {})
        if not isinstance(section, dict):
            faults.append(Fault(f"{prefix}models", "must be a mapping of model names to models"))
            continue
        for name, value in section.items():
            place = f"{prefix}models.{name}"
            if not isinstance(name, str):
                faults.append(Fault(place, "the name must be text (put it in quotes)"))
            elif not re.fullmatch(MODEL_NAME, name):
                faults.append(Fault(place, f"the name {MODEL_NAME_EXPECTED}"))
            elif name in origin:
                faults.append(Fault(place, f"is also in {origin[name]}: keep one"))
            else:
                origin[name] = file
            aliases += [(f"{place}.aliases[{index}]", alias, str(name)) for index, alias in _aliases(value)]
            model = _model(str(name), value, place, faults)
            if model is not None:
                models[str(name)] = model
    _check_aliases(aliases, origin, faults)
    if faults:
        raise SettingsError(label, faults)
    return Catalog(models=MappingProxyType(dict(sorted(models.items()))), source=label)


def _aliases(value: Any) -> list[tuple[int, str]]:
    """The aliases as written, also of a model that has faults."""
    written = value.get("aliases") if isinstance(value, dict) else None
    return [
        (i, alias) for i, alias in enumerate(written if isinstance(written, list) else []) if isinstance(alias, str)
    ]


def _read(schema: Schema, value: Any) -> tuple[dict[str, Any], Any]:
    """What of ``value`` could be read, and the messages about the rest."""
    try:
        return cast(dict[str, Any], schema.load(value)), None
    except ValidationError as error:
        return error.valid_data if isinstance(error.valid_data, dict) else {}, error.messages


def _model(name: str, value: Any, place: str, faults: list[Fault]) -> Model | None:
    clean = len(faults)
    data, messages = _read(ModelSchema(), value)
    if messages is not None:
        faults.extend(_flatten(messages, place, ModelSchema))
    if not isinstance(value, dict):
        return None
    scaling = data.get("scaling")
    if isinstance(scaling, dict) and {"min", "max"} <= scaling.keys() and scaling["min"] > scaling["max"]:
        faults.append(Fault(f"{place}.scaling.min", f"is {scaling['min']}, more than max {scaling['max']}"))
    written = value.get("profiles")
    if written == []:
        faults.append(Fault(f"{place}.profiles", "must hold at least one profile"))
    seen: dict[str, int] = {}
    profiles: list[Profile] = []
    for index, raw in enumerate(written if isinstance(written, list) else []):
        if not isinstance(raw, dict):
            continue
        where = f"{place}.profiles[{index}]"
        entry, _ = _read(ProfileSchema(), raw)
        _check_profile(entry, raw, where, faults)
        label = entry.get("name", f"p{index}")
        if label in seen:
            faults.append(Fault(f"{where}.name", f"{label} is also the name of profiles[{seen[label]}]"))
        seen.setdefault(label, index)
        if len(faults) == clean:
            profiles.append(_profile(label, entry))
    if len(faults) > clean:
        return None
    return Model(
        name=name,
        profiles=tuple(sorted(profiles, key=lambda profile: -profile.priority)),
        scaling=Scaling(**scaling) if scaling else Scaling(),
        aliases=data.get("aliases", ()),
    )


def _profile(name: str, entry: Mapping[str, Any]) -> Profile:
    engine_facts: dict[str, Any] = {
        "engine": entry["engine"],
        "source": entry["source"],
        "gpu_class": entry.get("gpu_class"),
        "gpus": entry.get("gpus", 0),
        "cpu_cores": entry.get("cpu_cores"),
        "context": entry.get("context"),
        "slots": entry.get("slots"),
        "args": entry.get("args", ()),
        "env": MappingProxyType(entry.get("env", {})),
    }
    memory = entry.get("min_memory_gb")
    others = {key: entry[key] for key in ("priority", "startup_timeout", "weight", "max_inflight") if key in entry}
    return Profile(
        name=name,
        fingerprint=fingerprint(**engine_facts),
        memory_bytes=None if memory is None else round(memory * GIB),
        node_selector=MappingProxyType(entry.get("node_selector", {})),
        **engine_facts,
        **others,
    )


def _check_profile(entry: Mapping[str, Any], raw: Mapping[str, Any], place: str, faults: list[Fault]) -> None:
    engine = entry.get("engine")
    rules = ENGINES.get(engine) if engine is not None else None
    if engine is not None and rules is None:
        known = ", ".join(sorted(ENGINES))
        faults.append(
            Fault(f"{place}.engine", f"{engine} is not an engine (known: {known}){did_you_mean(engine, ENGINES)}")
        )
    source = entry.get("source")
    if source is not None:
        problem = _source_fault(source, engine if rules else None)
        if problem:
            faults.append(Fault(f"{place}.source", problem))
    if "gpus" in raw and "gpu_class" not in raw:
        faults.append(Fault(f"{place}.gpus", "needs gpu_class: which devices?"))
    if "gpu_class" in raw and "gpus" not in raw:
        faults.append(Fault(f"{place}.gpu_class", "needs gpus: how many devices?"))
    if "-mig-" in entry.get("gpu_class", "") and entry.get("gpus", 1) != 1:
        faults.append(Fault(f"{place}.gpus", "must be 1: an engine uses one MIG instance"))
    if not {"gpus", "gpu_class", "min_memory_gb"} & raw.keys():
        faults.append(Fault(f"{place}.min_memory_gb", "is required for a profile without devices"))
    if rules is None:
        return
    for index, argument in enumerate(entry.get("args", ())):
        problem = flag_fault(rules, argument)
        if problem:
            faults.append(Fault(f"{place}.args[{index}]", problem))
    for name in entry.get("env", {}):
        problem = variable_fault(rules, name)
        if problem:
            faults.append(Fault(f"{place}.env.{name}", problem))


def _source_fault(source: str, engine: str | None) -> str | None:
    scheme, colon, rest = source.partition(":")
    if not colon or scheme not in SCHEMES:
        return "must begin with file:" + did_you_mean(scheme, SCHEMES)
    if scheme in NOT_YET:
        return f"{scheme}: is not yet fetched by this release: use file:"
    if scheme == "file" and (not rest.startswith("/") or ".." in rest.split("/") or rest.endswith("/")):
        return "must be file: and an absolute path without '..', such as file:/srv/models/m.gguf"
    if scheme == "sim" and rest:
        return "must be just sim: (a simulated engine has no weights)"
    if engine is not None and scheme not in ENGINES[engine].schemes:
        allowed = " or ".join(f"{known}:" for known in ENGINES[engine].schemes)
        return f"{engine} cannot load {scheme}: use {allowed}"
    return None


def _check_aliases(aliases: list[tuple[str, str, str]], origin: Mapping[str, str], faults: list[Fault]) -> None:
    """``aliases`` are (place, alias, model): none may be a model's name or be given twice (CAT-02)."""
    owners: dict[str, str] = {}
    for place, alias, model in aliases:
        if alias in origin:
            faults.append(Fault(place, f"{alias} is the name of {'its own' if alias == model else 'a'} model"))
        elif alias in owners:
            faults.append(Fault(place, f"{alias} is already an alias of {owners[alias]}"))
        else:
            owners[alias] = model


def _flatten(messages: Any, place: str, schema: type[Schema] | None) -> Iterator[Fault]:
    """Faults of marshmallow's nested messages, each with its path."""
    if isinstance(messages, dict):
        for key, inner in messages.items():
            if key == "_schema":
                yield from _flatten(inner, place, schema)
            elif isinstance(key, int):
                yield from _flatten(inner, f"{place}[{key}]", schema)
            elif schema is not None:
                if inner == ["Unknown field."]:
                    near = did_you_mean(str(key), known_fields(schema))
                    yield Fault(f"{place}.{key}", f"{_WORDS['Unknown field.']}{near}")
                else:
                    yield from _flatten(inner, f"{place}.{key}", _NESTED.get(str(key)))
            else:
                yield from _flatten(inner, f"{place}.{key}", None)
        return
    for message in messages if isinstance(messages, list) else [messages]:
        yield Fault(place, _WORDS.get(str(message), str(message)))
