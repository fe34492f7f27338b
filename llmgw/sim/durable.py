"""What the control planes of a simulated site find again after a crash: what people
decided, which is in the store, their files, and the journals of committed decisions."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane import events
from controlplane.catalog.model import Catalog
from controlplane.fleet.keys import EngineKeys
from controlplane.loop import Intent
from controlplane.publish.providers import KeyFile

GENERATION = "1-sim"
"""The generation of the engines' secret."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A decision on disk, and since when."""

    at: float
    epoch: int
    decision: events.Decision


@dataclass
class Durable:
    """See the module. One for all control planes of a site."""

    catalog: Catalog
    enrolled: set[str]
    """The nodes that may open a session."""
    cordons: dict[str, events.Cordon] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    holds: dict[str, events.Cordon] = field(default_factory=dict)
    serving: events.ServingSet = field(default_factory=lambda: events.ServingSet(stopped=False))
    key_files: dict[str, KeyFile] = field(default_factory=dict)
    """Files with keys of external models; one that is not here does not exist."""
    engine_keys: EngineKeys = field(default_factory=lambda: EngineKeys({GENERATION: b"simulated-engine-secret"}))
    journal: list[JournalEntry] = field(default_factory=list)
    decided: dict[str, list[JournalEntry]] = field(default_factory=dict)
    """The journal by replica."""
    starts: int = 0
    """Processes and terms so far: their names are drawn from it."""
    journal_delay: float = 0.0
    """Seconds a commit may take on top of the usual."""

    def intent(self) -> Intent:
        """What people decided, as the store has it."""
        labels = {node: dict(given) for node, given in self.labels.items()}
        return Intent(dict(self.cordons), labels, dict(self.holds), self.serving)

    def read_keys(self, files: Iterable[str]) -> dict[str, KeyFile]:
        """What key files hold now."""
        missing = KeyFile(fault="its key file cannot be read: No such file or directory")
        return {file: self.key_files.get(file, missing) for file in files}

    def placement(self, replica: str) -> events.Decision | None:
        """The decision that placed a replica."""
        entries = self.decided.get(replica, ())
        return next((entry.decision for entry in entries if entry.decision.kind == "place"), None)

    def append(self, entry: JournalEntry) -> None:
        """A decision is durable."""
        self.journal.append(entry)
        if entry.decision.replica is not None:
            self.decided.setdefault(entry.decision.replica, []).append(entry)
