"""A table that settles can take endpoints back (found by the simulator)."""

from llmgw.wire.routing import Endpoint, RoutedModel, RouteTable
from router.table import settle


def endpoint(name: str, port: int) -> Endpoint:
    return Endpoint(id=name, host="10.0.0.1", port=port, upstream_model="m")


def table(generation: str, model: RoutedModel, settling: bool = False) -> RouteTable:
    return RouteTable(generation=generation, settling=settling, models=(model,))


def test_a_withdrawn_endpoint_is_not_kept_while_settling():
    """REC-06, REC-25: a drain begun while the control plane settles gets no new requests."""
    known = table("a-1", RoutedModel(name="m", state="ready", endpoints=(endpoint("x", 1), endpoint("y", 2))))
    fresh = RoutedModel(name="m", state="loading", withdrawn=("x",))
    (model,) = settle(known, table("b-1", fresh, settling=True)).models
    assert [each.id for each in model.endpoints] == ["y"]
