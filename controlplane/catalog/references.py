"""Names that stand for other models: aliases, fallbacks, weighted aliases, base models of
adapters. All are resolved when the catalog is made, never per request (CAT-02). Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from controlplane.catalog.engines import ENGINES
from controlplane.catalog.model import Adapter, Model, WeightedAlias
from llmgw.runtime.faults import Fault, did_you_mean

MAX_HINTS = 100
"""So many unknown names of one catalog are told with the nearest known one."""


@dataclass
class Names:
    """Every name of a catalog. ``models`` maps each written model, also one with faults,
    to where it is; ``owners`` each alias to its model; ``shared`` each weighted alias to
    where it is."""

    models: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    hints: int = 0

    def resolve(self, name: str) -> str | None:
        """The model a name stands for, if it is one model."""
        return name if name in self.models else self.owners.get(name)

    def unknown(self, name: str) -> str:
        """Why ``name`` cannot be resolved, in words that follow the place."""
        if name in self.shared:
            return f"{name} is a weighted alias: name a model"
        self.hints += 1  # each takes milliseconds, and a catalog may name thousands
        hint = did_you_mean(name, [*self.models, *self.owners]) if self.hints <= MAX_HINTS else ""
        return f"{name} is not a model of this catalog{hint}"


def alias_faults(aliases: Iterable[tuple[str, str, str]], names: Names) -> Iterator[Fault]:
    """``aliases`` are (place, alias, model): none may be a model's name, a weighted alias,
    or be given twice. Those without fault are entered in ``names``."""
    for place, alias, model in aliases:
        if alias in names.models:
            whose = "its own model: leave it out" if alias == model else "a model: choose another"
            yield Fault(place, f"{alias} is the name of {whose}")
        elif alias in names.shared:
            yield Fault(place, f"{alias} is also a weighted alias ({names.shared[alias]}): keep one")
        elif alias in names.owners:
            whose = "this model: leave it out" if names.owners[alias] == model else f"{names.owners[alias]}: keep one"
            yield Fault(place, f"{alias} is already an alias of {whose}")
        else:
            names.owners[alias] = model


def resolved(models: Mapping[str, Model], names: Names, faults: list[Fault]) -> dict[str, Model]:
    """``models`` with fallbacks and base models as names of models. A model that another
    names but that has faults of its own is left alone: those are told already."""
    done: dict[str, Model] = {}
    for name, model in models.items():
        place = names.models[name]
        fallbacks = tuple(_fallbacks(model, f"{place}.fallbacks", models, names, faults))
        adapter = model.adapter
        if adapter is not None:
            adapter = _base(adapter, f"{place}.adapter.base", name, models=models, names=names, faults=faults)
        done[name] = replace(model, fallbacks=fallbacks, adapter=adapter)
    faults.extend(_cycles(done, names))
    return done


def _fallbacks(
    model: Model, place: str, models: Mapping[str, Model], names: Names, faults: list[Fault]
) -> Iterator[str]:
    seen: set[str] = set()
    for index, written in enumerate(model.fallbacks):
        where = f"{place}[{index}]"
        target = names.resolve(written)
        if target is None:
            faults.append(Fault(where, names.unknown(written)))
            continue
        shown = target if target == written else f"{written} (an alias of {target})"
        found = models.get(target)
        if target == model.name:
            faults.append(Fault(where, f"{shown} is the model itself: name another, or leave it out"))
        elif target in seen:
            faults.append(Fault(where, f"{shown} is named twice: keep one"))
        elif found is not None and found.role == "guard" and model.role != "guard":
            faults.append(Fault(where, f"{shown} is a guard, which answers no client: name another model"))
        elif found is not None and found.adapter is not None:
            faults.append(
                Fault(where, f"{shown} is an adapter, which answers differently: name its base, {found.adapter.base}")
            )
        else:
            yield target
        seen.add(target)


def _base(
    adapter: Adapter, place: str, name: str, *, models: Mapping[str, Model], names: Names, faults: list[Fault]
) -> Adapter:
    able = " or ".join(engine for engine, rules in ENGINES.items() if rules.adapters)
    base = names.resolve(adapter.base)
    found = models.get(base) if base else None
    if base is None:
        faults.append(Fault(place, names.unknown(adapter.base)))
    elif base == name:
        faults.append(Fault(place, f"{adapter.base} is the adapter itself: name the model it was made for"))
    elif found is None:
        return adapter
    elif found.adapter is not None:
        faults.append(
            Fault(place, f"{adapter.base} is an adapter too: name the model both were made for, {found.adapter.base}")
        )
    elif found.external is not None:
        faults.append(Fault(place, f"{adapter.base} is external: an adapter needs a model that runs here"))
    elif not any(ENGINES[profile.engine].adapters for profile in found.profiles):
        used = ", ".join(sorted({profile.engine for profile in found.profiles}))
        faults.append(
            Fault(place, f"{adapter.base} runs on {used}, which serves no adapters: give it a profile of {able}")
        )
    return replace(adapter, base=base or adapter.base)


def _cycles(models: Mapping[str, Model], names: Names) -> Iterator[Fault]:
    """Each cycle of fallbacks once, told at its first model, with the way round."""
    state: dict[str, int] = {}  # 1: on the way, 2: done
    told: set[frozenset[str]] = set()
    for first in models:
        if first in state:
            continue
        state[first] = 1
        path = [first]
        pending = [iter(models[first].fallbacks)]
        while pending:
            target = next(pending[-1], None)
            if target is None:
                pending.pop()
                state[path.pop()] = 2
            elif state.get(target) == 1:
                ring = path[path.index(target) :]
                if frozenset(ring) not in told:
                    told.add(frozenset(ring))
                    way = " -> ".join([*ring, target])
                    yield Fault(
                        f"{names.models[target]}.fallbacks", f"go round in a circle: {way}; take one of them out"
                    )
            elif target not in state and target in models:
                state[target] = 1
                path.append(target)
                pending.append(iter(models[target].fallbacks))


def weighted(
    name: str,
    weights: Mapping[str, float],
    *,
    sticky: bool,
    place: str,
    origin: str,
    models: Mapping[str, Model],
    names: Names,
) -> tuple[WeightedAlias, list[Fault]]:
    """A weighted alias, its models resolved; those of weight 0 get nothing and are left out."""
    faults: list[Fault] = []
    targets: dict[str, float] = {}
    for written, weight in weights.items():
        where = f"{place}.models.{written}"
        target = names.resolve(written)
        if target is None:
            faults.append(
                Fault(
                    where,
                    "is this alias itself: name a model" if written == name else _own(names.unknown(written), written),
                )
            )
        elif target in targets:
            faults.append(Fault(where, f"is an alias of {target}, which is named too: keep one"))
        else:
            found = models.get(target)
            if found is not None and found.role == "guard":
                faults.append(Fault(where, "is a guard, which answers no client"))
            targets[target] = weight
    return WeightedAlias(
        name, tuple((key, share) for key, share in targets.items() if share > 0), sticky, origin
    ), faults


def _own(words: str, name: str) -> str:
    """The place ends with the name already."""
    return words.removeprefix(f"{name} ")
