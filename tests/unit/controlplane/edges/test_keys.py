"""API keys when the store leaves open what it did."""

import time
from pathlib import Path

import gevent
import pytest

from controlplane.catalog.model import Catalog
from controlplane.events import PublishRoutes
from controlplane.publish.table import Publisher
from controlplane.services import recovery
from controlplane.services.changes import Asked, Changes, Principal
from controlplane.services.errors import Refused
from controlplane.services.keys import Keys, digest
from controlplane.store import access
from controlplane.store.access import StoreThreads
from controlplane.store.database import Database
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import Grant
from llmgw.runtime.clock import SystemClock
from llmgw.wire.routing import decode_table

ASKED = Asked(Principal("ada", "token-1", (Grant("admin"),)), "test")


class SlowCommit(Database):
    """Commits slowly when told to."""

    delay = 0.0

    def transact(self, work, before_commit=None, wanted=lambda: True):
        def late() -> None:
            before_commit()
            time.sleep(self.delay)

        return super().transact(work, late, wanted)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access, "COMMIT_ALLOWANCE", 0.1)
    monkeypatch.setattr(recovery, "PAUSE", 0.05)
    backend, clock = Sqlite(tmp_path / "llmgw.db"), SystemClock()
    store = StoreThreads(lambda: SlowCommit(backend), lambda: Database(backend, write=False), timeout=0.4).start()
    publisher = Publisher("b")
    publisher.set_routes(PublishRoutes((), settling=False))
    changes = Changes(store, clock)
    yield Keys(store, changes, publisher=publisher, clock=clock, catalog=Catalog, keys=()), publisher
    store.close()


def test_a_key_is_published_by_its_digest(keys) -> None:
    """SEC-03, RTR-12: routers get the digest, never the key; a revoked key leaves the table."""
    service, publisher = keys
    key, text = service.create(ASKED, "n")
    (routed,) = decode_table(publisher.body).keys
    assert (routed.id, routed.digest, routed.models) == (key.id, digest(text), None)
    assert text.encode() not in publisher.body
    service.revoke(ASKED, key.id)
    assert decode_table(publisher.body).keys == ()


def test_a_commit_of_unknown_outcome_is_learned_later(keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: the answer does not claim that nothing changed, and what was kept shows up by itself."""
    service, publisher = keys
    monkeypatch.setattr(SlowCommit, "delay", 0.6)
    with pytest.raises(Refused) as refused:
        service.create(ASKED, "n")
    assert refused.value.code == "store_unavailable" and "not known yet" in str(refused.value)
    assert service.all() == ()
    monkeypatch.setattr(SlowCommit, "delay", 0.0)
    with gevent.Timeout(20):
        while not service.all():
            gevent.sleep(0.02)
    assert [key.id for key in service.all()] == [key.id for key in decode_table(publisher.body).keys]
