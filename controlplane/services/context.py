"""All services together, as the composition root hands them to the API."""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.journal import Entry, Journal
from controlplane.services.catalog import CatalogService
from controlplane.services.fleet import Fleet, Plain
from controlplane.services.keys import Keys
from controlplane.services.status import Status
from controlplane.settings import SETTINGS
from llmgw.runtime.settings import REQUIRED, Loaded


@dataclass(frozen=True)
class Services:
    """What views may use. ``metrics`` renders the Prometheus text."""

    fleet: Fleet
    status: Status
    keys: Keys
    catalog: CatalogService
    journal: Journal
    settings: Loaded
    metrics: Callable[[], bytes]

    def events(
        self, limit: int, model: str | None = None, node: str | None = None, kind: str | None = None
    ) -> list[Entry]:
        """The latest decisions, newest first."""
        found: list[Entry] = []
        for entry in reversed(self.journal.recent):
            if (
                (model is None or entry.model == model)
                and (node is None or entry.node == node)
                and (kind is None or entry.kind == kind)
            ):
                found.append(entry)
                if len(found) == limit:
                    break
        return found

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
        ]


def _shown(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
