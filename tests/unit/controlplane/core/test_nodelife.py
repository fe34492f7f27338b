"""When silence becomes loss: the pure machine, over generated fleets (REC-10, REC-11)."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.fleet.nodelife import AT_A_TIME, LEAST, TOGETHER, WINDOW, WITNESS, NodeLife, together, witnessed
from controlplane.planning.drains import RouterSeen
from llmgw.wire.routing import EndpointLoad

LOST_AFTER = 300.0
UNREACHABLE = 30.0


class World:
    """A fleet as the caller of the machine keeps it: who is silent since when, who is lost."""

    def __init__(self, nodes):
        self.life = NodeLife(LOST_AFTER)
        self.now = 0.0
        self.nodes = [f"n{number:03}" for number in range(nodes)]
        self.heard = dict.fromkeys(self.nodes, 0.0)
        self.up = set(self.nodes)
        self.lost = {}
        self.declared = []
        self.hold = False

    def tick(self, seconds=5.0):
        self.now += seconds
        for node in self.up:
            self.heard[node] = self.now
        gone = life_of(self)
        silent = {node: since for node, since in gone.items() if self.now - since >= UNREACHABLE}
        total = len(self.nodes) - len(self.lost)
        lost = self.life.tick(silent, len(self.nodes), total, self.now, hold=self.hold)
        for node in lost:
            assert node in silent
            self.lost[node] = self.now
            self.declared.append((self.now, node))
        return lost

    def run(self, seconds):
        """Ticks until so much later; everything that was declared."""
        before = len(self.declared)
        end = self.now + seconds
        while self.now < end:
            self.tick()
        return [node for _, node in self.declared[before:]]

    def down(self, *nodes):
        self.up -= set(nodes)

    def back(self, *nodes):
        self.up |= set(nodes)
        for node in nodes:
            self.lost.pop(node, None)
            self.heard[node] = self.now


def life_of(world):
    return {n: world.heard[n] for n in world.nodes if n not in world.up and n not in world.lost}


def at_once(moments, total):
    """The definition, counted the slow way: some minute holds more than half of the nodes."""
    return any(
        len(inside) >= LEAST and 2 * len(inside) > total
        for start in moments
        for inside in [[moment for moment in moments if 0 <= moment - start <= TOGETHER]]
    )


# ---------------------------------------------------------------- small fleets


@pytest.mark.parametrize("fleet", [1, 2])
def test_a_small_fleet_loses_one_after_the_other(fleet):
    """REC-10: fewer than three nodes are no mass loss, and one in five minutes is always allowed."""
    world = World(fleet)
    world.tick()
    world.down(*world.nodes)
    assert world.run(295) == []
    assert world.run(10) == ["n000"]
    assert world.life.frozen_since is None
    assert world.run(WINDOW - 5) == []
    assert world.life.late == tuple(world.nodes[1:])
    assert world.run(10) == world.nodes[1:]


def test_three_of_three_at_once_is_a_mass_loss_and_two_are_none():
    """REC-11: more than half, and at least three."""
    for count, lost, frozen in ((2, 2, False), (3, 0, True)):
        world = World(3)
        world.tick()
        world.down(*world.nodes[:count])
        assert len(world.run(900)) == lost
        assert (world.life.frozen_since is not None) is frozen


@pytest.mark.parametrize("fleet", [6, 10, 40])
def test_exactly_half_is_no_mass_loss_and_one_more_is(fleet):
    """REC-11: half of the fleet is lost by the rate, more than half not at all."""
    world = World(fleet)
    world.tick()
    world.down(*world.nodes[: fleet // 2])
    allowed = max(1, fleet // 10)
    assert len(world.run(310)) == allowed
    assert len(world.life.late) == fleet // 2 - allowed
    world = World(fleet)
    world.tick()
    world.down(*world.nodes[: fleet // 2 + 1])
    assert world.run(3600) == []
    assert len(world.life.frozen) == fleet // 2 + 1


def test_nodes_never_heard_since_the_start_count():
    """REC-11: a control plane that starts cut off from most of its fleet declares nobody lost."""
    world = World(10)
    world.down(*world.nodes[:6])
    assert world.run(3600) == []
    assert world.life.frozen.keys() == set(world.nodes[:6])


def test_silences_further_apart_are_no_mass_loss():
    """REC-11: within a minute; a fleet that is taken down node by node is not frozen."""
    world = World(10)
    world.tick()
    for node in world.nodes[:8]:
        world.down(node)
        world.run(TOGETHER + 5)
    world.run(200)
    assert world.life.frozen_since is None and world.declared


def test_the_freeze_ends_when_all_are_back():
    """REC-11: a few that stay away are not rebuilt behind the operator's back."""
    world = World(10)
    world.tick()
    world.down(*world.nodes[:7])
    assert world.run(600) == []
    world.back(*world.nodes[:6])
    assert world.run(1200) == []
    assert world.life.frozen.keys() == {world.nodes[6]}
    world.back(world.nodes[6])
    world.tick()
    assert world.life.frozen_since is None
    world.down(world.nodes[0])
    assert world.run(310) == [world.nodes[0]], "losses are declared again"


def test_a_node_that_was_back_for_a_moment_is_back():
    """REC-11: it need not be seen; what was heard of it tells."""
    world = World(4)
    world.tick()
    world.down(*world.nodes[:3])
    world.run(60)
    for node in world.nodes[:3]:
        world.heard[node] = world.now
    world.tick()
    assert world.life.frozen_since is None
    world = World(4)
    world.tick()
    world.down(*world.nodes[:3])
    world.run(60)
    for number, node in enumerate(world.nodes[:3]):  # seen by nobody, and silent again since
        world.heard[node] = world.now + 70.0 * number
    world.tick(200)
    assert world.life.frozen_since is None


def test_an_accepted_loss_is_declared_at_once_and_only_of_those():
    """REC-11: a person's word needs no rate; a node that is back by then is not lost, and
    later losses keep to the limit."""
    world = World(20)
    world.tick()
    world.down(*world.nodes[:12])
    world.run(60)
    world.hold = True  # the lease is in doubt: the word waits
    assert world.life.accept(world.nodes) == frozenset(world.nodes[:12])
    world.tick()
    assert not world.lost
    world.back(world.nodes[0])
    world.hold = False
    assert world.tick() == world.nodes[1:12]
    assert world.life.frozen_since is None and not world.life.accepted
    world.down(world.nodes[12])
    assert world.run(290) == []
    assert world.run(20) == [world.nodes[12]]


def test_a_large_accepted_loss_goes_in_steps():
    """REC-11: thousands of nodes are not given up in one go."""
    world = World(10 * AT_A_TIME)
    world.tick()
    world.down(*world.nodes[: 6 * AT_A_TIME])
    world.run(60)
    world.life.accept(world.nodes)
    assert [len(world.tick()) for _ in range(7)] == [AT_A_TIME] * 6 + [0]


def test_a_nodes_that_flaps_is_never_lost():
    """REC-10: each word of it begins its silence anew."""
    world = World(5)
    for _ in range(20):
        world.down("n001")
        assert world.run(280) == []
        world.back("n001")
        world.tick()


def test_our_own_pause_counts_for_nobody():
    """REC-10: silence before we went on again was our own."""
    world = World(2)
    world.tick()
    world.down("n000")
    world.now += 1000.0
    world.life.resumed = world.now
    assert world.tick() == []
    assert world.run(290) == []
    assert world.run(10) == ["n000"]


# ---------------------------------------------------------------- properties


steps = st.lists(
    st.tuples(
        st.sampled_from(("down", "back", "wait", "wait", "accept", "hold")), st.integers(0, 10**6), st.integers(1, 70)
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(fleet=st.integers(1, 45), script=steps)
def test_rate_freeze_and_patience_hold_whatever_happens(fleet, script):
    """REC-10, REC-11: never more than a tenth (or one) in any five minutes, nobody before five
    minutes of silence, nobody while a mass loss is on; only a person's word goes beyond."""
    world = World(fleet)
    world.tick()
    allowed = set()
    automatic = []
    for what, number, amount in script:
        node = world.nodes[number % fleet]
        if what == "down":
            start = number % fleet
            world.down(*world.nodes[start : start + max(1, amount * fleet // 70)])
        elif what == "back":
            start = number % fleet
            world.back(*(n for n in world.nodes[start : start + max(1, amount * fleet // 70)] if n not in world.up))
        elif what == "accept":
            allowed |= world.life.accept(world.nodes)
        elif what == "hold":
            world.hold = not world.hold
        for _ in range(amount if what == "wait" else 1):
            before = life_of(world)
            was_frozen = dict(world.life.frozen)
            total = fleet - len(world.lost)
            for node in world.tick():
                assert not world.hold
                if node in allowed:
                    continue
                automatic.append(world.now)
                assert world.now - before[node] >= LOST_AFTER
                stay = [node for node, since in was_frozen.items() if life_of(world).get(node) == since]
                assert not stay
                seen = {n: s for n, s in before.items() if n not in allowed and world.now - s >= UNREACHABLE}
                assert not at_once(list(seen.values()), total - len(allowed & before.keys()))
            allowed &= life_of(world).keys()
    limit = max(1, fleet // 10)
    for start in automatic:
        assert sum(start <= moment <= start + WINDOW for moment in automatic) <= limit


@settings(max_examples=300, deadline=None)
@given(moments=st.lists(st.integers(0, 300), max_size=14), more=st.integers(0, 14))
def test_a_mass_loss_is_found_whatever_the_order(moments, more):
    """REC-11: exactly when some minute holds enough, and then all of that minute."""
    total = len(moments) + more
    silent = {f"n{number}": float(moment) for number, moment in enumerate(moments)}
    found = together(silent, total)
    assert bool(found) == at_once(list(silent.values()), total)
    for first, last in combinations(sorted(silent.values()), 2):
        inside = {node for node, since in silent.items() if first <= since <= last}
        if last - first <= TOGETHER and len(inside) >= LEAST and 2 * len(inside) > total:
            assert inside <= found


# ---------------------------------------------------------------- witnesses


@pytest.mark.parametrize(
    ("reported", "answered", "vouches"),
    [
        (0.0, 0.0, True),
        (0.0, WITNESS, True),
        (0.0, WITNESS + 1, False),
        (30.0, 30.0, True),
        (30.0, 31.0, False),
        (0.0, None, False),
    ],
)
def test_an_answer_vouches_for_a_minute(reported, answered, vouches):
    """REC-10: by the age of the report and what it says; unknown is no witness."""
    loads = {"e": EndpointLoad(id="e", answered_seconds=answered), "f": EndpointLoad(id="f", failures=9)}
    routers = {("r", "b"): RouterSeen("r", "b", 1000.0 - reported, 1, loads)}
    assert witnessed(routers, ["e", "f", "g"], 1000.0) == ({"e"} if vouches else set())
