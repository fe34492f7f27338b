"""The control plane's process: ``python -m controlplane.main --config FILE``.

Reads what people wrote and gets hold of the store; ``controlplane.terms`` then leads and
stands by in turns, ``controlplane.term`` is the composition root of one lead.
"""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import gc  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
from gevent.event import Event  # noqa: E402

from controlplane.catalog.load import Files  # noqa: E402
from controlplane.clustersettings import FILE_SECTION, allowable  # noqa: E402
from controlplane.identities import Credentials  # noqa: E402
from controlplane.listeners.files import WANTED  # noqa: E402
from controlplane.settings import load  # noqa: E402
from controlplane.startup import forget_nothing, load_all, open_store  # noqa: E402
from controlplane.store.errors import StoreError, StoreUnavailable  # noqa: E402
from controlplane.terms import Terms  # noqa: E402
from llmgw import __version__  # noqa: E402
from llmgw.runtime.clock import SystemClock  # noqa: E402
from llmgw.runtime.daemon import Stopper, allow_many_files, reload_when, run  # noqa: E402
from llmgw.runtime.logs import Logger, configure  # noqa: E402
from llmgw.runtime.settings import Fault, Loaded, SettingsError  # noqa: E402

log = Logger("llmgw.server")

DEFAULT_CONFIG = Path("/etc/llmgw/controlplane.yaml")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, load what people wrote, serve until told to stop."""
    parser = argparse.ArgumentParser(prog="llmgw server", description="The llmgw control plane.")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"settings file (default {DEFAULT_CONFIG}, if there)"
    )
    parser.add_argument("--check", action="store_true", help="check settings, identity and catalog; exit with 0 or 2")
    parser.add_argument("--log-level", metavar="LEVEL", help="instead of the setting log.level")
    parser.add_argument("--version", action="version", version=f"llmgw {__version__}")
    options = parser.parse_args(arguments)
    config: Path | None = options.config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)

    def read() -> Loaded:
        return load(config, os.environ, {"log.level": options.log_level})

    settings = read()
    # The store may allow flags, and is not open yet: then the catalog is looked at once more.
    allowed = settings[f"{FILE_SECTION}.engines.allow"] if options.check else allowable()
    files, catalog, credentials = load_all(settings, allowed)
    if options.check:
        try:
            forget_nothing(settings)
        except (StoreError, StoreUnavailable) as error:
            sys.stderr.write(f"llmgw server: the store was not looked at: {error}\n")
        models = f"{len(catalog.models)} model{'' if len(catalog.models) == 1 else 's'} in files"
        sys.stdout.write(f"llmgw server: settings, identity and catalog are valid ({models})\n")
        return 0
    configure(settings["log.level"], settings["log.format"])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return _serve(settings, files, credentials, read)


def _serve(settings: Loaded, files: Files, credentials: Credentials, reread: Callable[[], Loaded]) -> int:
    asked = Event()
    stopper = Stopper(asked.set)  # first of all: a SIGHUP while we start must not end us
    allow_many_files(WANTED)
    try:
        store = open_store(settings, stopper.stopping)
        if store is None:
            return 0
        try:
            terms = Terms(
                settings,
                files,
                reread,
                store=store,
                credentials=credentials,
                stopping=stopper.stopping,
                clock=SystemClock(),
            )
            credentials.start()
            gevent.spawn(reload_when, asked, terms.reload)
            terms.run()
        finally:
            credentials.stop()
            store.close(timeout=0.4)
    except (StoreError, StoreUnavailable) as error:
        place = "store.url" if settings["store.url"] else "state_dir"
        raise SettingsError("llmgw server", [Fault(place, str(error))]) from error
    log.info("stopped")
    gc.freeze()  # the end of the process need not look through all there is for cycles: half a second of computing
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
