"""Life of a long-running process: signals in, an orderly end out."""

import os
import signal
import sys
from collections.abc import Callable

import gevent
from gevent.event import Event

from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import SettingsError

log = Logger("llmgw.daemon")


class Stopper:
    """SIGTERM and SIGINT set ``stopping``; SIGHUP calls ``on_reload``."""

    def __init__(self, on_reload: Callable[[], None] | None = None) -> None:
        self.stopping = Event()
        self._reload = on_reload
        gevent.signal_handler(signal.SIGTERM, self.stop, "SIGTERM")
        gevent.signal_handler(signal.SIGINT, self.stop, "SIGINT")
        if on_reload is not None:
            gevent.signal_handler(signal.SIGHUP, self._run_reload)

    def stop(self, why: str) -> None:
        """Ask for an orderly end."""
        if not self.stopping.is_set():
            log.info("stopping", why=why)
            self.stopping.set()

    def wait(self) -> None:
        """Block until the process shall end."""
        self.stopping.wait()

    def _run_reload(self) -> None:
        if self._reload is not None:
            gevent.spawn(self._reload)


def run(main: Callable[[], int]) -> int:
    """Run a part's main: a ``SettingsError`` becomes a message and exit status 2,
    anything unexpected a log entry and exit status 1; no traceback reaches a user."""
    try:
        return main()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception:
        log.exception("unexpected failure", pid=os.getpid())
        sys.stderr.write("llmgw: an error of our own; the log above has the details\n")
        return 1
