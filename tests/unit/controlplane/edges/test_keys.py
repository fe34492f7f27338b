"""API keys when the store leaves open what it did."""

import time
from pathlib import Path

import gevent
import pytest

from controlplane.catalog.model import Catalog
from controlplane.publish.table import Publisher
from controlplane.services import recovery
from controlplane.services.errors import Refused
from controlplane.services.keys import Keys, digest
from controlplane.store import writer as writer_module
from controlplane.store.sqlite import SqliteStore
from controlplane.store.writer import StoreWriter
from llmgw.runtime.clock import SystemClock
from llmgw.wire.routing import decode_table


class SlowCommit(SqliteStore):
    """Commits slowly when told to."""

    delay = 0.0

    def add_key(self, key) -> None:
        gate = self.before_commit

        def late() -> None:
            gate()
            time.sleep(self.delay)

        self.before_commit = late
        super().add_key(key)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer_module, "COMMIT_ALLOWANCE", 0.1)
    monkeypatch.setattr(recovery, "PAUSE", 0.05)
    store = StoreWriter(lambda: SlowCommit(tmp_path / "llmgw.db"), timeout=0.2).start()
    publisher = Publisher("b")
    publisher.set_routes((), settling=False)
    yield Keys(store, publisher, SystemClock(), Catalog, ()), publisher
    store.close()


def test_a_key_is_published_by_its_digest(keys) -> None:
    """SEC-03, RTR-12: routers get the digest, never the key; a revoked key leaves the table."""
    service, publisher = keys
    key, text = service.create("n", None, None, "ada")
    (routed,) = decode_table(publisher.body).keys
    assert (routed.id, routed.digest, routed.models) == (key.id, digest(text), None)
    assert text.encode() not in publisher.body
    service.revoke(key.id, "ada")
    assert decode_table(publisher.body).keys == ()


def test_a_commit_of_unknown_outcome_is_learned_later(keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03: the answer does not claim that nothing changed, and what was kept shows up by itself."""
    service, publisher = keys
    monkeypatch.setattr(SlowCommit, "delay", 0.6)
    with pytest.raises(Refused) as refused:
        service.create("n", None, None, "ada")
    assert refused.value.code == "store_unavailable" and "not known yet" in str(refused.value)
    assert service.all() == ()
    with gevent.Timeout(5):
        while not service.all():
            gevent.sleep(0.02)
    assert [key.id for key in service.all()] == [key.id for key in decode_table(publisher.body).keys]
