import msgspec

from llmgw.wire.routing import Endpoint, RoutedModel, RouteTable
from router.table import build, settle


def endpoint(name, port=1, **fields):
    return Endpoint(id=name, host="h", port=port, upstream_model="m", **fields)


def table(*models, **fields):
    return RouteTable(generation=fields.pop("generation", "g"), models=models, **fields)


def model(name, *endpoints, state="ready", **fields):
    return RoutedModel(name=name, state=state, endpoints=endpoints, **fields)


def test_state_of_endpoints_that_stay_is_kept():
    """RTR-03: swapped whole, but what is in flight on a surviving endpoint stays known."""
    first = build(table(model("m", endpoint("a"), endpoint("b", 2))))
    held = first.live["a"]
    held.inflight = 3
    second = build(table(model("m", endpoint("a", weight=2.0), endpoint("c", 3))), first)
    assert second.live["a"] is held
    assert (held.inflight, held.weight) == (3, 2.0)
    assert set(second.live) == {"a", "c"}
    assert set(first.live) == {"a", "b"}


def test_an_endpoint_at_another_address_is_another():
    """RTR-03: an id that moved starts afresh; its old streams count on the old state."""
    first = build(table(model("m", endpoint("a", 1))))
    first.live["a"].inflight = 3
    second = build(table(model("m", endpoint("a", 2))), first)
    assert second.live["a"] is not first.live["a"]
    assert second.live["a"].inflight == 0


def test_a_changed_key_changes_the_heads_sent():
    """RTR-12: a cached request head never outlives the engine key in it."""
    first = build(table(model("m", endpoint("a", key="old"))))
    first.live["a"].heads[b"/x"] = b"old"
    second = build(table(model("m", endpoint("a", key="new"))), first)
    assert second.live["a"].heads == {}


def test_names_win_over_aliases():
    """RTR-01: an alias never hides a model."""
    routes = build(table(model("a", aliases=("b", "c")), model("b", aliases=("c", "d"))))
    assert {name: route.model.name for name, route in routes.models.items()} == {"a": "a", "b": "b", "c": "a", "d": "b"}


def names(merged, model_name):
    (found,) = (m for m in merged.models if m.name == model_name)
    return [e.id for e in found.endpoints]


def test_settling_keeps_known_endpoints():
    """REC-25: a control plane that has just started does not unroute what serves."""
    known = table(model("m", endpoint("a", 1), endpoint("b", 2)), model("gone", endpoint("g", 9)))
    fresh = table(model("m", endpoint("b", 2), endpoint("c", 3)), settling=True, generation="h")
    merged = settle(known, fresh)
    assert names(merged, "m") == ["b", "c", "a"]
    assert [m.name for m in merged.models] == ["m"]
    assert merged.generation == "h"


def test_settled_tables_replace():
    """RTR-03: once settled, what is not in the table is not routed."""
    known = table(model("m", endpoint("a", 1)))
    assert names(settle(known, table(model("m"))), "m") == []


def test_settling_does_not_bring_back_what_was_switched_off():
    """REC-25: a person's decision is not unknown."""
    known = table(model("m", endpoint("a", 1)), model("n", endpoint("b", 2)))
    fresh = table(model("m", state="off"), model("n", state="stopped"), settling=True)
    merged = settle(known, fresh)
    assert names(merged, "m") == names(merged, "n") == []


def test_settling_gives_up_an_address_that_is_used_anew():
    """REC-25: a new replica on the same port means the old one is gone."""
    known = table(model("m", endpoint("a", 1)))
    fresh = table(model("m", state="loading"), model("n", endpoint("b", 1)), settling=True)
    assert names(settle(known, fresh), "m") == []


def test_settling_without_anything_known():
    """REC-25: nothing is known from before at the first start."""
    fresh = table(model("m"), settling=True)
    assert settle(None, fresh) is fresh


def test_repeated_settling_tables_keep_what_was_kept():
    """REC-25: endpoints survive any number of tables of a settling control plane."""
    known = table(model("m", endpoint("a", 1)))
    for nth in range(3):
        known = settle(known, table(model("m"), settling=True, generation=str(nth)))
    assert names(known, "m") == ["a"]


def test_tables_survive_the_disk():
    """RTR-03: what is kept on disk is what was in use."""
    from llmgw.wire.routing import decode_table, encode

    known = settle(table(model("m", endpoint("a", 1, key="ek-x"))), table(model("m"), settling=True))
    assert decode_table(encode(known)) == known
    assert msgspec.json.decode(encode(known))["models"][0]["endpoints"][0]["key"] == "ek-x"
