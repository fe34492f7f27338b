"""What must hold of leadership after every step (HA-01, AGT-04, REC-10, REC-11).

No two lead beyond doubt, and nobody for longer than the store's answer allows; no node and
no router obeys a leader after a later one; what a node obeys is on its disk, where no lower
epoch follows; whoever acts has a claim that truly lasts, or heals in place; nodes that went
silent together are not given up; and nobody stays in doubt whom a later leader can reach.
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

UNAWARE = 12.0
"""Seconds in which a leader that is in doubt hears of who took the lease from it, if the two
reach each other."""

OCCASIONS = {
    "lead-passes": ("epoch-reused", "the lease came to another"),
    "claim-beside-leader": ("two-leaders", "a claim was answered while another still led, in doubt or not"),
    "node-follows": ("two-obeyed", "a node took the welcome of another leader than before"),
    "epoch-unproven": ("two-obeyed", "a leader met one that had obeyed a later leader, and asked the store"),
    "node-keeps": ("epoch-falls", "a node saved a higher epoch"),
    "command-before-disk": ("not-on-disk", "a command came before the epoch was on the node's disk"),
    "router-follows": ("two-obeyed", "a router took the table of another leader than before"),
    "router-refuses": ("two-obeyed", "a router turned down the table of a leader that was replaced"),
    "in-doubt": ("acts-in-doubt", "a leader fell into doubt"),
    "replaced-unaware": ("acts-in-doubt", "the lease came to another while a leader was in doubt"),
    "superseded": ("unaware", "a leader in doubt was told by another that it leads"),
    "commit-in-doubt": ("acts-in-doubt", "a decision became durable in doubt"),
    "start-in-doubt": ("acts-in-doubt", "a replica was started again in doubt"),
    "silence-in-doubt": ("lost-in-doubt", "a node was out of session while the leader was in doubt"),
    "mass-silence": ("mass-loss", "most nodes in session fell silent together"),
    "node-lost": ("lost-rate", "a node was given up"),
    "replica-lost": ("witness", "a replica of a lost node was given up"),
    "vouched": ("witness", "a router vouched for a replica of a lost node"),
}
"""What may be met that could break an invariant: the invariant, and what it is. One that is
never met leaves its invariant untried."""


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
        self._on_disk: dict[str, int] = {}
        self._tables: dict[str, tuple[int, str]] = {}
        self._healed: dict[tuple[str, str], str] = {}
        """What followed in place of a replica that failed, by leader and replica."""
        self._losses: dict[str, deque[float]] = {}
        self._epochs: dict[tuple[int, int], str] = {}
        """Whose each epoch was, by the restores before it."""
        self._unaware: dict[tuple[str, str], float] = {}
        self._led = ""
        """Who was told last that it leads."""

    # ------------------------------------------------------------ who leads

    def check_leaders(self) -> None:
        """At most one control plane leads beyond doubt, and for as long as its claim lasts."""
        sure = [control for control in self.controls.values() if control.sure]
        for control in sure:
            late = self._world.now - control.claimed_until
            if late > ROUNDING:
                raise Violation(
                    "sure-too-long", f"{control.name} leads beyond doubt {late:.1f} s after its claim less the margin"
                )
        if len(sure) > 1:
            each = " and ".join(f"{control.name} ({self._words(control)})" for control in sure)
            row = self._store.row
            raise Violation(
                "two-leaders",
                f"{each} lead beyond doubt; the store says that {row.owner if row else 'nobody'} does",
            )

    def leads(self, control: "ControlProcess") -> None:
        """A process took the lease, or renewed it: each leader after another has a higher epoch,
        but for what a restore forgot."""
        if any(other.believes for other in self.controls.values() if other is not control):
            self._world.occasions["claim-beside-leader"] += 1
        row = self._store.row
        if row is None or row.owner != control.owner:
            return
        known = self._epochs.get((self._store.restores, row.epoch))
        if known is not None and known != row.owner:
            raise Violation("epoch-reused", f"{control.name} leads with epoch {row.epoch}, which was {known}'s")
        self._epochs[self._store.restores, row.epoch] = row.owner
        if self._led != row.owner:
            self._world.occasions["lead-passes"] += bool(self._led)
            self._led = row.owner
            for other in self.controls.values():
                if other is not control and other.leading:
                    self._world.occasions["replaced-unaware"] += 1

    def look_for_unaware(self, reaches: Callable[[str, str], bool]) -> None:
        """A leader that is in doubt lets go soon after another took the lease from it, also while
        the store is away for it (HA-02). Called now and then."""
        seen: dict[tuple[str, str], float] = {}
        for new in self.controls.values():
            old = self.controls.get(new.replaced)
            if old is None or not new.sure or not new.leading or not old.leading or old.sure:
                continue
            still = new.paused or new.busy or old.paused or old.busy
            if still or new.epoch <= old.epoch or not reaches(new.site.host, old.site.host):
                continue
            key = new.owner, old.owner
            since = seen[key] = self._unaware.get(key, self._world.now)
            if self._world.now - since > UNAWARE:
                raise Violation(
                    "unaware", f"{old.name} leads on in doubt, and {new.name}, which replaced it, reaches it"
                )
        self._unaware = seen

    def _words(self, control: "ControlProcess") -> str:
        left = control.claimed_until - self._world.now
        return f"its claim is good for {left:.1f} s" if left > 0 else "its claim was never confirmed, or is over"

    # ------------------------------------------------------------ who acts

    def sends(self, term: "Term", message: Down) -> None:
        """A leader sends a command: in doubt only what heals in place."""
        late = self._world.now - term.process.claimed_until
        if late < ROUNDING or not isinstance(message, Start | Stop):
            return
        what = f"starts {message.spec.key}" if isinstance(message, Start) else f"stops {message.key}"
        why = self._no_healing(term, message) if isinstance(message, Start) else "to stop heals nothing"
        if why:
            raise Violation(
                "acts-in-doubt",
                f"{term.process.name} {what} {late:.1f} s after its claim less the margin ended: {why}",
            )
        self._world.occasions["start-in-doubt"] += 1

    def doubts(self, term: "Term") -> None:
        """A leader fell into doubt."""
        self._world.occasions["in-doubt"] += 1
        away = any(not node.registered and node.last_heard is not None for node in term.loop.view.nodes.values())
        self._world.occasions["silence-in-doubt"] += away

    def committed(self, term: "Term") -> None:
        """Decisions became durable."""
        self._world.occasions["commit-in-doubt"] += self._world.now - term.process.claimed_until >= ROUNDING

    def _no_healing(self, term: "Term", start: Start) -> str:
        """Why a start does not bring a replica back where it failed; empty if it does."""
        node, decision = self._node_of(start.spec.host), term.durable.placement(start.spec.replica_id)
        old = decision.figures.get("heals") if decision is not None else None
        if old is None:
            return "it was not decided in place of one that failed"
        before = term.durable.placement(old)
        if before is None or before.node != node:
            return f"it runs on {node}, and {old}, which failed, ran on {before.node if before else 'no node'}"
        if any(proc.key is not None and proc.key.replica_id == old for proc in self._hosts[node].engines()):
            return f"{old} still lives"
        if self._healed.setdefault((term.leader, old), start.spec.replica_id) != start.spec.replica_id:
            return f"{self._healed[term.leader, old]} was started in place of {old} before"
        return ""

    @staticmethod
    def _node_of(address: str) -> str:
        return f"n{address.rpartition('.')[2]}"

    # ------------------------------------------------------------ who obeys whom

    def welcomed(self, node: str, epoch: int, leader: str) -> None:
        """A node took a leader's welcome. It may forget that if it dies before it is on disk,
        since it has obeyed nothing yet."""
        known = self._obeyed.get(node, (0, ""))
        self._check(known, f"node {node}", "the welcome", epoch, leader)
        self._world.occasions["node-follows"] += known[1] not in ("", leader)

    def kept(self, node: str, epoch: int, leader: str) -> None:
        """This is on a node's disk: whose welcome it took."""
        before = self._on_disk.get(node, 0)
        if epoch < before:
            raise Violation("epoch-falls", f"node {node} has epoch {epoch} of {leader} on disk, and had {before}")
        self._on_disk[node] = epoch
        self._world.occasions["node-keeps"] += 0 < before < epoch
        if epoch > self._obeyed.get(node, (0, ""))[0]:
            self._obeyed[node] = (epoch, leader)

    def accepted(self, node: str, epoch: int, leader: str) -> None:
        """A node took a leader's command."""
        if epoch > self._on_disk.get(node, 0):
            raise Violation("not-on-disk", f"node {node} took a command of epoch {epoch}, which it may forget")
        self._check(self._obeyed.get(node, (0, "")), f"node {node}", "a command", epoch, leader)
        self._obeyed[node] = (epoch, leader)

    def took_table(self, router: str, table: RouteTable) -> None:
        """A router took a table."""
        known = self._tables.get(router, (0, ""))
        self._check(known, router, "a table", table.epoch, table.leader)
        self._world.occasions["router-follows"] += known[1] not in ("", table.leader)
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

    def silenced(self, nodes: Iterable[str]) -> None:
        """These nodes, which were in session, are cut off together from now on, and no others."""
        self.cut = frozenset(nodes)
        self._world.occasions["mass-silence"] += len(self.cut) >= MASS and 2 * len(self.cut) > len(self._hosts)

    def removed(self, node: str) -> None:
        """A node leaves the fleet. Its silence begins anew if it is enrolled again: it did not fall
        silent with the others then."""
        self.cut -= {node}

    def failed(self, term: "Term", decision: Decision) -> None:
        """A replica failed. On a lost node it serves on for as long as routers say so."""
        if decision.figures.get("code") != "lost" or decision.node not in term.durable.enrolled:
            return
        self._world.occasions["replica-lost"] += 1
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
        late = now - term.process.claimed_until
        if late >= ROUNDING:
            raise Violation(
                "lost-in-doubt",
                f"{term.process.name} gives {node} up {late:.1f} s after its claim less the margin ended",
            )
        self._world.occasions["node-lost"] += 1
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
