"""What the store holds when a control plane begins to lead."""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.events import Cordon, ServingSet
from controlplane.loop import Intent
from controlplane.services.people import Known
from controlplane.services.people import read as read_people
from controlplane.store.port import Transaction
from controlplane.store.values import (
    ApiKey,
    Enrolled,
    Hold,
    NodeIntent,
    Scope,
    StoredModel,
    StoredSecret,
    StoredSetting,
)


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything of one moment."""

    secrets: tuple[StoredSecret, ...]
    keys: tuple[ApiKey, ...]
    people: Known
    identities: tuple[Enrolled, ...]
    scopes: tuple[Scope, ...]
    models: Mapping[str, StoredModel]
    settings: tuple[StoredSetting, ...]
    nodes: Mapping[str, NodeIntent]
    holds: tuple[Hold, ...]

    @property
    def labels(self) -> dict[str, Mapping[str, str]]:
        """The labels that people gave nodes, by id."""
        return {name: node.labels for name, node in self.nodes.items() if node.labels}

    def intent(self, *, stopped: bool) -> Intent:
        """What the loop must know from the start. ``stopped``: the cluster setting
        ``serving.stopped``."""
        by = next((row.updated_by for row in self.settings if row.name == "serving.stopped"), "")
        return Intent(
            cordons={name: node.cordon for name, node in self.nodes.items() if node.cordon is not None},
            labels=self.labels,
            holds={hold.domain: Cordon(hold.reason, hold.actor, hold.at) for hold in self.holds},
            serving=ServingSet(stopped, by if stopped else ""),
        )


def remember(tx: Transaction, candidate: StoredSecret) -> Remembered:
    """Read it all. ``candidate`` becomes the secret of engines'
    keys if there is none yet."""
    return Remembered(
        secrets=tx.secrets.begin(candidate),
        keys=tx.keys.all(),
        people=read_people(tx),
        identities=tx.identities.all(),
        scopes=tx.scopes.all(),
        models={row.name: row for row in tx.models.all()},
        settings=tx.settings.all(),
        nodes=tx.intents.nodes(),
        holds=tx.intents.holds(),
    )
