"""Models that are added, changed and removed live (CAT-06, CAT-09, CAT-12)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gevent.lock import BoundedSemaphore

from controlplane.catalog.load import STORE
from controlplane.catalog.model import Catalog, Model
from controlplane.catalog.source import MAX_SOURCES, SourceReport
from controlplane.services.catalog import CatalogService, Definition
from controlplane.services.changes import Asked, Changed, Changes, Principal
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.errors import Refused, conflict, invalid, not_found
from controlplane.services.fleet import find_model
from controlplane.services.moments import shown
from controlplane.services.outside import may_point
from controlplane.services.recovery import uncertain
from controlplane.services.scoped import owned
from controlplane.services.scopes import Scopes
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from controlplane.store.values import ApiKey, StoredModel
from llmgw.runtime.clock import Clock
from llmgw.runtime.faults import Fault, did_you_mean
from llmgw.runtime.logs import Logger

log = Logger("llmgw.catalog")

Plain = dict[str, Any]

AT_ONCE = 4
"""Sources that are looked at at once: each takes a thread that others may need."""

OF_OWNERS = 2
"""The same for owners of scopes together, beside the others: whose servers are slow
keeps no operator waiting."""

PATIENCE = 30.0
"""Seconds to wait for one's turn to look."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a change of a model did, or, on a dry run, would do. ``model`` is ``None`` if it
    is gone; ``keys`` are API keys that name it and no other model any more."""

    name: str
    model: Model | None
    stored: StoredModel | None
    definition: Definition | None = None
    sources: tuple[SourceReport, ...] = ()
    keys: tuple[str, ...] = ()
    dry_run: bool = False


class Models:
    """The models of the store and their changes. ``look`` looks at a source of weights,
    which takes seconds; ``state`` tells what routers are told of a model."""

    def __init__(
        self,
        catalog: CatalogService,
        *,
        changes: Changes,
        store: StoreAccess,
        settings: ClusterSettings,
        scopes: Scopes,
        look: Callable[[str], SourceReport],
        keys: Callable[[], Iterable[ApiKey]],
        state: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._store = store
        self._settings = settings
        self._scopes = scopes
        self._look = look
        self._keys = keys
        self._state = state
        self._clock = clock
        self._looking = {True: BoundedSemaphore(AT_ONCE), False: BoundedSemaphore(OF_OWNERS)}

    # ------------------------------------------------------------ reads

    def stored(self, name: str) -> StoredModel | None:
        """The stored model of that name."""
        return self._catalog.stored.get(name)

    def definition(self, name: str) -> Definition | None:
        """What a person wrote under the name of a model."""
        return self._catalog.definition(name)

    @staticmethod
    def shown(stored: StoredModel) -> Plain:
        """A stored model's version, and who changed it when."""
        return {
            "version": stored.version,
            "created_at": shown(stored.created_at),
            "created_by": stored.created_by,
            "updated_at": shown(stored.updated_at),
            "updated_by": stored.updated_by,
        }

    def names(
        self,
        principal: Principal,
        *,
        state: str | None = None,
        origin: str | None = None,
        owner: str | None = None,
        name: str | None = None,
        service_class: str | None = None,
    ) -> list[str]:
        """Names of the models that fit all of what is given and that the principal may
        see, in order. ``origin`` is ``store``, ``file`` for any, or a file's name;
        ``owner`` takes in all beneath."""
        return sorted(
            model.name
            for model in self._catalog.current.models.values()
            if principal.sees(model.owner)
            and (state is None or self._state(model.name) == state)
            and (origin is None or origin == model.origin or (origin == "file" and model.origin != STORE))
            and (owner is None or model.owner == owner or model.owner.startswith(f"{owner}/"))
            and (name is None or any(name in label for label in (model.name, *model.aliases)))
            and (service_class is None or model.service_class == service_class)
        )

    def visible(self, principal: Principal, name: str) -> Model:
        """A model by its name or alias, if the principal may see it. Raises ``Refused``."""
        models = self._catalog.current.models
        model = find_model(models.values(), name)
        if model is None or not principal.sees(model.owner):
            known = [
                label for row in models.values() if principal.sees(row.owner) for label in (row.name, *row.aliases)
            ]
            raise not_found("model", name, did_you_mean(name, known))
        return model

    def check(self, principal: Principal, name: str) -> tuple[SourceReport, ...]:
        """Look at the sources of a model now. Raises ``Refused``."""
        return self._states(principal, _sources(self.visible(principal, name)))

    def check_source(self, principal: Principal, source: str) -> SourceReport:
        """Look at one source. Raises ``Refused`` if too many others are looked at."""
        turn = self._looking[principal.everywhere]
        if not turn.acquire(timeout=PATIENCE):
            words = "many sources are being looked at, and their servers are slow: try again later"
            raise Refused("busy", words, status=503, retry_after=int(PATIENCE))
        try:
            return self._look(source)
        finally:
            turn.release()

    # ------------------------------------------------------------ changes

    def create(
        self, asked: Asked, name: str, definition: Definition, *, check: bool = True, dry_run: bool = False
    ) -> Outcome:
        """Add a model. Raises ``Refused``."""
        self._changes.recall(asked)
        known = self._catalog.stored.get(name)
        if known is not None:
            asked.expect(known.version)
            if not asked.principal.sees(str(known.definition.get("owner", ""))):
                raise conflict(f"the name {name!r} is taken: choose another")
            raise conflict(f"the model {name!r} exists already: change it with PUT, or with llmgw ctl model edit")
        return self._put(asked, name, definition, check=check, dry_run=dry_run)

    def put(
        self, asked: Asked, name: str, definition: Definition, *, check: bool = True, dry_run: bool = False
    ) -> Outcome:
        """Add a model or replace its definition. Raises ``Refused``."""
        self._changes.recall(asked)
        return self._put(asked, name, definition, check=check, dry_run=dry_run)

    def patch(self, asked: Asked, name: str, parts: Mapping[str, Any], *, dry_run: bool = False) -> Outcome:
        """Set parts of a model's definition, take away those that are ``None`` (CAT-12).
        Raises ``Refused``."""
        self._changes.recall(asked)
        with self._catalog.lock:
            before = self._changeable(asked.principal, name)
            fresh = {**before.definition, **parts}
            definition = {key: value for key, value in fresh.items() if key not in parts or value is not None}
            return self._put(asked, name, definition, check=False, dry_run=dry_run)

    def remove(self, asked: Asked, name: str, *, dry_run: bool = False) -> Outcome:
        """Remove a model; what runs of it is drained and stopped (CAT-07). Raises
        ``Refused`` if others point at it."""
        self._changes.recall(asked)
        with self._catalog.lock:
            before = self._changeable(asked.principal, name)
            asked.expect(before.version)
            pointing = _pointing(self._catalog.current, name)
            if pointing:
                raise conflict(f"the model {name!r} is named by {'; '.join(pointing)}: change those first")
            catalog = self._catalog.candidate(name, None)
            keys = tuple(
                f"{key.name} ({key.id})"
                for key in self._keys()
                if key.revoked_at is None and key.models is not None and set(key.models) == {name}
            )
            if not dry_run:
                self._commit(asked, name, before, None, catalog)
                log.info("model removed", model=name, actor=asked.actor)
        return Outcome(name, None, None, keys=keys, dry_run=dry_run)

    # ------------------------------------------------------------ inside

    def _put(self, asked: Asked, name: str, definition: Definition, *, check: bool, dry_run: bool) -> Outcome:
        before = self._catalog.stored.get(name)
        self._free(asked.principal, name)
        if before is not None:
            self._changeable(asked.principal, name)
        asked.expect(before.version if before else None)
        faults = self._owner_faults(asked.principal, name, definition)
        may_point(asked.principal, name, before.definition if before else {}, definition)
        self._base_reached(asked.principal, name, definition)
        model = self._catalog.candidate(name, definition, faults).models[name]
        states: tuple[SourceReport, ...] = ()
        if check and self._settings.value("sources.check"):
            old = self._catalog.current.models.get(name)
            known = set(_sources(old)) if old else set()
            states = self._states(asked.principal, [source for source in _sources(model) if source not in known])
            _refuse_unusable(states, name, definition)
        if dry_run:
            return Outcome(name, model, before, definition, states, dry_run=True)
        with self._catalog.lock:
            # Looking at sources took its time: the whole is validated as it is now.
            if self._catalog.stored.get(name) != before:
                raise self._changed_meanwhile(asked, name)
            catalog = self._catalog.candidate(name, definition)
            now = self._clock.now().timestamp()
            if before is None:
                after = StoredModel(name, dict(definition), now, asked.actor, now, asked.actor)
            else:
                after = replace(
                    before,
                    definition=dict(definition),
                    updated_at=now,
                    updated_by=asked.actor,
                    version=before.version + 1,
                )
            self._commit(asked, name, before, after, catalog)
        log.info("model added" if before is None else "model changed", model=name, actor=asked.actor)
        return Outcome(name, catalog.models[name], after, definition, states)

    def _commit(
        self, asked: Asked, name: str, before: StoredModel | None, after: StoredModel | None, catalog: Catalog
    ) -> None:
        def work(tx: Transaction) -> Changed[None]:
            kept = next((row for row in tx.models.all() if row.name == name), None)
            if (kept.version if kept else None) != (before.version if before else None):
                raise self._changed_meanwhile(asked, name)
            if after is None:
                tx.models.remove(name)
            else:
                _owner_exists(tx, name, after.definition)
                tx.models.put(after)
            return Changed(
                None,
                "model",
                name,
                dict(before.definition) if before else None,
                dict(after.definition) if after else None,
            )

        try:
            self._changes.make(asked, work)
        except Refused as error:
            if uncertain(error):
                self._catalog.learn(self._store)
            raise
        stored = {key: row for key, row in self._catalog.stored.items() if key != name}
        self._catalog.take(catalog, stored if after is None else {**stored, name: after})

    def _changed_meanwhile(self, asked: Asked, name: str) -> Refused:
        known = self._catalog.stored.get(name)
        asked.expect(known.version if known else None)
        return conflict(f"the model {name!r} was changed at the same time: read it again, then repeat")

    def _free(self, principal: Principal, name: str) -> None:
        """Raise ``Refused`` unless the name is free, or that of a stored model."""
        catalog = self._catalog.current
        if name in self._catalog.stored:
            return
        model = find_model(catalog.models.values(), name)
        if model is None and name not in catalog.aliases:
            return
        if model is None or not principal.sees(model.owner):
            raise conflict(f"the name {name!r} is taken: choose another")
        if model.name != name:
            raise conflict(f"{name!r} is an alias of the model {model.name}: name the model, or choose another name")
        raise Refused(
            "defined_in_file",
            f"the model {name!r} is written in {model.origin}: change it there, then reload the catalog "
            "(llmgw ctl catalog reload, or SIGHUP)",
            status=409,
        )

    def _changeable(self, principal: Principal, name: str) -> StoredModel:
        stored = self._catalog.stored.get(name)
        if stored is None:
            self._free(principal, name)
            self.visible(principal, name)  # there is none, so this says what is near
            raise not_found("model", name)
        owner = str(stored.definition.get("owner", ""))
        if not principal.sees(owner):
            raise conflict(f"the name {name!r} is taken: choose another")
        _may(principal, owner, f"the model {name}")
        return stored

    def _owner_faults(self, principal: Principal, name: str, definition: Definition) -> list[Fault]:
        """What is wrong with the owner beside what the catalog says. Raises ``Refused`` if
        the principal may not name it."""
        owner = definition.get("owner", "")
        if not isinstance(owner, str):
            return []  # a fault of the catalog's
        if not principal.reaches(owner):
            words = f"{owner!r} is not among the scopes of {principal.user}" if owner else "no owner is named"
            own = " or ".join(owned(principal))
            raise Refused("forbidden", f"{words}: set owner to {own}, or to a scope beneath", status=403)
        fault = self._scopes.unknown(owner) if owner else None
        return [Fault(f"models.{name}.owner", fault)] if fault else []

    def _base_reached(self, principal: Principal, name: str, definition: Definition) -> None:
        """Raise ``Refused`` if it is an adapter on a model of others: what that model's
        engines load is for its owner to say (CAT-14, API-08)."""
        adapter = definition.get("adapter")
        written = adapter.get("base") if isinstance(adapter, Mapping) else None
        base = find_model(self._catalog.current.models.values(), written) if isinstance(written, str) else None
        if base is not None and not principal.reaches(base.owner):
            raise Refused(
                "forbidden",
                f"models.{name}.adapter.base: {principal.user} does not own the model {written}, whose engines would "
                "load the adapter: its owner, or an operator, adds it",
                status=403,
            )

    def _states(self, principal: Principal, sources: Iterable[str]) -> tuple[SourceReport, ...]:
        return tuple(self.check_source(principal, source) for source in list(dict.fromkeys(sources))[:MAX_SOURCES])


def _may(principal: Principal, owner: str, what: str) -> None:
    if not principal.reaches(owner):
        whose = f"belongs to {owner}" if owner else "belongs to no scope"
        raise Refused("forbidden", f"{what} {whose}, which {principal.user} does not own", status=403)


def _owner_exists(tx: Transaction, name: str, definition: Definition) -> None:
    """Once more where the change is made: the scope may have gone meanwhile."""
    owner = definition.get("owner")
    if owner and all(scope.path != owner for scope in tx.scopes.all()):
        raise invalid(f"models.{name}.owner", f"the scope {owner!r} was just removed")


def _sources(model: Model) -> list[str]:
    found = [profile.source for profile in model.profiles]
    return [*found, model.adapter.source] if model.adapter else found


def _refuse_unusable(states: Sequence[SourceReport], name: str, definition: Definition) -> None:
    bad = {state.source: state.words for state in states if not state.usable}
    if not bad:
        return
    places = {
        profile["source"]: f"models.{name}.profiles[{index}].source"
        for index, profile in enumerate(definition.get("profiles", ()))
    }
    raise Refused(
        "source_unusable",
        "nothing was changed: a source of the weights cannot be used (check=false, or --no-check, skips this look)",
        status=422,
        faults=[Fault(places.get(source, f"models.{name}.adapter.source"), words) for source, words in bad.items()],
    )


def _pointing(catalog: Catalog, name: str) -> list[str]:
    """What else names the model, in words."""
    found = [f"fallbacks of {model.name}" for model in catalog.models.values() if name in model.fallbacks]
    found += [
        f"the adapter {model.name}" for model in catalog.models.values() if model.adapter and model.adapter.base == name
    ]
    return found + [
        f"the alias {alias.name}"
        for alias in catalog.aliases.values()
        if any(name == target for target, _ in alias.targets)
    ]
