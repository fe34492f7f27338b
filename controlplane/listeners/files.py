"""Every connection is an open file, and a process may have so many (AGT-03)."""

import errno
import resource
import sys
from typing import Any

import gevent

from controlplane.listeners.refusals import Refusals

TOGETHER = 20_608
"""Connections that the bounds of all listeners allow at once, agents past their handshake aside:
at each of four listeners 4096 in their handshake, then 2048 at two and 128 at one."""

SHARE = 0.5
"""Part of the files that those connections may take: the rest is for agents, and for ourselves."""

WANTED = int(TOGETHER / SHARE)
"""Files with which every bound is as it is."""

LEAST = 8
"""No bound becomes smaller than that."""

PAUSE = 0.1
"""Seconds after which the next connection is tried when there was no file left for one."""


def limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def within(bound: int) -> int:
    """The bound of a listener, or its part of what the limit on open files allows to all of them:
    so a listener makes room among the silent before no file is left for anybody."""
    allowed = limit() * SHARE
    return bound if allowed >= TOGETHER else min(bound, max(LEAST, int(bound * allowed / TOGETHER)))


class Accepting:
    """A server of gevent's that has words for it when no file is left for a connection: it waits
    for a moment, and the connection in the backlog."""

    refusals: Refusals
    loop: Any
    stop_accepting: Any
    _start_accepting_if_started: Any

    def do_read(self) -> Any:
        """Accept one connection, if there is one."""
        try:
            return super().do_read()  # type: ignore[misc]
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        gevent.spawn(self._tell)  # this is the hub, which must not wait for the log's lock
        self.stop_accepting()
        self._timer = self.loop.timer(PAUSE)
        self._timer.start(self._start_accepting_if_started)
        return None

    def _tell(self) -> None:
        words = "too many files are open: raise the limit (LimitNOFILE= in the unit, --ulimit nofile= of a container)"
        self.refusals.tell("a connection waits to be accepted", why=words)
