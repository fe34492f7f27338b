"""``python -m router.main --config FILE``: the router's master process.

The master only keeps worker processes and is no gevent program: gunicorn's worker class
patches each worker as the first thing it does after the fork, before any socket is made.
"""

import argparse
import logging
import math
import signal
import sys
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger as GunicornLogger

from llmgw import __version__
from llmgw.runtime import logs
from llmgw.runtime.daemon import allow_many_files
from llmgw.runtime.daemon import run as run_part
from llmgw.runtime.settings import Address, Fault, Loaded, SettingsError
from router.settings import holder, load_whole

log = logs.Logger("router.main")

HEARTBEAT_SECONDS = 30
"""A worker whose loop stands still for this long is replaced."""


class _Log(GunicornLogger):  # type: ignore[misc]
    """gunicorn's log lines in our format."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        self.loglevel = logging.INFO
        self.error_log.handlers.clear()
        self.error_log.propagate = True
        # Its lines about booting and signals are details here.
        self.error_log.setLevel(logging.WARNING if logs.get_level() != "debug" else logging.DEBUG)

    def reopen_files(self) -> None:
        """There are none: lines go to standard error."""


SLACK_SECONDS = 6
"""What a worker may take after its drain: to cut what is left, and to flush (``worker``)."""

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class _Arbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's master, less a race: a worker inherits the master's signal handlers, so
    a stop that reached it before it had its own was lost, and the master waited for it
    through the whole drain time."""

    def spawn_worker(self) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            return super().spawn_worker()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    def reload(self) -> None:
        """SIGHUP: new workers with the settings as they are now; with faults nothing changes."""
        try:
            self.app.take_settings()
        except SettingsError as error:
            log.error("the settings were not reloaded", why=error)
        else:
            super().reload()


def _forked(arbiter: Any, worker: Any) -> None:
    """In a new worker: die of a stop until there is something to drain."""
    del arbiter, worker
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


class RouterApplication(BaseApplication):  # type: ignore[misc]
    """gunicorn's view of a router: where it listens and which worker class it runs."""

    def __init__(self, config: Path | None, log_level: str | None = None) -> None:
        self._config = config
        self._log_level = log_level
        self.listening = False
        self._use(load_whole(config, log_level))
        super().__init__()

    def _use(self, settings: Loaded) -> None:
        self.settings = settings
        logs.configure(settings["log.level"], settings["log.format"])

    def take_settings(self) -> None:
        """Read the settings again. Raises ``SettingsError``; those in use stay then."""
        settings = load_whole(self._config, self._log_level)
        if settings["listen"] != self.settings["listen"]:
            # gunicorn closes the old listener first, and ends if it cannot open the new one.
            why = f"cannot change from {self.settings['listen']} while the router runs: restart it"
            raise SettingsError(str(self._config or "router settings"), [Fault("listen", why)])
        self._use(settings)

    def load_config(self) -> None:
        """Settings of gunicorn, none of which come from files or variables of its own."""
        settings = self.settings
        options: dict[str, Any] = {
            "bind": str(settings["listen"]),
            "workers": settings["workers"],
            "worker_class": "router.worker.RouterWorker",
            "worker_connections": settings["limits.connections"],
            "timeout": HEARTBEAT_SECONDS,
            # Workers keep to the drain time themselves; the master ends one that does not.
            "graceful_timeout": math.ceil(settings["timeouts.drain"]) + SLACK_SECONDS,
            "preload_app": False,
            "proc_name": "llmgw-router",
            "pidfile": None,
            "control_socket_disable": True,
            "logger_class": _Log,
            "when_ready": _ready,
            "post_fork": _forked,
            "backlog": 2048,
        }
        if Path("/dev/shm").is_dir():  # noqa: S108 - gunicorn's heartbeat file, unlinked at once
            options["worker_tmp_dir"] = "/dev/shm"  # noqa: S108
        for name, value in options.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> None:
        """There is no WSGI application."""

    def run(self) -> None:
        """Keep workers until told to stop. Raises ``SettingsError`` if the address cannot be opened."""
        arbiter = _Arbiter(self)
        try:
            arbiter.run()
        except SystemExit:
            if self.listening:
                raise
            # gunicorn has tried for some seconds and logged why.
            why = f"{self.settings['listen']} cannot be opened: stop what uses it, or choose another address"
            raise SettingsError(str(self._config or "router settings"), [Fault("listen", why)]) from None


def _ready(arbiter: Any) -> None:
    arbiter.app.listening = True
    addresses = ",".join(str(Address(*listener.getsockname()[:2])) for listener in arbiter.LISTENERS)
    log.info("listening", address=addresses)


def main(arguments: list[str] | None = None) -> int:
    """Run a router until it is told to stop."""
    parser = argparse.ArgumentParser(prog="llmgw router", description="The OpenAI-compatible endpoint of a fleet.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML)")
    parser.add_argument("--check", action="store_true", help="check settings and identity; exit with 0 or 2")
    parser.add_argument("--log-level", metavar="LEVEL", help="instead of the setting log.level")
    parser.add_argument("--version", action="version", version=f"llmgw {__version__}")
    options = parser.parse_args(arguments)
    if options.check:
        return check(load_whole(options.config, options.log_level))
    router = RouterApplication(options.config, options.log_level)
    allow_many_files(2 * router.settings["limits.connections"])  # of a worker: each client has an engine's, too
    router.run()
    return 0


def check(settings: Loaded) -> int:
    """Say what these settings, which are valid, come to."""
    identity = holder(settings)
    identity.refresh()
    if warning := identity.warning():
        sys.stderr.write(f"llmgw router: {warning}\n")
    figures = f"router {settings['router_id']}, {settings['workers']} workers on {settings['listen']}"
    sys.stdout.write(f"llmgw router: settings and identity are valid ({figures})\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_part(main))
