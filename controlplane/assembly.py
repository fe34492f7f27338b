"""Puts the services together, for ``controlplane.term``, out of the parts that live as
long as the term."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from controlplane.background import Background
from controlplane.catalog.source import SourceReport, check_source, source_options
from controlplane.driver import Driver
from controlplane.identities import Credentials
from controlplane.inbox import Inbox
from controlplane.journal import Journal
from controlplane.leadership.driver import Leadership
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.routers import RouterSeen
from controlplane.metrics import Metrics, Sources
from controlplane.offhub import off_hub
from controlplane.planning.view import FleetView
from controlplane.publish.table import Publisher
from controlplane.remembered import Remembered
from controlplane.services.audit import Audit
from controlplane.services.auth import Authenticator
from controlplane.services.catalog import CatalogService
from controlplane.services.certificates import problems
from controlplane.services.changes import Changes
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.context import Services
from controlplane.services.events import EventService
from controlplane.services.fleet import Fleet
from controlplane.services.holds import Holds
from controlplane.services.identities import Identities
from controlplane.services.joining import Joining
from controlplane.services.keys import Keys
from controlplane.services.labels import Labels
from controlplane.services.lead import Lead
from controlplane.services.losses import Losses
from controlplane.services.models import Models
from controlplane.services.people import People
from controlplane.services.scopes import Scopes
from controlplane.services.secrets import Secrets
from controlplane.services.status import Identity, Problem, Status
from controlplane.settings import open_doors, sent_nowhere, short_settling
from controlplane.store.access import StoreThreads
from llmgw.runtime.clock import Clock
from llmgw.runtime.settings import Loaded
from llmgw.runtime.stall import StallDetector


@dataclass(frozen=True)
class Parts:
    """What services stand on. ``view`` is the writer's, ``routers`` those that reported,
    ``local_token`` the digest of the token in the state directory."""

    identity: Identity
    settings: Loaded
    clock: Clock
    store: StoreThreads
    changes: Changes
    cluster: ClusterSettings
    catalog: CatalogService
    inbox: Inbox
    publisher: Publisher
    journal: Journal
    background: Background
    events: EventService
    driver: Driver
    credentials: Credentials
    leadership: Leadership
    identities: Identities
    joining: Joining
    agents: AgentListener
    stall: StallDetector
    view: Callable[[], FleetView]
    routers: Callable[[], Iterable[RouterSeen]]
    local_token: Callable[[], str]
    keys: Keys


def assemble(parts: Parts, kept: Remembered) -> Services:
    """The services, with what the store held at the start."""
    clock, store, changes, inbox = parts.clock, parts.store, parts.changes, parts.inbox
    fleet = Fleet(parts.view, publisher=parts.publisher, inbox=inbox, store=store, changes=changes, clock=clock)
    scopes = Scopes(store, changes, clock, models=lambda: parts.catalog.current.models, scopes=kept.scopes)
    people = People(store, changes, clock, kept.people)
    lead = Lead(parts.leadership, parts.view, clock, store=store, ha=bool(parts.settings["ha.enabled"]))
    losses = Losses(parts.view, inbox=inbox, changes=changes, clock=clock)
    return Services(
        fleet=fleet,
        status=Status(
            parts.identity,
            fleet=fleet,
            catalog=parts.catalog,
            settings=parts.cluster,
            scopes=scopes,
            store=store,
            clock=clock,
            routers=parts.routers,
            refused=lambda: parts.identities.refused,
            journal=parts.journal,
            lead=lead.read,
            more=(
                lambda: _of_background(parts.background),
                lambda: problems(parts.credentials, parts.identities, clock.now().timestamp()),
                losses.problems,
                lead.problems,
                lambda: [Problem("exposed", name, words) for name, words in open_doors(parts.settings).items()],
                lambda: [
                    Problem("setting", name, words)
                    for name, words in (short_settling(parts.settings) | sent_nowhere(parts.settings)).items()
                ],
            ),
        ),
        keys=parts.keys,
        models=Models(
            parts.catalog,
            changes=changes,
            store=store,
            settings=parts.cluster,
            scopes=scopes,
            look=lambda source: _look(parts, source),
            keys=parts.keys.all,
            state=fleet.state,
            clock=clock,
        ),
        cluster=parts.cluster,
        scopes=scopes,
        secrets=Secrets(store, changes, inbox=inbox, fleet=fleet, clock=clock, generations=kept.secrets),
        identities=parts.identities,
        joining=parts.joining,
        losses=losses,
        labels=Labels(parts.view, inbox=inbox, store=store, changes=changes, labels=kept.labels),
        holds=Holds(fleet.inside, inbox=inbox, store=store, changes=changes, clock=clock, holds=kept.holds),
        audit=Audit(store, clock),
        usage=parts.background.usage,
        catalog=parts.catalog,
        journal=parts.journal,
        settings=parts.settings,
        metrics=_metrics(parts, fleet).render,
        auth=Authenticator(people, parts.local_token, clock),
        people=people,
        changes=changes,
        events=parts.events,
        clock=clock,
    )


def _metrics(parts: Parts, fleet: Fleet) -> Metrics:
    return Metrics(
        Sources(
            identity=parts.identity,
            fleet=fleet,
            driver=parts.driver,
            inbox=parts.inbox,
            agents=parts.agents,
            credentials=parts.credentials,
            leadership=parts.leadership,
            identities=parts.identities,
            journal=parts.journal,
            store=parts.store,
            background=parts.background,
            stall=parts.stall,
            clock=parts.clock,
            routers=parts.routers,
        )
    ).start()


def _look(parts: Parts, source: str) -> SourceReport:
    """Look at a source of weights, off the hub (CAT-09)."""
    options = source_options(parts.settings, private=parts.cluster.value("sources.private"))
    return off_hub(check_source, source, options)


def _of_background(background: Background) -> Iterator[Problem]:
    for part, words in background.problems:
        yield Problem("store", part, words)
