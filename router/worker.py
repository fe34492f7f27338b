"""The worker process: gunicorn's gevent worker, with connections of our own (RTR-15).

gunicorn keeps the processes, the listener and watches the heartbeat; what happens on a
connection is ``service``.
"""

import _socket
import gc
import os
import random
from functools import partial
from time import monotonic
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.server import StreamServer
from gunicorn.workers.ggevent import GeventWorker

from llmgw.runtime.clock import SystemClock
from llmgw.runtime.daemon import log_uncaught
from llmgw.runtime.logs import Logger
from llmgw.runtime.stall import StallDetector
from router.control import Control
from router.ledger import Ledger
from router.renewal import Renewer
from router.report import Reporter
from router.service import Service
from router.settings import TABLE_FILE, USAGE_DIRECTORY, holder
from router.sync import Sync

log = Logger("router.worker")

BEAT_SECONDS = 0.25
"""How often a worker tells the master that it lives, and looks whether it shall end."""

FLUSH_SECONDS = 2.0
"""How long a worker that ends tries to hand over its last usage records."""

FIRST_TABLE_SECONDS = 2.0
"""How long a worker that starts waits for a table, at most."""


class RouterWorker(GeventWorker):  # type: ignore[misc]
    """Serves connections with ``router.service.Service``, and hands over what was used."""

    alive: bool

    def run(self) -> None:
        """Serve until told to stop, then drain: idle connections end at once, running
        answers within ``timeouts.drain``."""
        log_uncaught()
        settings = self.app.settings
        identity = holder(settings)
        control = Control(settings["control_planes"], settings["router_id"], identity)
        control.refresh()
        ledger = Ledger(
            control.usage,
            settings["state_dir"] / USAGE_DIRECTORY,
            boot=os.urandom(8).hex(),
            limit=settings["limits.usage_records"],
            clock=SystemClock(),
            rng=random.Random(),  # noqa: S311 - spreads what is sent again
        )
        self.service = service = Service(settings, ledger.record)
        sync = Sync(control, settings["state_dir"] / TABLE_FILE, service.use)
        sync.restore()
        self.stall = StallDetector(interval=0.05).start()
        for greenlet in ledger.start():
            greenlet.link_exception(self._end)
        # A worker that no longer hears of changes must not go on as if there were none.
        gevent.spawn(sync.run).link(self._end)
        gevent.spawn(Renewer(control, identity, random.Random()).run).link(self._end)  # noqa: S311 - spreads load
        # Not before there is a table, within reason: a sibling that serves must not make up
        # for a worker that would refuse everybody.
        sync.asked.wait(FIRST_TABLE_SECONDS)
        gevent.spawn(Reporter(control).run, lambda: service.routes).link(self._end)
        # What exists now stays: collections need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10000, 20, 50)
        servers = [self._listen(sock) for sock in self.sockets]
        while self.alive:
            self.notify()
            service.make_room()
            gevent.sleep(BEAT_SECONDS)
        for server in servers:
            server.close()
        service.end()
        self._drain(servers, settings["timeouts.drain"])
        ledger.finish(FLUSH_SECONDS)

    def notify(self) -> None:
        """Tell the master that this worker lives. Without a master it drains: answers end
        whole, and nobody waits for a listener that no new master could open."""
        self.tmp.notify()
        if self.alive and self.ppid != os.getppid():
            log.error("the master process is gone: this worker drains")
            self.alive = False

    def _end(self, greenlet: gevent.Greenlet) -> None:
        log.error("a background task ended: this worker drains and is replaced", why=repr(greenlet.exception))
        self.alive = False

    def _listen(self, sock: Any) -> StreamServer:
        sock.setblocking(True)
        connections = Pool(self.worker_connections)
        server = StreamServer(sock, handle=partial(self.handle, sock), spawn=connections)
        # One at a time, so that workers share what comes in.
        server.max_accept = 1 if self.cfg.workers > 1 else 100
        server.start()
        return server

    def _drain(self, servers: list[StreamServer], seconds: float) -> None:
        until = monotonic() + seconds
        while any(len(server.pool) for server in servers):
            if monotonic() >= until:
                log.warning("answers cut at the end of the drain", count=sum(len(server.pool) for server in servers))
                for server in servers:
                    server.pool.kill(timeout=1)
                return
            self.notify()
            gevent.sleep(BEAT_SECONDS)

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve one accepted connection. Called in a greenlet of its own."""
        del listener, addr
        family, proto = client.family, client.proto
        sock = _socket.socket(family, _socket.SOCK_STREAM, proto, client.detach())
        sock.setblocking(False)
        self.service.serve(sock)
