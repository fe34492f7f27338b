"""The keys of external models: read from their files again and again (CAT-10).

A key never passes through the loop: the publisher gets it, the loop only learns whether
there is one. A file that changes takes effect within ``AGAIN`` seconds, without a
restart.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gevent
from gevent.event import Event

from controlplane.events import ProviderKeysRead
from controlplane.offhub import off_hub
from controlplane.publish.table import Publisher
from llmgw.runtime.files import open_regular
from llmgw.runtime.logs import Logger

log = Logger("llmgw.publish")

AGAIN = 10.0
"""Seconds between two readings of the key files."""

MAX_KEY = 4096
"""Bytes a key file may have."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """What a file holds: the key (a secret), or what is wrong with it in words."""

    key: str = field(default="", repr=False)
    fault: str = ""


def read_key(file: str, ours: Collection[Path] = ()) -> KeyFile:
    """Read one key file. Blocking; raises nothing, and no word of its content is told.

    ``ours`` are files, and directories with all beneath, that hold the control plane's
    own secrets: those go to no provider, whatever a catalog says (SEC-03).
    """
    try:
        real = Path(file).resolve()
        for own in ours:
            if real.is_relative_to(own.resolve()):
                remedy = "give the provider's key a file of its own"
                return KeyFile(fault=f"its key file {file} holds a secret of the control plane itself: {remedy}")
        with open_regular(real) as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(MAX_KEY + 1)
    except (OSError, RuntimeError) as error:  # the latter of resolve(), for links in a circle
        why = error.strerror if isinstance(error, OSError) else "it is a link in a circle"
        return KeyFile(fault=f"its key file {file} cannot be read: {why}")
    if mode & 0o077:
        return KeyFile(fault=f"its key file {file} can be used by others: run chmod 600 {file}")
    if len(data) > MAX_KEY:
        return KeyFile(fault=f"its key file {file} has more than {MAX_KEY} bytes: it should hold the key alone")
    words = data.split()
    if not words:
        return KeyFile(fault=f"its key file {file} is empty")
    if len(words) > 1 or not all(0x21 <= byte < 0x7F for byte in words[0]):
        return KeyFile(fault=f"its key file {file} should hold the key alone, in ASCII")
    return KeyFile(key=words[0].decode("ascii"))


Reader = Callable[[Iterable[str]], Mapping[str, KeyFile]]


def read_all(files: Iterable[str], ours: Collection[Path] = ()) -> dict[str, KeyFile]:
    """Read key files, off the hub. ``ours`` as of ``read_key``."""
    names = sorted(files)
    return off_hub(lambda: {file: read_key(file, ours) for file in names}) if names else {}


class ProviderKeys:
    """Keeps the publisher's keys and the loop's knowledge of them up to date. ``tell``
    takes the loop's event."""

    def __init__(self, publisher: Publisher, tell: Callable[[ProviderKeysRead], None], read: Reader = read_all) -> None:
        self._publisher = publisher
        self._tell = tell
        self._read = read
        self._files: frozenset[str] = frozenset()
        self._told: dict[str, str] = {}
        self._asked = Event()
        self._greenlet: gevent.Greenlet[..., None] | None = None

    def start(self, files: Iterable[str] = ()) -> "ProviderKeys":
        """Read ``files``, those that the catalog names, then go on to read. Done before
        the loop begins, its first table is not without external models whose keys are at hand."""
        self.need(files)
        self.look()
        self._asked.clear()
        self._greenlet = gevent.spawn(self._run)
        return self

    def stop(self) -> None:
        """Read no more."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def need(self, files: Iterable[str]) -> bool:
        """These files are named by the catalog in force; true if one of them has to be read now."""
        self._files = frozenset(files)
        if self._files <= self._told.keys():
            return False
        self._asked.set()
        return True

    def look(self) -> None:
        """Read every file, and tell what changed: the publisher before the loop, so that
        an endpoint is never published before its key is known."""
        found = self._read(self._files)
        self._publisher.set_provider_keys({file: read.key for file, read in found.items() if not read.fault})
        faults = {file: read.fault for file, read in found.items()}
        if faults != self._told:
            self._told = faults
            self._tell(ProviderKeysRead(faults))

    def _run(self) -> None:
        while True:
            self._asked.wait(AGAIN)
            self._asked.clear()
            try:
                self.look()
            except Exception:
                log.exception("the keys of external models could not be read")
