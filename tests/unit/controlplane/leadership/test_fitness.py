"""Whether a control plane that stands by could lead, and when it tries again (HA-01)."""

from collections.abc import Iterator

import gevent
import pytest

from controlplane.fitness import EVERY, FIRST, LONGEST, TOLD, Fitness, words
from controlplane.store.errors import StoreError, StoreUnavailable
from llmgw.runtime.clock import ManualClock
from llmgw.runtime.settings import Fault, SettingsError

TOKEN = SettingsError("llmgw server", [Fault("state_dir", "admin.token could be read by others: remove it")])


class Trial:
    """What would end a term, if anything."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.error: Exception | None = None
        self.looks = 0
        self.fitness = Fitness(self._rehearse, self.clock)

    def _rehearse(self) -> None:
        self.looks += 1
        if self.error is not None:
            raise self.error

    def look(self, error: Exception | None = None) -> str:
        """The fault after another look, at which ``error`` is found."""
        self.error = error
        self.fitness.looked.clear()
        self.fitness._poke.set()
        with gevent.Timeout(10):
            self.fitness.looked.wait()
        return self.fitness.fault


@pytest.fixture
def trial() -> Iterator[Trial]:
    made = Trial()
    made.fitness.start()
    with gevent.Timeout(10):
        made.fitness.looked.wait()
    yield made
    made.fitness.stop()


def test_what_would_end_a_term_is_known_before_until_it_is_mended(trial: Trial) -> None:
    """HA-01: with place and remedy."""
    assert trial.fitness.fault == ""
    assert trial.look(TOKEN) == "llmgw server: state_dir: admin.token could be read by others: remove it"
    assert (
        trial.look(StoreError("its schema is newer:\nrun the newer llmgw"))
        == "its schema is newer: run the newer llmgw"
    )
    assert trial.look() == ""


def test_a_store_that_does_not_tell_changes_nothing(trial: Trial) -> None:
    """HA-01: unknown is neither good nor bad."""
    assert trial.look(StoreUnavailable("away")) == ""
    found = trial.look(TOKEN)
    assert found and trial.look(StoreUnavailable("away")) == found


def test_an_error_of_our_own_keeps_nobody_from_leading(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    """HA-01: the looks go on. What is known to be wrong stays so: unknown is neither good nor bad."""
    assert trial.look(ZeroDivisionError()) == "" and "cannot be told" in caplog.text
    found = trial.look(TOKEN)
    assert found and trial.look(ZeroDivisionError()) == found
    assert trial.look() == ""


def test_each_fault_is_logged_once(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    """HA-01: and that it is mended."""
    caplog.set_level("INFO", "llmgw.standby")
    trial.look(TOKEN)
    trial.look(TOKEN)
    trial.look()
    trial.look()
    assert [record.message for record in caplog.records] == [
        "this control plane cannot lead as it is: it does not ask for the lease",
        "nothing keeps this control plane from leading any more",
    ]


def test_after_a_term_that_could_not_begin_others_may_lead_for_a_while(trial: Trial) -> None:
    """HA-01: 5 s, then twice as long each time, to a minute; anew after a term that began."""
    waits = []
    for _ in range(6):
        trial.fitness.failed(TOKEN)
        began = trial.clock.monotonic()
        while trial.look():
            trial.clock.advance(1)
        waits.append(trial.clock.monotonic() - began)
    assert waits == [FIRST, 10, 20, 40, LONGEST, LONGEST]
    trial.fitness.began()
    trial.fitness.failed(TOKEN)
    trial.clock.advance(FIRST)
    assert trial.look() == ""


def test_people_who_mended_it_need_not_wait(trial: Trial) -> None:
    """HA-01: SIGHUP; what the next look finds holds all the same."""
    trial.fitness.failed(TOKEN)
    assert trial.look()
    trial.fitness.look_now()
    assert trial.look() == ""
    trial.fitness.failed(TOKEN)
    trial.fitness.look_now()
    assert trial.look(StoreError("newer")) == "newer"


def test_nobody_looks_after_the_end(trial: Trial) -> None:
    """HA-02: a term begins or the process ends."""
    looks = trial.looks
    trial.fitness.stop()
    gevent.sleep(0)
    trial.fitness._poke.set()
    gevent.sleep(0.01)
    assert trial.looks == looks and EVERY > 1


def test_few_faults_of_many_are_told() -> None:
    """HA-01: an answer is no place for a thousand."""

    def many(count: int) -> SettingsError:
        return SettingsError("catalog.yaml", [Fault(f"models.m{n}", "is wrong") for n in range(count)])

    assert words(many(TOLD)).count("is wrong") == TOLD
    assert words(many(TOLD + 2)).count("is wrong") == TOLD and words(many(TOLD + 2)).endswith("; and 2 more")
