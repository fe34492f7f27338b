"""The agent's process, and its only composition root: ``python -m agent.main --config FILE``."""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402 - after the patches
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from agent.driver import Driver  # noqa: E402
from agent.hardware.base import HardwareError  # noqa: E402
from agent.settings import SETTINGS, Config, configure  # noqa: E402
from agent.statedir import StateDir  # noqa: E402
from agent.watch import offload  # noqa: E402
from llmgw import __version__  # noqa: E402
from llmgw.identity.holder import Holder  # noqa: E402
from llmgw.identity.names import Identity  # noqa: E402
from llmgw.runtime import daemon, logs  # noqa: E402
from llmgw.runtime.clock import SystemClock  # noqa: E402
from llmgw.runtime.settings import Fault, Loaded, SettingsError  # noqa: E402
from llmgw.runtime.stall import StallDetector  # noqa: E402

log = logs.Logger("agent")


def main(arguments: list[str] | None = None) -> int:
    """Run the agent until SIGTERM or SIGINT. Engines are left running (AGT-09)."""
    parser = argparse.ArgumentParser(prog="llmgw agent", description="Run and supervise the engines of this node.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file (YAML)")
    parser.add_argument("--check", action="store_true", help="check settings and identity; exit with 0 or 2")
    parser.add_argument("--log-level", metavar="LEVEL", help="instead of the setting log.level")
    parser.add_argument("--version", action="version", version=f"llmgw {__version__}")
    options = parser.parse_args(arguments)

    def read() -> Loaded:
        return SETTINGS.load(options.config, os.environ, {"log.level": options.log_level})

    source = str(options.config) if options.config else "agent settings"
    return daemon.run(lambda: check(read, source) if options.check else serve(read, source))


def take(loaded: Loaded, source: str) -> tuple[Config, Holder]:
    """What single settings cannot tell, and the node's identity, with all faults at once."""
    config = configure(loaded, source)
    holder = Holder(config.identity, Identity("node", config.node_id))
    if faults := holder.faults():
        raise SettingsError(source, faults)
    holder.refresh()
    return config, holder


def check(read: Callable[[], Loaded], source: str) -> int:
    """Say whether an agent would start with these settings. Raises ``SettingsError``."""
    config, holder = take(read(), source)
    if warning := holder.warning():
        sys.stderr.write(f"llmgw agent: {warning}\n")
    figures = f"node {config.node_id}, engines: {', '.join(sorted(config.engines)) or 'none'}"
    sys.stdout.write(f"llmgw agent: settings and identity are valid ({figures})\n")
    return 0


def serve(read: Callable[[], Loaded], source: str) -> int:
    """Read the settings and serve. Raises ``SettingsError``."""
    loaded = read()
    logs.configure(loaded["log.level"], loaded["log.format"])
    config, holder = take(loaded, source)
    state = StateDir(config.state_dir)
    try:
        driver = Driver(config, __version__, holder, SystemClock(), state)
    except HardwareError as error:
        raise SettingsError(source, [Fault("hardware.gpu", str(error))]) from error
    asked = Event()
    stopper = daemon.Stopper(asked.set)
    gevent.spawn(daemon.reload_when, asked, lambda: reload(read))
    StallDetector().start()
    log.info("agent starts", node=config.node_id, version=__version__, state_dir=str(config.state_dir))
    driver.run(stopper.stopping)
    return 0


def reload(read: Callable[[], Loaded]) -> None:
    """SIGHUP: the log level alone changes live; the rest needs a start, which engines outlive."""
    try:
        level = offload(read)["log.level"]
    except SettingsError as error:
        log.error("the settings file was refused, the log level stays", faults=error)
    else:
        logs.set_level(level)
        log.info("settings read again: the log level is taken over, the rest needs a restart", level=level)


if __name__ == "__main__":
    sys.exit(main())
