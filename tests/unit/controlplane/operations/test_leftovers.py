"""What a term left on disk gets to the store while somebody else leads (STO-03, HA-01)."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gevent
import pytest

from controlplane.background import Background
from controlplane.events import Decision
from controlplane.journal import JOURNAL, Journal
from controlplane.leadership.lease import Holder, taking
from controlplane.leftovers import Leftovers
from controlplane.store.access import StoreThreads
from controlplane.store.errors import NotLeading, StoreUnavailable
from controlplane.store.opening import threads
from controlplane.store.queries.sequences import MOST_GAPS
from controlplane.store.spool import waiting
from controlplane.usage.intake import SPOOL
from llmgw.runtime.clock import ManualClock
from llmgw.wire.routing import UsageBatch
from tests.unit.controlplane.operations.test_feed import batch, counted
from tests.unit.controlplane.store.places import Place, count_batch

SETTINGS = {"requests.log": True, "requests.retention": 7e5, "usage.retention": 4e7, "audit.retention": 4e7}
SETTINGS |= {"events.retention": 3e6}


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait while greenlets go on."""
    with gevent.Timeout(3 * seconds, AssertionError(f"not in time: {what}")):
        while not condition():
            gevent.sleep(0.01)


class Term:
    """What a control plane has between disk and store while it leads. ``owner`` is its id in the lease."""

    def __init__(self, state: Path, place: Place, owner: str) -> None:
        self.clock = ManualClock()
        self.store = place.threads(guard=lambda tx: tx.leadership.require(owner))
        self.journal = Journal(state / JOURNAL, self.clock, lambda _: None, 3).start()
        self.background = Background(
            state,
            self.store,
            self.journal,
            self.clock,
            setting=SETTINGS.__getitem__,
            scopes=dict,
            knows_model=lambda _: True,
            spool_bytes=10**8,
        ).start()

    def decide(self, reasons: Sequence[str]) -> None:
        """Write decisions down."""
        for reason in reasons:
            self.journal.note(Decision("place", reason, model="big"))
        assert self.journal._idle.wait(10)

    def stop(self) -> None:
        """As a term ends."""
        self.journal.stop()
        self.background.stop(0.1)


def lead(place: Place, owner: str) -> None:
    """The lease is that one's."""

    def work(tx) -> None:
        tx.leadership.claim(owner, taking(tx.leadership.read()), ttl=30.0, holder=Holder())

    place.open().transact(work)


def reasons(store: StoreThreads) -> list[str]:
    return sorted(event.reason for event in store.read(lambda tx: tx.events.page(1000)).items)


@pytest.fixture
def left(place: Place, tmp_path: Path) -> Iterator[Callable[..., Leftovers]]:
    """Makes ``Leftovers``, started, and stops them."""
    made: list[Leftovers] = []

    def make(open_store: Callable[[], StoreThreads] | None = None) -> Leftovers:
        opening = open_store or (lambda: threads(place.backend(), 5.0))
        made.append(Leftovers(tmp_path, opening, cluster={}, spool_bytes=10**8, clock=ManualClock()).start())
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def term(place: Place, tmp_path: Path) -> Term:
    """A term that ended with ten batches and three decisions on disk, since another leads."""
    lead(place, "two")
    made = Term(tmp_path, place, "one")
    for sequence in range(1, 11):
        made.background.take_usage("router-1", batch(sequence))
    made.decide([f"reason {number}" for number in range(3)])
    until(lambda: made.background.failing["usage"] and made.background.failing["events"], 10, "it is noticed")
    assert "another control plane" in made.background.failing["usage"]
    made.stop()
    assert waiting(tmp_path / SPOOL)[0] == 10
    return made


def test_what_was_left_reaches_the_store_once_and_nothing_else_does(
    term: Term, place: Place, tmp_path: Path, left: Callable[..., Leftovers]
) -> None:
    """HA-01: though another leads, and has counted some of it and some that came later; what rules the fleet
    is refused as ever."""
    store = place.threads()
    for sequence in (5, 11):
        store.write(lambda tx, n=sequence: count_batch(tx, "router-1", "boot", n, (), log=True))
    handing = left()
    until(lambda: handing.waiting_bytes == 0, 10, "usage")
    until(lambda: len(reasons(store)) == 3, 10, "events")
    assert counted(store) == 9, "all but the fifth, which was empty where it came first"
    assert store.write(lambda tx: count_batch(tx, "router-1", "boot", 10, (), log=True)) is False
    assert {request.id for request in store.read(lambda tx: tx.usage.requests(99)).items} == {
        f"boot-{n}-0" for n in range(1, 11) if n != 5
    }
    with pytest.raises(NotLeading):
        term.store.write(lambda tx: count_batch(tx, "router-1", "boot", 12, (), log=True))


def test_the_next_term_goes_on_where_it_was_ended(
    term: Term, place: Place, tmp_path: Path, left: Callable[..., Leftovers]
) -> None:
    """HA-01: ended at any moment; the spool is the next term's then, and all counts once."""
    handing = left()
    gevent.sleep(0)
    handing.stop()
    lead(place, "three")
    following = Term(tmp_path, place, "three")
    following.background.take_usage("router-1", batch(11))
    until(lambda: waiting(tmp_path / SPOOL)[0] == 0, 10, "an empty spool")
    assert counted(following.store) == 11
    until(lambda: len(reasons(following.store)) == 3, 10, "events")
    following.stop()
    assert handing.waiting_bytes is not None


def test_a_store_that_is_away_is_waited_for(
    term: Term, place: Place, left: Callable[..., Leftovers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """STO-03: however often it cannot be opened; what waits stays told."""
    monkeypatch.setattr("controlplane.leftovers.PAUSE", 0.01)
    tries = 0

    def open_store() -> StoreThreads:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise StoreUnavailable("away")
        return threads(place.backend(), 5.0)

    handing = left(open_store)
    until(lambda: handing.waiting_bytes, 10, "the first look")
    until(lambda: handing.waiting_bytes == 0, 10, "an empty spool")
    assert tries == 4 and counted(place.threads()) == 10


def test_nothing_left_asks_nobody(place: Place, left: Callable[..., Leftovers]) -> None:
    """HA-01: one that never led opens no store for it."""

    def open_store() -> StoreThreads:
        raise AssertionError("the store was opened")

    handing = left(open_store)
    until(lambda: handing.waiting_bytes == 0, 10, "the look")
    handing.stop()
    assert handing._greenlet.successful()


def test_a_line_of_the_journal_that_a_crash_cut_is_left_out(
    place: Place, tmp_path: Path, left: Callable[..., Leftovers]
) -> None:
    """STO-03: the whole ones are kept, and the next term's journal goes on behind it."""
    lines = [json.dumps({"at": "2026-01-01T00:00:00.000+00:00", "kind": "stop", "reason": f"r{n}"}) for n in range(3)]
    (tmp_path / JOURNAL).write_text("\n".join(lines)[:-9])
    left()
    store = place.threads()
    until(lambda: reasons(store) == ["r0", "r1"], 10, "the whole lines")


def test_a_journal_that_was_closed_is_not_written(tmp_path: Path) -> None:
    """REC-11: a write of a term that ended touches no file any more, least of all one that is not its own."""
    journal = Journal(tmp_path / JOURNAL, ManualClock(), lambda _: None).start()
    journal.stop()
    with pytest.raises(OSError, match="was closed"):
        journal._append(b"{}\n")
    assert (tmp_path / JOURNAL).read_bytes() == b""


def test_batches_that_are_given_up_are_counted_and_told(place: Place, tmp_path: Path) -> None:
    """STO-03: where a router skips so often that its gaps are not remembered."""
    lead(place, "one")
    term = Term(tmp_path, place, "one")
    for sequence in range(3, 3 * MOST_GAPS + 7, 3):
        term.background.take_usage("router-1", UsageBatch(boot="liar", sequence=sequence))
    until(lambda: term.background.waiting_bytes == 0, 10, "an empty spool")
    assert term.background.given_up == 4
    ((part, words),) = term.background.problems
    assert part == "usage" and "4 batches that routers skipped" in words
    term.stop()
