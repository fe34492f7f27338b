"""Conformance of every database: models, settings, intents for nodes, holds."""

import math

from controlplane.events import Cordon
from controlplane.store.database import Database
from controlplane.store.values import Hold, NodeIntent, StoredModel, StoredSetting

CORDON = Cordon("disk", "ada", "2026-01-01T00:00:00Z")


def model(name: str, **more: object) -> StoredModel:
    fields = {"definition": {}, "created_at": 1.0, "created_by": "ada", "updated_at": 2.0, "updated_by": "eve"}
    return StoredModel(name, **{**fields, **more})


def test_a_model_keeps_its_definition(database: Database) -> None:
    """CAT-06: the tree as it was: order of names, types, text of any kind, nothing and false told apart."""
    tree = {"z": 1, "a": [True, False, None, 0, 1.5, ""], "t": "ü 🦙 \0 \ud800", "deep": {"x": {"y": {}}}, "big": 2**53}
    database.transact(lambda tx: tx.models.put(model("b", definition=tree)))
    database.transact(lambda tx: tx.models.put(model("A")))
    (upper, kept) = database.transact(lambda tx: tx.models.all())
    assert (upper, kept) == (model("A"), model("b", definition=tree))
    assert list(kept.definition) == ["z", "a", "t", "deep", "big"]
    assert [type(value) for value in kept.definition["a"][:4]] == [bool, bool, type(None), int]
    changed = model("b", definition={"n": 1}, version=2, updated_by="bob")
    database.transact(lambda tx: tx.models.put(changed))
    assert database.transact(lambda tx: tx.models.all()) == (model("A"), changed)
    database.transact(lambda tx: [tx.models.remove(name) for name in ("A", "nothing")])
    assert database.transact(lambda tx: tx.models.all()) == (changed,)


def test_a_setting_is_any_json_value(database: Database) -> None:
    """API-06: a false is not an absent value, and no number."""
    for value in (True, False, 0, 1, -1.5, "", "x" * 5000, [], {}, ["a", None], {"a": False}, None):
        setting = StoredSetting("serving.stopped", value, 1.0, "ada", 2)
        database.transact(lambda tx, setting=setting: tx.settings.put(setting))
        (kept,) = database.transact(lambda tx: tx.settings.all())
        assert kept == setting and type(kept.value) is type(value)


def test_settings_are_replaced_and_removed(database: Database) -> None:
    """API-06: by name."""
    for name in ("requests.log", "audit.retention"):
        database.transact(lambda tx, name=name: tx.settings.put(StoredSetting(name, 1, 1.0, "ada")))
    database.transact(lambda tx: tx.settings.put(StoredSetting("requests.log", 2, 3.0, "eve", 2)))
    audit, requests = database.transact(lambda tx: tx.settings.all())
    assert (audit.name, requests) == ("audit.retention", StoredSetting("requests.log", 2, 3.0, "eve", 2))
    database.transact(lambda tx: [tx.settings.remove(name) for name in ("requests.log", "nothing")])
    assert database.transact(lambda tx: tx.settings.all()) == (audit,)


def test_what_is_no_json_becomes_null(database: Database) -> None:
    """STO-01: NaN and infinities: one database would refuse them, the other would not read them."""
    value = {"a": [math.nan, math.inf, (1.0, -math.inf)]}
    database.transact(lambda tx: tx.settings.put(StoredSetting("x", value, 1.0, "ada")))
    assert database.transact(lambda tx: tx.settings.all())[0].value == {"a": [None, None, [1.0, None]]}


def test_cordons_and_labels_do_not_touch_each_other(database: Database) -> None:
    """PLC-03, PLC-09: each is set and taken back alone; a node without either is not named."""
    assert database.transact(lambda tx: tx.intents.nodes()) == {}
    database.transact(lambda tx: tx.intents.set_cordon("n1", CORDON))
    database.transact(lambda tx: tx.intents.set_labels("n1", {"llmgw.io/rack": "r12", "ü": "🦙"}))
    database.transact(lambda tx: tx.intents.set_labels("n2", {"a": ""}))
    database.transact(lambda tx: tx.intents.set_cordon("n3", Cordon("", "", "2026-01-01T00:00:00Z")))
    labels = {"llmgw.io/rack": "r12", "ü": "🦙"}
    assert database.transact(lambda tx: tx.intents.nodes()) == {
        "n1": NodeIntent(CORDON, labels),
        "n2": NodeIntent(None, {"a": ""}),
        "n3": NodeIntent(Cordon("", "", "2026-01-01T00:00:00Z"), {}),
    }
    database.transact(lambda tx: tx.intents.set_cordon("n1", None))
    database.transact(lambda tx: tx.intents.set_labels("n2", {}))
    database.transact(lambda tx: tx.intents.set_cordon("n3", None))
    assert database.transact(lambda tx: tx.intents.nodes()) == {"n1": NodeIntent(None, labels)}
    database.transact(lambda tx: tx.intents.set_labels("n1", {"b": "c"}))
    assert database.transact(lambda tx: tx.intents.nodes()) == {"n1": NodeIntent(None, {"b": "c"})}


def test_holds_are_put_replaced_and_removed(database: Database) -> None:
    """PLC-15: one for each domain."""
    for domain in ("llmgw.io/rack=r2", "llmgw.io/rack=R1"):
        database.transact(lambda tx, domain=domain: tx.intents.put_hold(Hold(domain, "power", "ada", "2026")))
    changed = Hold("llmgw.io/rack=r2", "water", "eve", "2027")
    database.transact(lambda tx: tx.intents.put_hold(changed))
    assert database.transact(lambda tx: tx.intents.holds()) == (
        Hold("llmgw.io/rack=R1", "power", "ada", "2026"),
        changed,
    )
    database.transact(lambda tx: [tx.intents.remove_hold(domain) for domain in ("llmgw.io/rack=R1", "nothing")])
    assert database.transact(lambda tx: tx.intents.holds()) == (changed,)
