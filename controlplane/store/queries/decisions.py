"""What people decided about models, nodes and the cluster."""

from collections.abc import Mapping

from sqlalchemy import or_, select

from controlplane.events import Cordon
from controlplane.store.queries.sql import Sql, values_of, whole
from controlplane.store.tables import holds, models, node_intents, settings
from controlplane.store.values import Hold, NodeIntent, StoredModel, StoredSetting


class ModelQueries:
    """See ``port.Models``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self) -> tuple[StoredModel, ...]:
        """See the port."""
        found = (StoredModel(**row._asdict()) for row in self._sql.rows(select(models)))
        return tuple(sorted(found, key=lambda model: model.name))

    def put(self, model: StoredModel) -> None:
        """See the port."""
        self._sql.put(models, whole(models, values_of(model) | {"definition": dict(model.definition)}))

    def remove(self, name: str) -> None:
        """See the port."""
        self._sql.connection.execute(models.delete().where(models.c.name == name))


class SettingQueries:
    """See ``port.SettingsTable``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def all(self) -> tuple[StoredSetting, ...]:
        """See the port."""
        found = (StoredSetting(**row._asdict()) for row in self._sql.rows(select(settings)))
        return tuple(sorted(found, key=lambda setting: setting.name))

    def put(self, setting: StoredSetting) -> None:
        """See the port."""
        # A text is a JSON value here, and no column of a length: what it may be, its setting says.
        whole(settings, values_of(setting, "value"))
        self._sql.put(settings, values_of(setting))

    def remove(self, name: str) -> None:
        """See the port."""
        self._sql.connection.execute(settings.delete().where(settings.c.name == name))


class IntentQueries:
    """See ``port.Intents``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def nodes(self) -> dict[str, NodeIntent]:
        """See the port."""
        wanted = or_(node_intents.c.cordon_at.is_not(None), node_intents.c.labels.is_not(None))
        return {
            row.node_id: NodeIntent(
                None
                if row.cordon_at is None
                else Cordon(row.cordon_reason or "", row.cordon_actor or "", row.cordon_at),
                row.labels or {},
            )
            for row in self._sql.rows(select(node_intents).where(wanted))
        }

    def set_cordon(self, node_id: str, cordon: Cordon | None) -> None:
        """See the port."""
        values = {
            "node_id": node_id,
            "cordon_reason": cordon.reason if cordon else None,
            "cordon_actor": cordon.actor if cordon else None,
            "cordon_at": cordon.at if cordon else None,
        }
        self._sql.put(node_intents, whole(node_intents, values))

    def set_labels(self, node_id: str, labels: Mapping[str, str]) -> None:
        """See the port."""
        values = {"node_id": node_id, "labels": dict(labels) or None}
        self._sql.put(node_intents, whole(node_intents, values))

    def holds(self) -> tuple[Hold, ...]:
        """See the port."""
        found = (Hold(**row._asdict()) for row in self._sql.rows(select(holds)))
        return tuple(sorted(found, key=lambda hold: hold.domain))

    def put_hold(self, hold: Hold) -> None:
        """See the port."""
        self._sql.put(holds, whole(holds, values_of(hold)))

    def remove_hold(self, domain: str) -> None:
        """See the port."""
        self._sql.connection.execute(holds.delete().where(holds.c.domain == domain))
