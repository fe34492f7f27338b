"""All services together, as the composition root hands them to the API."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controlplane.clustersettings import FILE_SECTION
from controlplane.journal import Journal
from controlplane.services.audit import Audit
from controlplane.services.auth import Authenticator
from controlplane.services.catalog import CatalogService
from controlplane.services.changes import Changes
from controlplane.services.cluster_settings import ClusterSettings
from controlplane.services.events import EventService
from controlplane.services.fleet import Fleet, Plain
from controlplane.services.holds import Holds
from controlplane.services.identities import Identities
from controlplane.services.joining import Joining
from controlplane.services.keys import Keys
from controlplane.services.labels import Labels
from controlplane.services.losses import Losses
from controlplane.services.models import Models
from controlplane.services.people import People
from controlplane.services.scopes import Scopes
from controlplane.services.secrets import Secrets
from controlplane.services.status import Status
from controlplane.services.usage import UsageService
from controlplane.settings import SETTINGS
from llmgw.runtime.clock import Clock
from llmgw.runtime.settings import REQUIRED, Loaded


@dataclass(frozen=True)
class Services:
    """What views may use. ``metrics`` renders the Prometheus text: its
    length, and its parts."""

    fleet: Fleet
    status: Status
    keys: Keys
    catalog: CatalogService
    journal: Journal
    settings: Loaded
    metrics: Callable[[], tuple[int, Iterable[bytes]]]
    auth: Authenticator
    people: People
    changes: Changes
    events: EventService
    clock: Clock
    models: Models
    cluster: ClusterSettings
    scopes: Scopes
    secrets: Secrets
    identities: Identities
    joining: Joining
    labels: Labels
    losses: Losses
    holds: Holds
    audit: Audit
    usage: UsageService

    def setting_values(self) -> list[Plain]:
        """Every setting with its value in force and where that came from. No setting
        holds a secret: those are in files that settings name."""
        return [
            {
                "name": row.name,
                "value": _shown(self.settings[row.name]),
                "origin": self.settings.origin(row.name),
                "default": None if row.default is REQUIRED else _shown(row.default),
                "help": row.help,
            }
            for row in SETTINGS.rows
            if not row.name.startswith(f"{FILE_SECTION}.")
        ]


def _shown(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
