"""What must hold of leadership after every step (HA-01, AGT-04, REC-10, REC-11).

No node and no router obeys a leader after a later one; whoever acts has a claim that
truly lasts, or heals in place; no two lead beyond doubt; nodes that went silent together
are not given up.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from controlplane.events import Decision
from llmgw.sim.host import Host
from llmgw.sim.store import SimStore
from llmgw.sim.world import Violation, World
from llmgw.wire.messages import Down, Start, Stop
from llmgw.wire.routing import RouteTable

if TYPE_CHECKING:
    from llmgw.sim.control_process import ControlProcess
    from llmgw.sim.term import Term

ROUNDING = 0.01
"""Seconds by which clocks that run differently may be misjudged."""

LOSSES = 300.0
"""Seconds within which a tenth of the fleet, at least one node, may be declared lost."""

MASS = 3
"""Fewer nodes are no mass loss."""

WITNESS = 55.0
"""Seconds within which an answer to a router vouches for an endpoint, less what clocks and ways take."""


class Allegiance:
    """Watches who leads, who obeys whom, and who is given up. ``controls`` are the
    processes that run; ``cut`` the nodes that were cut off together, until they are back."""

    def __init__(self, world: World, store: SimStore, hosts: dict[str, Host]) -> None:
        self._world = world
        self._store = store
        self._hosts = hosts
        self.controls: dict[str, ControlProcess] = {}
        self.cut: frozenset[str] = frozenset()
        self.vouched: Callable[[Term, str], Iterable[tuple[str, float]]] = lambda *_: ()
        """Routers of which the control plane must know that an endpoint answered them, and
        how long ago."""
        self.accepted_at: float | None = None
        """When a person last said that silent nodes are lost."""
        self._obeyed: dict[str, tuple[int, str]] = {}
        self._tables: dict[str, tuple[int, str]] = {}
        self._most: dict[tuple[str, str], int] = {}
        """The most engines of a model that a node ever had, or was to have, at a time."""
        self._losses: dict[str, deque[float]] = {}
        self._epochs: dict[tuple[int, int], str] = {}
        """Whose each epoch was, by the restores before it."""

    # ------------------------------------------------------------ who leads

    def leads(self, control: "ControlProcess") -> None:
        """A process took the lease, or renewed it."""
        self._turn(control)
        for other in self.controls.values():
            if other is control or not other.sure or not control.sure:
                continue
            row = self._store.row
            raise Violation(
                "two-leaders",
                f"{control.name} ({self._words(control)}) and {other.name} ({self._words(other)}) both lead beyond "
                f"doubt; the store says that {row.owner if row else 'nobody'} does",
            )

    def _words(self, control: "ControlProcess") -> str:
        left = control.claimed_until - self._world.now
        return f"its claim is good for {left:.1f} s" if left > 0 else "its claim was never confirmed, or is over"

    def _turn(self, control: "ControlProcess") -> None:
        """Each leader after another has a higher epoch, but for what a restore forgot."""
        row = self._store.row
        if row is None or row.owner != control.owner:
            return
        known = self._epochs.get((self._store.restores, row.epoch))
        if known is not None and known != row.owner:
            raise Violation("epoch-reused", f"{control.name} leads with epoch {row.epoch}, which was {known}'s")
        self._epochs[self._store.restores, row.epoch] = row.owner

    # ------------------------------------------------------------ who acts

    def sends(self, term: "Term", message: Down) -> None:
        """A leader sends a command."""
        if not isinstance(message, Start | Stop):
            return
        late = self._world.now - term.process.claimed_until
        if isinstance(message, Start):
            place = (message.spec.model, self._node_of(message.spec.host))
            there = sum(
                proc.spec is not None and proc.spec.model == place[0] and proc.key != message.spec.key
                for proc in self._hosts[place[1]].engines()
            )
            if late < ROUNDING:
                self._most[place] = max(self._most.get(place, 0), there + 1)
            elif there + 1 > self._most.get(place, 0):
                raise Violation(
                    "acts-in-doubt",
                    f"{term.process.name} starts {message.spec.key} on {place[1]} {late:.1f} s after its claim less "
                    f"the margin ended; {there} engines of {place[0]} live there, and there never were more than "
                    f"{self._most.get(place, 0)}: that heals nothing",
                )
        elif late >= ROUNDING:
            raise Violation(
                "acts-in-doubt",
                f"{term.process.name} stops {message.key} {late:.1f} s after its claim less the margin ended",
            )

    def counted(self, host: Host) -> None:
        """The processes of a host changed."""
        count: dict[str, int] = {}
        for proc in host.engines():
            if proc.spec is not None:
                count[proc.spec.model] = count.get(proc.spec.model, 0) + 1
        for model, number in count.items():
            place = (model, host.name)
            self._most[place] = max(self._most.get(place, 0), number)

    @staticmethod
    def _node_of(address: str) -> str:
        return f"n{address.rpartition('.')[2]}"

    # ------------------------------------------------------------ who obeys whom

    def welcomed(self, node: str, epoch: int, leader: str) -> None:
        """A node took a leader's welcome. It may forget that if it dies before it is on disk,
        since it has obeyed nothing yet."""
        self._check(self._obeyed.get(node, (0, "")), f"node {node}", "the welcome", epoch, leader)

    def kept(self, node: str, epoch: int, leader: str) -> None:
        """This is on a node's disk: whose welcome it took."""
        if epoch > self._obeyed.get(node, (0, ""))[0]:
            self._obeyed[node] = (epoch, leader)

    def accepted(self, node: str, epoch: int, leader: str) -> None:
        """A node took a leader's command."""
        self._check(self._obeyed.get(node, (0, "")), f"node {node}", "a command", epoch, leader)
        self._obeyed[node] = (epoch, leader)

    def took_table(self, router: str, table: RouteTable) -> None:
        """A router took a table."""
        known = self._tables.get(router, (0, ""))
        self._check(known, router, "a table", table.epoch, table.leader)
        self._tables[router] = (table.epoch, table.leader)

    def _check(self, known: tuple[int, str], who: str, what: str, epoch: int, leader: str) -> None:
        highest, whose = known
        turns = self._store.turns
        if turns.get(leader, 0) < turns.get(whose, 0):
            raise Violation(
                "two-obeyed",
                f"{who} took {what} of {leader} (epoch {epoch}) after one of {whose} (epoch {highest}), to whom the "
                "lease went later",
            )
        if epoch < highest:
            raise Violation(
                "epoch-falls", f"{who} took {what} of epoch {epoch} of {leader} after one of {highest} of {whose}"
            )
        if epoch == highest and whose and leader != whose:
            raise Violation(
                "two-obeyed", f"{who} took {what} of epoch {epoch} of {leader}, and before one of {whose} with the same"
            )

    # ------------------------------------------------------------ who is given up

    def failed(self, term: "Term", decision: Decision) -> None:
        """A replica failed. On a lost node it serves on for as long as routers say so."""
        if decision.figures.get("code") != "lost" or decision.node not in term.durable.enrolled:
            return
        for router, ago in self.vouched(term, decision.replica or ""):
            if ago < WITNESS:
                raise Violation(
                    "witness",
                    f"{term.process.name} gives {decision.replica} up, which answered {router} {ago:.1f} s ago: "
                    f"{decision.reason}",
                )

    def lost(self, term: "Term", decision: Decision) -> None:
        """A control plane gave a node up."""
        now, node = self._world.now, decision.node or ""
        said = self.accepted_at is not None and now - self.accepted_at < LOSSES
        enrolled = term.durable.enrolled
        cut = self.cut & enrolled
        if node in cut and len(cut) >= MASS and 2 * len(cut) > len(enrolled) and not said:
            raise Violation(
                "mass-loss",
                f"{term.process.name} gives {node} up, and {len(cut)} of {len(enrolled)} nodes were cut off together: "
                f"{decision.reason}",
            )
        losses = self._losses.setdefault(term.leader, deque())
        losses.append(now)
        # The control plane's clock may run slower than the world's.
        while now - losses[0] > LOSSES * 0.97:
            losses.popleft()
        allowed = max(1, len(enrolled) // 10)
        if len(losses) > allowed and not said:
            raise Violation(
                "lost-rate",
                f"{term.process.name} gave up {len(losses)} of {len(enrolled)} nodes within {LOSSES:g} s, "
                f"lastly {node}",
            )
