"""The router's certificate: renewed by one process of a host, used by all (SEC-01, SEC-08).

Each worker looks at the files every now and then. The one that holds the lock also asks the
control plane whether there are other authorities to trust, and for a new certificate when
it is due or wanted. The lock goes with its process, and a sibling takes it.
"""

import fcntl
import os
import random
import time
from collections.abc import Callable

import gevent
from gevent.hub import get_hub

from llmgw.identity import renewal
from llmgw.identity.holder import Holder
from llmgw.identity.names import IdentityError
from llmgw.runtime.logs import Logger
from llmgw.runtime.settings import SettingsError
from llmgw.wire.routing import Renewal
from router.control import Control, ControlError
from router.offhub import Result, off_hub

log = Logger("router.renewal")

LOOK_SECONDS = 10.0
"""Between looks at the files, at the clock, and at what the control plane has."""

SAY_AGAIN = 3600.0
"""After which a person is told the same again."""

LOCK = "renewal.lock"


class Renewer:
    """See the module. ``holder`` is the one that ``control`` uses."""

    def __init__(self, control: Control, holder: Holder, rng: random.Random) -> None:
        self._control = control
        self._holder = holder
        self._rng = rng
        self._lock: int | None = None
        self._not_before = 0.0
        self._wanted = False
        """A control plane wanted a new certificate, and there is none yet: it says so once."""
        self._said: dict[str, float] = {}

    def run(self) -> None:
        """For ever."""
        while True:
            self.look()
            gevent.sleep(self._pause())

    def look(self) -> None:
        """Do what is due now."""
        self._control.refresh()
        if not self._holder.loaded:
            return  # ``refresh`` has said why
        if self._alone():
            self._follow()
        self._say(self._holder.warning())

    def _follow(self) -> None:
        now = time.time()
        asking = now >= max(self._holder.due, self._not_before)
        try:
            if not asking:
                self._wanted = self._news() or self._wanted
                asking = self._wanted and now >= self._not_before
            if asking:
                self._renew()
        except (SettingsError, IdentityError, OSError, ControlError) as error:
            why = getattr(error, "strerror", None) or error
            if asking:
                self._not_before = renewal.retry(self._holder.presented.expires_at, now, self._rng.random())
                self._say(f"the certificate was not renewed: {why}")
            else:
                log.debug("no word about the certificate from the control plane", why=why)

    def _pause(self) -> float:
        """Less than usual for who renews, if the certificate is due sooner."""
        due = max(self._holder.due, self._not_before) - time.time()
        pause = min(LOOK_SECONDS, max(0.5, due)) if self._lock is not None else LOOK_SECONDS
        return pause * self._rng.uniform(0.9, 1.1)

    def _news(self) -> bool:
        """Take over other authorities, if there are any; whether a new certificate is wanted."""
        answer = self._control.identity(Renewal(authorities=self._holder.authorities))
        self._install("", answer.authorities)
        return answer.renew

    def _renew(self) -> None:
        request = self._off_hub(self._holder.request)
        answer = self._control.identity(Renewal(request=request, authorities=self._holder.authorities))
        self._install(answer.certificate, answer.authorities)
        if not answer.certificate:
            raise ControlError(answer.fault or "the control plane sent none")
        self._wanted = False

    def _install(self, certificate: str, authorities: str) -> None:
        if not (certificate or authorities):
            return
        self._off_hub(self._holder.install, certificate, authorities)
        self._control.refresh()
        log.info("renewed by the control plane", what="certificate" if certificate else "authorities")

    def _alone(self) -> bool:
        """Whether we are the one process that renews."""
        if self._lock is None:
            try:
                self._lock = self._off_hub(self._take)
            except OSError as error:
                self._say(f"the certificate cannot be renewed: {error.strerror} ({error.filename})")
        return self._lock is not None

    def _take(self) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._holder.folder.path / LOCK, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        self._holder.folder.tidy()
        return descriptor

    def _say(self, words: str) -> None:
        now = time.monotonic()
        if words and now >= self._said.get(words, float("-inf")) + SAY_AGAIN:
            log.warning(words)
            self._said = {**dict(list(self._said.items())[-8:]), words: now}

    @staticmethod
    def _off_hub(work: Callable[..., Result], *arguments: str) -> Result:
        return off_hub(get_hub().threadpool, work, *arguments)
