"""A store with something in every table and every column."""

from dataclasses import replace

from sqlalchemy import func, select

from controlplane.events import Cordon
from controlplane.store.database import Database
from controlplane.store.move import reading
from controlplane.store.port import Transaction
from controlplane.store.tables import metadata
from controlplane.store.values import (
    AdminToken,
    ApiKey,
    AuditEntry,
    Enrolled,
    EventEntry,
    Grant,
    Hold,
    IdempotencyRecord,
    JoinToken,
    RequestEntry,
    Scope,
    StoredModel,
    StoredSecret,
    StoredSetting,
    User,
)
from tests.unit.controlplane.store.places import count_batch, take_epoch

NOW = 1_800_000_000.25
TEXT = "Zoë's “näme” 🚀 %s ? \\ ' \" ; --"

REQUEST = RequestEntry(
    at=NOW,
    id="req-1",
    key="key-1",
    scope="acme/ml",
    model="big",
    status=200,
    router="router-1",
    asked="alias",
    replica="big-1",
    stream=True,
    first_byte=0.1,
    duration=1 / 3,
    prompt_tokens=2**33,
    completion_tokens=7,
    cached_tokens=0,
    retried=("first: refused", TEXT),
)


def fill(tx: Transaction) -> None:
    """Write it all."""
    take_epoch(tx, 41)
    tx.secrets.begin(StoredSecret("engine", 1, "0a", bytes(range(256)), NOW))
    tx.secrets.add(StoredSecret("engine", 2, "0b", bytes(256), NOW, TEXT[:100]))
    tx.scopes.put(Scope("acme", TEXT, NOW, "ada"))
    tx.scopes.put(Scope("acme/ml", "ML", NOW, "ada", version=3))
    key = ApiKey("key-1", TEXT, "sk-llmgw-abcd", "1" * 64, NOW, "ada", ("big", "small"), "acme/ml", NOW + 1e7)
    tx.keys.add(key)
    tx.keys.add(replace(key, id="key-2", digest="2" * 64, models=None, scope="", expires_at=None))
    tx.keys.revoke("key-2", NOW + 0.1, "ada")
    tx.people.put_user(User("ada", (Grant("admin"), Grant("owner", "acme/ml")), NOW, "init"))
    tx.people.put_user(User("eve", (), NOW, "ada", disabled_at=NOW + 0.7, version=2))
    tx.people.add_token(AdminToken("tok-1", "ada", "laptop", "adm-llmgw-abcd", "3" * 64, NOW, "init", NOW + 5.5))
    tx.people.revoke_token("tok-1", NOW + 1, "ada")
    tx.identities.put(Enrolled("node", "node-9", NOW, "ada", "0A", NOW, NOW + 5, NOW + 0.5, TEXT, TEXT, NOW + 0.5, 3))
    tx.identities.put(Enrolled("router", "edge-1", NOW, TEXT))
    tx.identities.add_token(
        JoinToken("join-1", "5" * 64, "node", "gpu-7", NOW, "ada", NOW + 900, NOW + 1, "192.0.2.7:5")
    )
    profile = {"engine": "sim", "source": "sim:", "min_memory_gb": 0.1, "cpu_cores": 1, "env": {"A": TEXT}}
    definition = {"scaling": {"min": 0, "max": 0}, "profiles": [profile]}
    anything = {"ratio": 0.1, "large": 2**53, "none": None, "list": [1, [TEXT, False]]}
    tx.models.put(StoredModel("big", definition, NOW, "ada", NOW + 2, "eve", version=9))
    tx.settings.put(StoredSetting("requests.log", False, NOW, "ada"))
    tx.settings.put(StoredSetting("engines.allow", ["vllm --x"], NOW, "ada", version=2))
    tx.intents.set_cordon("node-1", Cordon(TEXT, "ada", "2026-01-01T00:00:00Z"))
    tx.intents.set_labels("node-2", {"llmgw.io/rack": "r1"})
    tx.intents.put_hold(Hold("llmgw.io/rack=r1", TEXT, "ada", "2026-01-01T00:00:00Z"))
    tx.audit.add(AuditEntry(NOW, "ada (cli)", "ada", "tok-1", "keys.create", "key", "key-1", None, anything, "r"))
    tx.idempotency.add(IdempotencyRecord("k", "ada", "4" * 64, "key-1", NOW))
    count_batch(tx, "router-1", "boot", 7, (REQUEST, replace(REQUEST, id="req-2", at=NOW + 1, **UNKNOWN)), log=True)
    count_batch(tx, "router-2", "boot", 1, (), log=True)
    tx.events.add((EventEntry("e-1", NOW, "place", TEXT, 41, "big", "big-1", "node-1", {"free_gb": 1.5, "of": [1]}),))
    tx.events.add((EventEntry("e-2", NOW, "retry", "asked"),))


UNKNOWN = {"first_byte": None, "prompt_tokens": None, "completion_tokens": None, "cached_tokens": None, "retried": ()}


def filled(backend) -> None:
    """Fill the store of ``backend``, and see that no table was left out."""
    database = Database(backend).open()
    database.transact(fill)
    database.close()
    with reading(backend) as connection:
        empty = [
            table.name
            for table in metadata.sorted_tables
            if not connection.scalar(select(func.count()).select_from(table))
        ]
    assert empty == [], "a new table needs a row here"


def content(tx: Transaction) -> dict[str, object]:
    """Everything that can be asked, as the program sees it."""
    return {
        "keys": tx.keys.all(),
        "secret": tx.secrets.all("engine"),
        "scopes": tx.scopes.all(),
        "users": tx.people.users(),
        "tokens": tx.people.tokens(),
        "identities": tx.identities.all(),
        "models": tx.models.all(),
        "settings": tx.settings.all(),
        "nodes": tx.intents.nodes(),
        "holds": tx.intents.holds(),
        "audit": tx.audit.page(100).items,
        "idempotency": tx.idempotency.find("ada", "k"),
        "usage": tx.usage.rows(0, 4e9, by=("hour", "key", "scope", "model")),
        "requests": tx.usage.requests(100).items,
        "events": tx.events.page(100).items,
    }


def seen(backend) -> dict[str, object]:
    """What the store of ``backend`` answers."""
    database = Database(backend).open()
    try:
        return database.transact(content)
    finally:
        database.close()


__all__ = ["NOW", "REQUEST", "content", "fill", "filled", "seen"]
