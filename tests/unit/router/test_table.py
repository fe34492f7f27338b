import msgspec

from llmgw.wire.routing import Endpoint, RoutedAlias, RoutedModel, RouteTable
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


def called(routes):
    return [route.model.name for route in routes]


def test_fallbacks_are_resolved_once():
    """CAT-02, CAT-10: each followed by its own, none twice, whatever circle a table has; never a judge, nor what
    people switched off."""
    routes = build(
        table(
            model("a", fallbacks=("b", "off", "c", "judge", "nobody", "a")),
            model("b", fallbacks=("d", "a")),
            model("c", fallbacks=("b", "e")),
            model("d", aliases=("also d",)),
            model("e", fallbacks=("also d",)),
            model("off", state="off", fallbacks=("x",)),
            model("x"),
            model("judge", endpoint("j"), guard=True, fallbacks=("x",)),
        )
    )
    assert called(routes.models["a"].fallbacks) == ["b", "d", "c", "e"]
    assert called(routes.models["e"].fallbacks) == ["d"]
    assert routes.models["d"].fallbacks == ()


def test_a_judge_has_no_name():
    """CAT-11: but an endpoint, whose state is kept and told like that of any other."""
    first = build(table(model("judge", endpoint("j"), guard=True, aliases=("also",))))
    assert first.models == {}
    first.live["j"].inflight = 1
    assert build(table(model("judge", endpoint("j"), guard=True)), first).live["j"].inflight == 1


def test_weighted_aliases():
    """CAT-13: targets that nobody may ask or that weigh nothing are none; other names come first."""
    routes = build(
        table(
            model("a", endpoint("1"), aliases=("plain",)),
            model("b"),
            model("judge", guard=True),
            aliases=(
                RoutedAlias(name="w", targets=(("a", 1.0), ("b", 0.0), ("judge", 5.0), ("nobody", 5.0)), sticky=True),
                RoutedAlias(name="plain", targets=(("b", 1.0),)),
                RoutedAlias(name="b", targets=(("a", 1.0),)),
                RoutedAlias(name="none", targets=(("judge", 1.0),)),
            ),
        )
    )
    assert list(routes.splits) == ["w"]
    split = routes.splits["w"]
    assert ([(route.model.name, weight) for route, weight in split.targets], split.sticky) == ([("a", 1.0)], True)
    assert called([routes.models["plain"], routes.models["b"]]) == ["a", "b"]


def test_the_line_that_tells_which_model_answered():
    """CAT-10: whatever a model is called, it is one header field."""
    (route,) = set(build(table(model("org/m-\u00e4 x\r\nX-Evil: 1%"))).models.values())
    assert route.told == b"x-llmgw-model: org/m-%C3%A4%20x%0D%0AX-Evil:%201%25\r\n"


def test_a_provider_is_not_kept_while_settling():
    """REC-25: it is in the catalog or it is not: no agent has to be heard first."""
    provider = endpoint("ext", 443, external=True, tls=True)
    known = table(model("m", endpoint("a", 1), provider))
    settled = settle(known, table(model("m"), settling=True))
    assert [one.id for one in settled.models[0].endpoints] == ["a"]
