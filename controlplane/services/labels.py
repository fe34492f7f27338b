"""Labels that people give to nodes; they lie over the agent's own (PLC-09)."""

from collections.abc import Callable, Mapping
from typing import Any

from gevent.lock import RLock

from controlplane.events import LabelsSet
from controlplane.inbox import Inbox
from controlplane.planning.view import FleetView, NodeView
from controlplane.services.changes import Asked, Changed, Changes
from controlplane.services.errors import Refused, not_found
from controlplane.services.names import content_version, label_faults, location
from controlplane.services.recovery import learn_if_uncertain
from controlplane.store.access import StoreAccess
from controlplane.store.port import Transaction
from llmgw.runtime.faults import did_you_mean

Plain = dict[str, Any]


class Labels:
    """The labels of nodes, read from memory; a change goes through the store first."""

    def __init__(
        self,
        view: Callable[[], FleetView],
        *,
        inbox: Inbox,
        store: StoreAccess,
        changes: Changes,
        labels: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._view = view
        self._inbox = inbox
        self._store = store
        self._changes = changes
        self._set = {node: dict(given) for node, given in labels.items() if given}
        self._lock = RLock()

    def given(self, node_id: str) -> Mapping[str, str]:
        """What people gave a node."""
        return self._set.get(node_id, {})

    def one(self, node_id: str) -> Plain:
        """A node's labels: all in force, what people gave, what its agent says, where it
        is. Raises ``Refused``."""
        return self._shown(self._known(node_id))

    def replace(self, asked: Asked, node_id: str, labels: Mapping[str, str]) -> Plain:
        """Make these the labels that people gave a node. Raises ``Refused``."""
        return self._change(asked, node_id, labels, lambda _: dict(labels))

    def merge(self, asked: Asked, node_id: str, labels: Mapping[str, str | None]) -> Plain:
        """Set some labels of a node, take away those that are ``None``. Raises ``Refused``."""

        def merged(before: Mapping[str, str]) -> dict[str, str]:
            fresh = {**before, **labels}
            return {key: value for key, value in fresh.items() if value is not None}

        return self._change(asked, node_id, labels, merged)

    def _change(
        self,
        asked: Asked,
        node_id: str,
        labels: Mapping[str, str | None],
        fresh: Callable[[Mapping[str, str]], dict[str, str]],
    ) -> Plain:
        node = self._known(node_id)
        faults = label_faults(labels, "labels")
        if faults:
            raise Refused("validation_failed", "the request has faults", status=422, faults=faults)

        def work(tx: Transaction) -> Changed[dict[str, str]]:
            before = _stored(tx, node_id)
            asked.expect(content_version(before))
            after = fresh(before)
            too_many = label_faults(after, "labels")
            if too_many:
                raise Refused("validation_failed", "the request has faults", status=422, faults=too_many)
            tx.intents.set_labels(node_id, after)
            return Changed(after, "labels", node_id, before, after)

        with self._lock:
            try:
                self._take(node_id, self._changes.make(asked, work))
            except Refused as error:
                learn_if_uncertain(
                    error, self._store, lambda tx: _stored(tx, node_id), lambda kept: self._take(node_id, kept)
                )
                raise
        return self._shown(node)

    def _take(self, node_id: str, labels: dict[str, str]) -> None:
        if labels:
            self._set[node_id] = labels
        else:
            self._set.pop(node_id, None)
        self._inbox.force(LabelsSet(node_id, labels))

    def _known(self, node_id: str) -> NodeView:
        nodes = self._view().nodes
        if node_id not in nodes:
            raise not_found("node", node_id, did_you_mean(node_id, nodes))
        return nodes[node_id]

    def _shown(self, node: NodeView) -> Plain:
        given = dict(self.given(node.id))
        own = dict(node.inventory.labels) if node.inventory else {}
        merged = {**own, **given}
        return {
            "node": node.id,
            "labels": merged,
            "labels_set": given,
            "labels_agent": own if node.inventory else None,
            "location": location(merged),
            "version": content_version(given),
        }


def _stored(tx: Transaction, node_id: str) -> dict[str, str]:
    intent = tx.intents.nodes().get(node_id)
    return dict(intent.labels) if intent else {}
