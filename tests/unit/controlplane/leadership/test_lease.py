"""The lease machine: at most one leads beyond doubt, whatever happens on the way (HA-01, HA-02)."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.leadership.lease import (
    LATE,
    LOOK,
    MARGIN,
    RENEW,
    TTL,
    Answered,
    Claim,
    Extended,
    Holder,
    Lease,
    Lost,
    Row,
    Won,
)
from controlplane.leadership.onlooker import Onlooker
from tests.unit.controlplane.leadership.rows import TAKEOVER, TICK, Asked, Process, Store, led, run

# ---------------------------------------------------------------- taking it, renewing it


def test_the_first_takes_an_empty_row_at_once() -> None:
    """HA-01: and leads until the margin before the end of its claim, counted from when it asked."""
    store = Store()
    process = Process("a", store)
    process.wake(0.0)
    process.execute()
    process.answer(2.0)
    process.execute()
    process.answer(3.0)
    assert process.effects == [Won(1, process.clock(2.0) + TTL - MARGIN)]
    assert store.row is not None and store.row.owner == "a" and store.row.renewals == 1


def test_it_is_renewed_and_stays() -> None:
    """HA-01: every five seconds, each time from the moment it asked."""
    store = Store()
    holder = led(store)
    run([holder], 0.0, 61.0)
    assert store.row is not None and 12 <= store.row.renewals <= 14
    assert {type(effect) for effect in holder.effects} == {Won, Extended}
    assert {effect.epoch for effect in holder.effects} == {1}


def test_a_candidate_waits_while_it_is_renewed() -> None:
    """HA-01: however long."""
    store = Store()
    holder = led(store)
    candidate = Process("candidate", store)
    run([holder, candidate], 0.0, 300.0)
    assert holder.sure(300.0) and not candidate.lease.leading and not candidate.effects


def test_a_crash_is_taken_over_after_the_lease_has_run_out() -> None:
    """HA-02: within TTL + 4 s of it, and not before."""
    for crash in (20.0, 21.3, 24.9, 25.0, 25.1):
        store = Store()
        holder, candidate = led(store), Process("candidate", store)
        run([holder, candidate], 0.0, crash)
        now = crash
        while not candidate.lease.leading:
            candidate.step(now)
            assert not (candidate.sure(now) and holder.sure(now))
            now += TICK
        assert crash + TTL - RENEW - LOOK <= now <= crash + TTL + TAKEOVER
        assert candidate.effects == [Won(2, candidate.lease.until)]


def test_a_released_lease_is_taken_at_once() -> None:
    """HA-02: by whoever looks next."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    run([holder, candidate], 0.0, 10.0)
    store.release("holder")
    run([candidate], 10.0, 10.0 + LOOK + 2 * TICK)
    assert candidate.sure(11.2) and candidate.lease.epoch == 2


def test_of_two_candidates_one_wins() -> None:
    """HA-01: both saw the same row; the other begins to wait anew."""
    store = Store()
    holder, one, other = led(store), Process("one", store), Process("other!", store)
    run([holder, one, other], 0.0, 10.0)
    store.release("holder")
    one.wake(11.0), other.wake(11.0)
    for process in (one, other):
        process.execute()
    for process in (one, other):
        process.answer(11.0)
    for process in (one, other):
        process.execute()
        process.answer(11.0)
    assert one.lease.leading and not other.lease.leading
    run([one, other], 11.0, 100.0)
    assert one.sure(99.0) and not other.effects


def test_the_longer_of_two_lengths_is_waited_for() -> None:
    """HA-01: the holder's is in the row; a candidate with a shorter one must not cut it off."""
    for holders, candidates in ((30.0, 6.0), (6.0, 30.0)):
        store = Store()
        holder = Process("holder", store, ttl=holders, renew=1.0, margin=1.0)
        candidate = Process("candidate", store, ttl=candidates, renew=1.0, margin=1.0)
        run([holder, candidate], 0.0, 10.0)
        run([candidate], 10.0, 10.0 + 28.5)
        assert not candidate.lease.leading
        run([candidate], 38.5, 10.0 + 30.0 + TAKEOVER)
        assert candidate.lease.leading


# ---------------------------------------------------------------- the store away


def test_while_the_store_is_away_the_holder_keeps_the_lead_and_gets_into_doubt() -> None:
    """HA-01: nobody else can have it; once the store is back the holder, which asks every second, goes on."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    run([holder, candidate], 0.0, 20.0)
    run([holder, candidate], 20.0, 120.0, away=("holder", "candidate"))
    assert holder.lease.leading and not holder.sure(119.0) and holder.lease.failing == "away"
    run([holder, candidate], 120.0, 123.0)
    assert holder.sure(123.0) and not candidate.effects and not holder.lease.failing
    assert holder.lease.epoch == 1, "it is the same lead"


def test_a_holder_that_alone_is_cut_off_is_replaced_and_lets_go_when_it_is_back() -> None:
    """HA-01, HA-02: long after it stopped acting."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    run([holder, candidate], 0.0, 20.0)
    run([holder, candidate], 20.0, 80.0, away=("holder",))
    assert candidate.sure(79.0) and holder.lease.leading and not holder.sure(79.0)
    run([holder, candidate], 80.0, 82.0)
    assert holder.effects[-1] == Lost("the lease is candidate's")
    assert not holder.lease.leading and candidate.sure(82.0)


def test_a_candidate_that_did_not_see_the_row_for_a_while_waits_anew() -> None:
    """HA-01: it cannot know whether it was renewed meanwhile and is the same only by chance."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    run([holder, candidate], 0.0, 10.0)
    run([candidate], 10.0, 38.0)
    run([candidate], 38.0, 40.0, away=("candidate",))
    run([candidate], 40.0, 40.0 + TTL - LOOK)
    assert not candidate.lease.leading
    run([candidate], 40.0 + TTL - LOOK, 40.0 + TTL + TAKEOVER)
    assert candidate.lease.leading


def test_a_pause_longer_than_the_lease_ends_in_doubt_by_time_alone() -> None:
    """HA-01: no event tells a process that it slept."""
    store = Store()
    holder = led(store)
    run([holder], 0.0, 20.0)
    assert not holder.sure(20.0 + TTL)
    assert holder.lease.leading, "until the store has said what is so"


def test_the_margin_is_for_clocks_that_run_at_different_rates() -> None:
    """HA-01: the holder's is slow and the candidate's fast, five in a hundred each."""
    store = Store()
    holder, candidate = Process("holder", store, rate=0.95), Process("candidate", store, rate=1.05)
    run([holder, candidate], 0.0, 20.0)
    run([holder, candidate], 20.0, 60.0, away=("holder",))
    assert candidate.sure(59.0) and holder.lease.leading


# ---------------------------------------------------------------- answers that got lost


def test_an_answer_that_came_late_counts_from_its_question() -> None:
    """HA-01: the store may have carried it out long before."""
    store = Store()
    holder = led(store)
    holder.wake(RENEW)
    holder.execute()
    holder.answer(RENEW + TTL)
    assert holder.lease.leading and not holder.sure(RENEW + TTL)


def test_a_claim_whose_answer_got_lost_is_renewed_before_it_counts() -> None:
    """HA-01: others may have seen it long before we hear of it."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    run([holder, candidate], 0.0, 10.0)
    store.release("holder")
    candidate.wake(11.0)
    candidate.execute()
    candidate.answer(11.0)
    candidate.execute()
    candidate.lose(12.0)
    assert store.row is not None and store.row.owner == "candidate" and not candidate.lease.leading
    candidate.wake(31.0)
    candidate.execute()
    candidate.answer(31.0)
    assert not candidate.lease.leading, "another may have seen that row for twenty seconds"
    candidate.execute()
    candidate.answer(31.5)
    assert candidate.effects == [Won(2, candidate.clock(31.0) + TTL - MARGIN)]


def test_a_claim_that_is_carried_out_after_a_release_takes_nothing() -> None:
    """HA-02: a question of a process that is gone must not lead for it."""
    store = Store()
    holder = led(store)
    holder.wake(RENEW)
    store.release("holder")
    holder.execute()
    assert store.row is not None and store.row.owner == ""
    candidate = Process("candidate", store)
    late = Claim("", store.row.renewals - 1)
    store.execute("ghost", late, TTL)
    candidate.step(6.0)
    assert candidate.sure(6.0)


# ---------------------------------------------------------------- a store that went back in time


def test_an_id_of_ours_in_an_older_copy_makes_no_leader() -> None:
    """HA-01: the holder may still be at work; whoever led before must wait like everybody."""
    store = Store()
    first, second = led(store), Process("second", store)
    run([first, second], 0.0, 10.0)
    copy = store.row
    run([first, second], 10.0, 60.0, away=("first", "holder"))
    run([first, second], 60.0, 65.0)
    assert second.sure(65.0) and not first.lease.leading and copy is not None and copy.owner == first.name
    store.restore(copy)
    run([first, second], 65.0, 65.0 + TTL - LOOK, away=("second",))
    assert not first.lease.leading
    run([first, second], 65.0 + TTL - LOOK, 65.0 + TTL + TAKEOVER, away=("second",))
    assert first.lease.leading


@pytest.mark.parametrize("emptied", [True, False], ids=["emptied", "released"])
def test_a_row_that_became_free_by_going_back_is_left_alone_for_a_lease(emptied: bool) -> None:
    """HA-01: an older copy does not know of the holder, which is back first."""
    store = Store()
    first = led(store)
    store.release("holder")
    free = store.row
    second, third = Process("second", store), Process("third!!", store)
    run([second, third], 0.0, 20.0)
    assert second.sure(20.0) and first.lease.leading
    store.restore(None if emptied else free)
    run([second, third], 20.0, 20.0 + TTL - LOOK, away=("second",))
    assert not third.lease.leading
    run([second, third], 50.0, 50.0 + TTL + TAKEOVER)
    assert second.lease.leading != third.lease.leading


def test_a_holder_beyond_doubt_goes_on_where_the_store_went_back() -> None:
    """HA-01: nobody can have had the lease since it was renewed last."""
    store = Store()
    holder, candidate = led(store), Process("candidate", store)
    run([holder, candidate], 0.0, 30.0)
    store.restore(store.copies[2])
    run([holder, candidate], 30.0, 90.0)
    assert holder.sure(89.0) and not candidate.effects
    store.restore(None)
    run([holder, candidate], 90.0, 150.0)
    assert holder.sure(149.0) and not candidate.effects


def test_a_holder_in_doubt_lets_go_where_the_store_went_back() -> None:
    """HA-01: another may have led in what was lost, and be at work still."""
    store = Store()
    holder = led(store)
    run([holder], 0.0, 30.0)
    run([holder], 30.0, 70.0, away=("holder",))
    store.restore(store.copies[2])
    holder.step(71.5)
    assert holder.effects[-1] == Lost("the store went back in time while it was in doubt that we lead")


# ---------------------------------------------------------------- epochs


def test_an_epoch_that_a_peer_saw_is_topped_by_a_renewal_at_once() -> None:
    """AGT-04: and only once the store has confirmed that we lead."""
    store = Store()
    holder = led(store)
    holder.lease.want_epoch(41, holder.clock(1.0))
    assert holder.lease.epoch == 1
    holder.step(1.0)
    assert holder.effects[-1] == Extended(42, holder.lease.until) and store.row is not None and store.row.epoch == 42
    holder.lease.want_epoch(41, holder.clock(2.0))
    holder.wake(2.0)
    assert holder.open is None, "it is topped already"


def test_an_epoch_wanted_while_a_question_is_open_comes_with_the_next() -> None:
    """AGT-04: which follows at once."""
    store = Store()
    holder = led(store)
    holder.wake(RENEW)
    holder.lease.want_epoch(7, holder.clock(RENEW))
    holder.execute()
    holder.answer(RENEW)
    holder.step(RENEW)
    assert holder.lease.epoch == 8


def test_a_leader_that_was_replaced_gets_no_higher_epoch() -> None:
    """AGT-04: it learns that it leads no more instead."""
    store = Store()
    holder = led(store)
    assert store.row is not None
    store.put(replace(store.row, owner="other", renewals=9, epoch=5, holder=Holder("cp-2")))
    holder.lease.want_epoch(5, holder.clock(1.0))
    holder.step(1.0)
    assert holder.effects[-1] == Lost("the lease is cp-2's") and store.row.epoch == 5


def test_a_candidate_wants_no_epoch() -> None:
    """AGT-04: who does not lead has none."""
    lease = Lease("a", 0.0)
    lease.want_epoch(5, 0.0)
    assert lease.wake(0.0) != [Claim(floor=6)]


def test_a_lease_that_is_not_renewed_before_its_margin_makes_no_sense() -> None:
    """HA-01: such settings are refused."""
    for options in ({"renew": 25.0}, {"renew": 0.0}, {"ttl": 5.0, "renew": 1.0, "margin": 4.5}):
        with pytest.raises(ValueError, match="renewed before its margin"):
            Lease("a", 0.0, **options)


# ---------------------------------------------------------------- anything at all


class World:
    """Two or three processes, a store, and everything that can go wrong on the way, drawn at random.

    Clocks run up to 4 % fast or slow, which a margin of a sixth of the lease is for.
    """

    def __init__(self, seed: int, count: int, *, restores: bool, tangled: bool) -> None:
        self.rng = random.Random(seed)
        self.store = Store()
        self.now = 0.0
        self.restores = restores
        self.tangled = tangled
        self.processes = [self.process(f"{'p' * number}{number}") for number in range(1, count + 1)]
        self.late: list[tuple[str, float, Asked]] = []
        self.paused: dict[str, float] = {}
        self.away: dict[str, float] = {}
        self.born = count

    def process(self, name: str) -> Process:
        return Process(name, self.store, self.now, rate=self.rng.uniform(0.96, 1.04))

    def run(self, steps: int) -> set[str]:
        """The names of those who led."""
        leaders = set()
        for _ in range(steps):
            self.now += self.rng.choice((0.0, 0.01, 0.1, 0.5, 1.0)) * self.rng.random()
            self.step()
            sure = [process.name for process in self.processes if process.sure(self.now)]
            assert len(sure) <= 1, f"{sure} lead at {self.now:g}"
            leaders |= set(sure)
        return leaders

    def step(self) -> None:
        process = self.rng.choice(self.processes)
        draw = self.rng.random()
        if draw < 0.003:
            self.paused[process.name] = self.now + self.rng.choice((1.0, 10.0, 26.0, 31.0, 70.0))
        elif draw < 0.006:
            for one in self.rng.choice(([process], self.processes)):
                self.away[one.name] = self.now + self.rng.choice((2.0, 10.0, 27.0, 32.0, 80.0))
        elif draw < 0.008 and not self.restores:
            self.replace(process)
        elif draw < 0.010 and self.restores:
            self.restore()
        elif draw < 0.012 and process.lease.leading:
            other = self.rng.choice(self.processes)
            other.superseded(process.lease.epoch, process.name, self.now)
        elif draw < 0.03 and self.late:
            owner, ttl, asked = self.late.pop(self.rng.randrange(len(self.late)))
            self.store.execute(owner, asked.question, ttl)
        elif self.now >= self.paused.get(process.name, 0.0):
            self.advance(process)

    def advance(self, process: Process) -> None:
        if process.open is None:
            process.wake(self.now)
            return
        away = self.now < self.away.get(process.name, 0.0)
        draw = self.rng.random()
        if away or draw < 0.02:
            if self.rng.random() < 0.3:
                process.execute()
            ttl, asked = process.lease.ttl, process.lose(self.now)
            if asked is not None and not asked.done and (self.tangled or not away):
                self.late.append((process.name, ttl, asked))
        elif process.open.done:
            process.answer(self.now)
        else:
            process.execute()

    def replace(self, process: Process) -> None:
        """It ends, cleanly or not, and another starts."""
        if process.lease.leading and self.rng.random() < 0.5:
            self.store.release(process.name)
        self.born += 1
        self.processes[self.processes.index(process)] = self.process(f"{'p' * self.born}{self.born}")

    def restore(self) -> None:
        """Put an older copy in the place of the store: one from before everybody's last look."""
        oldest = min(process.lease._newest.renewals if process.lease._newest else 0 for process in self.processes)
        fit = [copy for copy in self.store.copies if (copy.renewals if copy else 0) < oldest]
        if fit:
            self.late.clear()  # no connection outlives it
            for process in self.processes:
                if process.open is not None and not process.open.done:
                    process.lose(self.now)
            self.store.restore(self.rng.choice(fit))


@given(seed=st.integers(0, 2**32), count=st.integers(2, 3))
@settings(max_examples=150)
def test_never_two_lead_beyond_doubt(seed: int, count: int) -> None:
    """HA-01: delays, pauses, lost answers, claims that are carried out late, crashes, clean ends, clocks that drift."""
    World(seed, count, restores=False, tangled=True).run(2500)


@given(seed=st.integers(0, 2**32), count=st.integers(2, 3))
@settings(max_examples=150)
def test_not_even_where_the_store_goes_back_in_time(seed: int, count: int) -> None:
    """HA-01: an older copy forgets who leads, or says that somebody does who did once."""
    World(seed, count, restores=True, tangled=True).run(2500)


def test_somebody_leads_most_of_the_time() -> None:
    """HA-02: all of the above would hold if nobody ever led."""
    leaders = [len(World(seed, 2, restores=False, tangled=True).run(4000)) for seed in range(8)]
    assert min(leaders) >= 1 and sum(leaders) > 12


def test_whoever_leads_is_in_the_row() -> None:
    """HA-01: epochs rise with each change of hands."""
    world = World(5, 3, restores=False, tangled=True)
    world.run(6000)
    changes = [copy for copy in world.store.copies if copy is not None and copy.owner]
    epochs = {}
    for copy in changes:
        assert epochs.setdefault(copy.epoch, copy.owner) == copy.owner, "an epoch has one leader"
    assert sorted(epochs) == list(range(1, len(epochs) + 1)) and len(epochs) >= 3


def test_what_a_row_tells_by_default() -> None:
    """HA-01: nobody, and the usual length."""
    assert Row("a", 1, 1) == Row("a", 1, 1, TTL, Holder("", {}), None)


# ---------------------------------------------------------------- what others may be told


def test_a_candidate_knows_when_it_takes_the_lease() -> None:
    """AGT-03: agents that wait for it come back then: at the moment at which it asks for the row."""
    store = Store()
    holder = led(store)
    candidate = Process("candidate", store)
    assert candidate.lease.takes_at is None, "it has not looked yet"
    now = run([holder, candidate], 0.0, 20.0)
    told = candidate.lease.takes_at
    assert told is not None and TTL - RENEW - LOOK <= told - candidate.clock(now) <= TTL
    while not candidate.lease.leading:
        now += TICK
        assert candidate.lease.takes_at == told
        candidate.step(now)
    assert candidate.clock(now) == pytest.approx(told, abs=TICK + 0.001)
    assert candidate.lease.takes_at is None


def test_a_candidate_that_cannot_tell_when_says_so() -> None:
    """AGT-03: the store does not answer, so the wait begins anew; a row that is free is taken at once."""
    store = Store()
    holder = led(store)
    candidate = Process("candidate", store)
    now = run([holder, candidate], 0.0, 20.0)
    now = run([holder, candidate], now, now + 3.0, away=("candidate",))
    assert candidate.lease.takes_at is None
    now = run([holder, candidate], now, now + 3.0)
    assert candidate.lease.takes_at is not None
    store.release("holder")
    candidate.wake(now + 2.0)
    candidate.execute()
    assert candidate.open is not None
    candidate.lease.handle(Answered(candidate.clock(now + 2.0), candidate.open.row), candidate.clock(now + 2.0))
    assert candidate.lease.takes_at is not None and candidate.lease.takes_at <= candidate.clock(now + 2.0)


# ---------------------------------------------------------------- a leader that is silent


def test_a_renewal_that_is_due_and_does_not_come_is_noticed() -> None:
    """HA-01: some seconds late is not overdue; each renewal begins it anew; a store that is away tells nothing."""
    store = Store()
    holder = led(store)
    candidate = Process("candidate", store)
    onlooker = Process("onlooker", store)
    onlooker.lease = Onlooker("onlooker", onlooker.clock(0.0), renew=RENEW)
    both = [candidate, onlooker]
    now = run([holder, *both], 0.0, 60.0)
    assert not any(each.lease.overdue(each.clock(now)) for each in both)
    now = run(both, now, now + LATE - LOOK)
    assert not any(each.lease.overdue(each.clock(now)) for each in both)
    now = run(both, now, now + RENEW + 3 * LOOK)
    for each in both:
        since = each.lease.unrenewed_since
        assert each.lease.overdue(each.clock(now)) and since is not None and each.clock(now) - since > RENEW + LATE
    now = run(both, now, now + 3 * LOOK, away=("candidate", "onlooker"))
    assert not any(each.lease.overdue(each.clock(now)) for each in both)
    assert candidate.lease.unrenewed_since is onlooker.lease.unrenewed_since is None
    store.release("holder")
    run([onlooker], now, now + 2 * LOOK)
    assert onlooker.lease.unrenewed_since is None, "nobody has it"
