"""Routers are told which endpoints go although the control plane settles (found by the simulator)."""

from tests.unit.controlplane.core.harness import ONE_MODEL, Harness

TWO = ONE_MODEL.replace("{min: 1, max: 1}", "{min: 2, max: 2}")


def test_a_drain_while_settling_is_withdrawn():
    """REC-06, REC-24, REC-25: draining does not wait for settling, so the table names what drains."""
    h = Harness(TWO, nodes=("a",))
    h.advance(5)
    assert [replica.state for replica in h.view.replicas.values()] == ["ready", "ready"]
    h.enrolled = frozenset({"a", "b"})  # a second node stays away: settling goes on
    h.restart(catalog=ONE_MODEL)
    h.connect("a")
    h.advance(1)
    states = {replica.state: replica.id for replica in h.view.replicas.values()}
    assert states.keys() == {"ready", "draining"}
    (model,) = h.tables[-1].models
    assert h.tables[-1].settling
    assert [endpoint.id for endpoint in model.endpoints] == [states["ready"]]
    assert model.withdrawn == (states["draining"],)
    h.advance(60)
    assert not h.tables[-1].settling
    assert not h.tables[-1].models[0].withdrawn
