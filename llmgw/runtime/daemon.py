"""Life of a long-running process: signals in, an orderly end out."""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import gevent
from gevent import monkey
from gevent.event import Event

from llmgw.runtime.logs import Logger, configure, configured
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
        while not self.stopping.wait(3600.0):
            # Signals alone do not keep gevent's loop alive; a timer does.
            continue

    def _run_reload(self) -> None:
        if self._reload is not None:
            gevent.spawn(self._reload)


def allow_many_files(wanted: int = 0) -> None:
    """Raise the limit on open files to the most we may have: every connection is one, and
    the usual soft limit is 1024. Warn if that is less than ``wanted``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted:
        remedy = f"raise the hard limit: LimitNOFILE={wanted} (systemd), --ulimit nofile={wanted} (containers)"
        log.warning("fewer files may be open than connections need", limit=hard, wanted=wanted, remedy=remedy)


def reload_when(asked: Event, reload: Callable[[], None]) -> None:
    """Call ``reload`` each time ``asked`` is set, one call at a time, for ever: of two files
    the one read last counts, and many signals at once cost one reading."""
    while True:
        asked.wait()
        asked.clear()
        reload()


def log_uncaught() -> None:
    """Send what greenlets and threads die of to the log, where secrets are masked,
    rather than as a bare traceback to standard error. For the calling thread's hub."""
    hub = gevent.get_hub()

    def of_greenlet(context: Any, _kind: Any, value: BaseException | None, _trace: TracebackType | None) -> None:
        if value is None:
            return
        if isinstance(context, tuple):  # a call in the threadpool: whoever waits for it gets the exception too
            called = getattr(context[-1], "__qualname__", "-")
            gevent.spawn(log.debug, "a call in the threadpool failed", function=called, why=repr(value))
            return
        name = str(getattr(context, "name", None) or type(context).__name__)
        if gevent.getcurrent() is hub:  # a callback failed: the hub itself must not wait for the log's lock
            gevent.spawn(log.failure, "a callback failed", value, callback=name)
        else:
            log.failure("a greenlet failed", value, greenlet=name)

    def of_thread(failure: threading.ExceptHookArgs) -> None:
        if failure.exc_value is not None:
            log.failure("a thread failed", failure.exc_value, thread=getattr(failure.thread, "name", "-"))

    hub.print_exception = of_greenlet
    threading.excepthook = of_thread


def run(main: Callable[[], int]) -> int:
    """Run a part's main: a ``SettingsError`` becomes a message and exit status 2,
    anything unexpected a log entry and exit status 1; no traceback reaches a user."""
    if not configured():
        configure()
    if monkey.is_module_patched("threading"):  # else this is no gevent program, such as the router's master
        log_uncaught()
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
