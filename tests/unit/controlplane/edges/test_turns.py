"""Thousands that wake up at once leave the hub to others in between (AGT-03)."""

import time
from itertools import pairwise
from pathlib import Path

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from controlplane.listeners.handshake import Handshakes, Late, _Turn
from controlplane.listeners.turns import SLICE, Turns
from tests.unit.controlplane.edges.peers import credentials


def test_those_that_wake_up_at_once_work_in_turn() -> None:
    """Each does its work once, and nothing else waits for all of them."""
    turns, begin = Turns(), Event()
    done: list[int] = []
    beats: list[int] = []

    def work(number: int) -> None:
        begin.wait()
        turns.take()
        until = time.monotonic() + SLICE / 5
        while time.monotonic() < until:
            pass
        done.append(number)

    def beat() -> None:
        while len(done) < len(workers):
            beats.append(len(done))
            gevent.sleep(0.0005)

    workers = [gevent.spawn(work, number) for number in range(100)]
    gevent.sleep(0.01)
    pulse = gevent.spawn(beat)
    begin.set()
    with gevent.Timeout(20):
        gevent.joinall([*workers, pulse])
    assert sorted(done) == list(range(100))
    steps = [after - before for before, after in pairwise(beats)]
    assert max(steps) <= 20, "no more than a slice's work, or two, at a time"


def test_one_that_comes_alone_does_not_wait_for_others() -> None:
    """A pause once in a slice is all that it costs."""
    turns = Turns()
    turns.take()
    with gevent.Timeout(20):
        for _ in range(1000):
            turns.take()


def test_nothing_is_computed_for_a_peer_that_left(tmp_path: Path) -> None:
    """AGT-03: when a whole fleet returns some give up waiting, and what they asked for is for nobody."""
    handshakes = Handshakes(credentials(tmp_path / "identity").mutual)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with handshakes._turn.of(begun=True):  # another's turn
            client.sendall(b"\x16\x03\x01\x00\x05hello")
            greenlet = gevent.spawn(handshakes.wrap_socket, accepted)
            with gevent.Timeout(20):
                while handshakes.running == 0:
                    gevent.sleep(0.005)
            client.close()
            gevent.sleep(0.01)  # on loopback the end has arrived by now
        with pytest.raises(ConnectionResetError, match="left before"):
            greenlet.get(timeout=20)


def test_handshakes_that_have_begun_go_first() -> None:
    """AGT-03: or a fleet that returns at once is begun with as a whole, and gives up halfway."""
    turn = _Turn()
    order: list[str] = []

    def take(name: str, *, begun: bool) -> None:
        with turn.of(begun=begun):
            order.append(name)

    with turn.of(begun=False):
        greenlets = [gevent.spawn(take, name, begun=name.isupper()) for name in "abCdEf"]
        gevent.sleep(0)
        greenlets[1].kill(Late, block=False)  # it took too long: another has its place
        gevent.sleep(0)
        assert order == []
    with gevent.Timeout(20):
        gevent.joinall(greenlets)
    assert order == ["C", "E", "a", "d", "f"]
    take("g", begun=False)
    assert order[-1] == "g", "nobody holds it any more"
