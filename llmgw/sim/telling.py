"""A leader tells the one that it took the lease from, with the real notice, as
``controlplane.leadership.teller`` does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from controlplane.leadership.notice import EVERY, Notice, NotTold, settled
from llmgw.sim.network import Network
from llmgw.wire.routing import encode

if TYPE_CHECKING:
    from llmgw.sim.control_process import ControlProcess
    from llmgw.sim.term import Term


class Telling:
    """For ``term``: ``before`` gives the process that runs now where the lease was before."""

    def __init__(self, term: "Term", network: Network, before: "Callable[[], ControlProcess]") -> None:
        self._term = term
        self._process = term.process
        self._network = network
        self._before = before
        self._rng = term.process.world.rng(f"telling of {term.leader}")
        self._told = False
        self._try()

    def _try(self) -> None:
        if self._told or self._term.over:
            return
        self._process.later(EVERY * self._rng.uniform(0.5, 1.5), self._try)
        if self._reaches():
            self._process.world.after(self._network.delay(), self._arrive)

    def _reaches(self) -> bool:
        return not self._network.blocked(self._process.site.host, self._before().site.host)

    def _arrive(self) -> None:
        def reply(status: int, body: bytes) -> None:
            if self._reaches():
                self._process.later(self._network.delay(), self._answered, status, body)

        before = self._before()
        notice = Notice(epoch=self._term.loop.epoch, name=self._process.site.host)
        before.run(before.noticed, self._process.site.host, encode(notice), reply)

    def _answered(self, status: int, body: bytes) -> None:
        try:
            settled(status, body)
        except NotTold as error:
            self._process.log(f"{self._before().site.host} does not let go: {error}")
        else:
            self._told = True
