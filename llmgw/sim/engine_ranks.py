"""Replicas over several nodes: rank 0 waits for the others, the others join and stay.

As seen on vLLM and llama.cpp's RPC server: a rank above 0 serves no HTTP and goes on
living when the head is gone, so an agent must watch and end every rank; the head that
lost a rank looks healthy until its next request.
"""

import socket

import gevent
from gevent.event import Event

from llmgw.runtime.logs import Logger
from llmgw.sim.engine_core import Core

log = Logger("llmgw.sim.engine")


class Head:
    """Rank 0's side of the rendezvous."""

    def __init__(self, core: Core, address: tuple[str, int]) -> None:
        """Listen at ``address``. Raises ``OSError`` if it is taken."""
        self._core = core
        self._ranks: set[int] = set()
        self._joined = Event()
        self._listener = socket.create_server(address)
        gevent.spawn(self._accept)

    def wait(self) -> None:
        """Until every other rank has joined."""
        self._joined.wait()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            gevent.spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            line = stream.readline(64)
            if not line.startswith(b"rank ") or not line[5:].strip().isdigit():
                log.warning("not a rank at the rendezvous")
                return
            rank = int(line[5:])
            self._ranks.add(rank)
            log.info("rank joined", rank=rank, joined=len(self._ranks) + 1, of=self._core.options.nnodes)
            if len(self._ranks) == self._core.options.nnodes - 1:
                self._joined.set()
            try:
                stream.read(1)
            except OSError as error:
                log.info("rendezvous connection broke", rank=rank, detail=str(error))
            log.error("rank lost", rank=rank)
            self._core.broken = True


def follow(address: tuple[str, int], rank: int) -> None:
    """Join the head at ``address`` as ``rank``, and stay when it goes. Never returns."""
    while True:
        try:
            connection = socket.create_connection(address, timeout=5.0)
            break
        except OSError as error:
            log.debug("the head is not there yet", detail=str(error))
            gevent.sleep(0.1)
    connection.settimeout(None)
    connection.sendall(f"rank {rank}\n".encode())
    log.info("joined the head", rank=rank)
    try:
        connection.recv(1)
    except OSError as error:
        log.info("rendezvous connection broke", detail=str(error))
    log.error("the head is gone; still here", rank=rank)
    while True:
        gevent.sleep(3600)
