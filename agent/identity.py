"""The node's identity in the running agent: shown, renewed, watched (gevent).

Files and keys are dealt with in native threads; what is asked for and when is decided in
``agent.credentials``.
"""

from collections.abc import Callable

import gevent
from gevent.lock import BoundedSemaphore

from agent.credentials import Event, Held, Install, Installed, NotRequested, Requested
from agent.watch import offload
from llmgw.identity.holder import Holder
from llmgw.identity.names import IdentityError
from llmgw.identity.tls import ClientTls
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import SettingsError

log = Logger("agent.identity")

LOOK_EVERY = 30.0
"""Seconds between looks at the files and at the clock of the host."""

WARN_EVERY = 3600.0
"""Seconds after which a person is told the same again."""


class NodeIdentity:
    """See the module. ``post`` takes what becomes of each effect. ``holder`` has been loaded."""

    def __init__(self, holder: Holder, clock: Clock, post: Callable[[Event], None]) -> None:
        self._holder = holder
        self._clock = clock
        self._post = post
        self._lock = BoundedSemaphore()
        self._said = ("", 0.0)
        self._shown = (holder.presented.serial, holder.authorities)

    @property
    def tls(self) -> ClientTls:
        """What connections are made with."""
        return self._holder.tls

    def tell(self) -> None:
        """Tell when the certificate is due and when it ends, by the clocks as they are now."""
        holder, ahead = self._holder, self._clock.monotonic() - self._clock.now().timestamp()
        self._post(Held(holder.due + ahead, holder.presented.expires_at + ahead, holder.authorities))
        self._warn(holder.warning())

    def refresh(self) -> None:
        """Take over files that are others than at the last look."""
        with self._lock:
            try:
                changed = offload(self._holder.refresh)
            except (SettingsError, OSError) as error:
                log.error("the identity on disk cannot be used, the one in use stays", why=error)
                return
            shown = (self._holder.presented.serial, self._holder.authorities)
            if changed and shown != self._shown:
                ends = round(self._holder.presented.expires_at - self._clock.now().timestamp())
                log.info("another identity is shown", serial=shown[0], expires_in=ends, authorities=shown[1][:16])
                self._shown = shown
                self.tell()

    def watch(self) -> None:
        """For ever: notice new files, a clock that was set, and an end that comes near."""
        self.tell()
        offload(self._holder.folder.tidy)
        while True:
            gevent.sleep(LOOK_EVERY)
            self.refresh()
            self.tell()

    def make_request(self) -> None:
        """Carry out ``MakeRequest``."""
        try:
            with self._lock:
                request = offload(self._holder.request)
        except (SettingsError, IdentityError, OSError) as error:
            self._post(NotRequested(f"no request could be made: {_words(error)}"))
        else:
            self._post(Requested(request))

    def install(self, install: Install) -> None:
        """Carry out ``Install``."""
        try:
            with self._lock:
                offload(self._holder.install, install.certificate, install.authorities)
        except (SettingsError, IdentityError, OSError) as error:
            self._post(Installed(install, _words(error)))
            return
        self._post(Installed(install))
        self.refresh()

    def _warn(self, words: str) -> None:
        said, at = self._said
        now = self._clock.monotonic()
        if words and (words != said or now >= at + WARN_EVERY):
            log.warning(words)
            self._said = words, now


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
