"""What carries out the effects of a term's loop."""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.events import (
    CloseSession,
    Commit,
    Decision,
    DropEngineKeys,
    EpochWanted,
    Note,
    PublishRoutes,
    Send,
)
from controlplane.journal import Journal
from controlplane.leadership.driver import Leadership
from controlplane.listeners.agents import AgentListener
from controlplane.publish.providers import ProviderKeys
from controlplane.publish.table import Publisher
from llmgw.runtime.logs import Logger

decisions = Logger("llmgw.decision")


class Carriers:
    """See the module. ``drop_keys`` takes the generations of engine keys that no engine has any
    more."""

    def __init__(
        self,
        *,
        agents: AgentListener,
        journal: Journal,
        publisher: Publisher,
        providers: ProviderKeys,
        leadership: Leadership,
        drop_keys: Callable[[DropEngineKeys], None],
    ) -> None:
        self._journal = journal
        self._publisher = publisher
        self._providers = providers
        self.by_effect: Mapping[type[Any], Callable[[Any], None]] = {
            Send: lambda effect: agents.send(effect.session, effect.message),
            CloseSession: lambda effect: agents.close(effect.session, effect.refuse),
            Commit: self._commit,
            Note: self._note,
            EpochWanted: lambda effect: leadership.want_epoch(effect.seen),
            PublishRoutes: self._publish,
            DropEngineKeys: drop_keys,
        }
        """By the effect's type, as ``Driver`` wants them."""

    def _commit(self, effect: Commit) -> None:
        for decision in effect.decisions:
            _tell(decision)
        self._journal.commit(effect.batch, effect.decisions)

    def _note(self, effect: Note) -> None:
        _tell(effect.decision)
        self._journal.note(effect.decision)

    def _publish(self, effect: PublishRoutes) -> None:
        self._providers.need(effect.key_files.values())
        self._publisher.set_routes(effect)


WARNED_OF = ("lease-in-doubt",)
"""Kinds that somebody should look at; the others are what goes on all day."""


def _tell(decision: Decision) -> None:
    named = {"model": decision.model, "replica": decision.replica, "node": decision.node}
    tell = decisions.warning if decision.kind in WARNED_OF else decisions.info
    tell(decision.kind, why=decision.reason, **{name: value for name, value in named.items() if value})
