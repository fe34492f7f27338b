"""The control plane's process, which writes on SIGUSR1 what it holds: greenlets, threads, files, objects."""

from gevent import monkey

monkey.patch_all()

import collections  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import gevent  # noqa: E402
import greenlet  # noqa: E402

from controlplane.journal import Journal  # noqa: E402
from controlplane.loop import Loop  # noqa: E402
from controlplane.main import main  # noqa: E402
from controlplane.store.access import StoreThreads  # noqa: E402
from controlplane.term import ControlPlane  # noqa: E402
from llmgw.runtime.daemon import run  # noqa: E402

WATCHED = (ControlPlane, Loop, Journal, StoreThreads)


def held() -> dict[str, dict[str, int]]:
    """Counts by kind. A greenlet is named by what it runs, a file by what it is."""
    gc.unfreeze()
    gc.collect()
    objects = gc.get_objects()
    greenlets = [each for each in objects if isinstance(each, greenlet.greenlet) and not each.dead]
    runs = (getattr(each, "_run", None) or getattr(each, "run", None) for each in greenlets)
    files = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            files.append(re.sub(r"\d+", "N", str(entry.readlink())))
        except FileNotFoundError:
            continue  # that of the listing itself
    return {
        "greenlets": dict(collections.Counter(getattr(each, "__qualname__", type(each).__name__) for each in runs)),
        "threads": {"all": len(list(Path("/proc/self/task").iterdir()))},
        "files": dict(collections.Counter(files)),
        "objects": {kind.__name__: sum(type(each) is kind for each in objects) for kind in WATCHED},
    }


def write() -> None:
    """One line on standard error."""
    sys.stderr.write(f"held {json.dumps(held())}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    gevent.signal_handler(signal.SIGUSR1, lambda: gevent.spawn(write))
    sys.exit(run(main))
