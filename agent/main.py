"""The agent's process, and its only composition root: ``python -m agent.main --config FILE``."""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402 - after the patches
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from agent.driver import Driver  # noqa: E402
from agent.hardware.base import HardwareError  # noqa: E402
from agent.settings import SETTINGS, configure  # noqa: E402
from agent.statedir import StateDir  # noqa: E402
from agent.watch import offload  # noqa: E402
from llmgw import __version__  # noqa: E402
from llmgw.runtime import daemon, logs  # noqa: E402
from llmgw.runtime.clock import SystemClock  # noqa: E402
from llmgw.runtime.settings import Fault, SettingsError, read_secret  # noqa: E402
from llmgw.runtime.stall import StallDetector  # noqa: E402

log = logs.Logger("agent")


def main(arguments: list[str] | None = None) -> int:
    """Run the agent until SIGTERM or SIGINT. Engines are left running (AGT-09)."""
    parser = argparse.ArgumentParser(prog="llmgw agent", description="Run and supervise the engines of this node.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (YAML)")
    options = parser.parse_args(arguments)
    return daemon.run(lambda: serve(options.config))


def serve(file: Path | None) -> int:
    """Read the settings and serve. Raises ``SettingsError``."""
    loaded = SETTINGS.load(file, os.environ)
    source = str(file) if file else "agent settings"
    config = configure(loaded, source)
    logs.configure(loaded["log.level"], loaded["log.format"])
    token = read_secret(config.token_file)
    state = StateDir(config.state_dir)
    try:
        driver = Driver(config, __version__, token, SystemClock(), state)
    except HardwareError as error:
        raise SettingsError(source, [Fault("hardware.gpu", str(error))]) from error
    asked = Event()
    stopper = daemon.Stopper(asked.set)
    gevent.spawn(daemon.reload_when, asked, lambda: reload(file))
    StallDetector().start()
    log.info("agent starts", node=config.node_id, version=__version__, state_dir=str(config.state_dir))
    driver.run(stopper.stopping)
    return 0


def reload(file: Path | None) -> None:
    """SIGHUP: the log level alone changes live; the rest needs a start, which engines outlive."""
    try:
        level = offload(SETTINGS.load, file, os.environ)["log.level"]
    except SettingsError as error:
        log.error("the settings file was refused, the log level stays", faults=error)
    else:
        logs.set_level(level)
        log.info("settings read again: the log level is taken over, the rest needs a restart", level=level)


if __name__ == "__main__":
    sys.exit(main())
