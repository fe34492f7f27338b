"""The worker process: gunicorn's gevent worker, with connections of our own (RTR-15).

gunicorn keeps the processes, the listener, the heartbeat and the graceful stop; what
happens on a connection is ``service``.
"""

import _socket
import gc
from typing import Any

import gevent
from gunicorn.workers.ggevent import GeventWorker

from llmgw.runtime.logs import Logger
from llmgw.runtime.stall import StallDetector
from router.control import Control
from router.report import Reporter
from router.service import Service
from router.settings import TABLE_FILE
from router.sync import Sync

log = Logger("router.worker")

STOP_CHECK_SECONDS = 0.1


class RouterWorker(GeventWorker):  # type: ignore[misc]
    """Serves connections with ``router.service.Service``."""

    def run(self) -> None:
        """Start what runs beside the connections, then accept until told to stop."""
        settings = self.app.settings
        control = Control(settings["control_plane"], settings["router_id"], self.app.token)
        self.service = service = Service(settings)
        sync = Sync(control, settings["state_dir"] / TABLE_FILE, service.use)
        sync.restore()
        self.stall = StallDetector().start()
        gevent.spawn(sync.run)
        gevent.spawn(Reporter(control).run, lambda: service.routes)
        gevent.spawn(self._watch_for_stop)
        # What exists now stays: collections need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10000, 20, 50)
        super().run()

    def _watch_for_stop(self) -> None:
        while self.alive:
            gevent.sleep(STOP_CHECK_SECONDS)
        self.service.end()

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve one accepted connection. Called by gunicorn, in a greenlet of its own."""
        del listener, addr
        family, proto = client.family, client.proto
        sock = _socket.socket(family, _socket.SOCK_STREAM, proto, client.detach())
        sock.setblocking(False)
        self.service.serve(sock)
