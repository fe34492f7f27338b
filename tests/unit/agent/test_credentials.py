"""The pure machine that renews the node's certificate, alone and within the agent."""

import random

import pytest

from agent import credentials as c
from agent import events, session
from agent.core import Agent
from agent.events import Notice, Report
from llmgw.runtime.kinds import Address
from llmgw.wire.messages import Credential, Inventory, Renew, Welcome

DAY = 86400.0


class Rig:
    """A node in session whose certificate is due after 15 of 30 days."""

    def __init__(self, due=15 * DAY, live=True):
        self.now = 0.0
        self.machine = c.Credentials(random.Random(1))
        self.feed(c.Held(due, 30 * DAY, "roots-1"))
        self.machine.session(live, self.now)

    def feed(self, event):
        return self.machine.handle(event, self.now)

    def receive(self, **fields):
        return self.machine.received(Credential(**fields), self.now)

    def wake(self):
        self.now = max(self.now, self.machine.next_wake)
        return self.machine.wake(self.now)

    def ask(self):
        assert self.wake() == [c.MakeRequest()]
        assert self.feed(c.Requested("CSR")) == [Report(Renew(request="CSR"))]


def told(effects):
    return [effect.message for effect in effects if isinstance(effect, Notice)]


def test_asks_when_due_and_takes_what_comes():
    """SEC-01: over the session; afterwards the next one's time counts."""
    rig = Rig()
    rig.ask()
    assert rig.now == 15 * DAY
    install = c.Install("PEM", "")
    assert rig.receive(certificate="PEM") == [install]
    assert rig.machine.next_wake is None
    assert rig.feed(c.Installed(install)) == []
    assert rig.machine.next_wake is None
    rig.feed(c.Held(40 * DAY, 45 * DAY, "roots-1"))
    assert rig.machine.next_wake == 40 * DAY


def test_nothing_is_asked_outside_a_session_or_before_the_files_were_read():
    """SEC-01: what is due then waits for the next session."""
    assert c.Credentials(random.Random(1)).next_wake is None
    rig = Rig(due=-5.0, live=False)
    assert rig.machine.next_wake is None
    rig.machine.session(True, rig.now)
    assert rig.wake() == [c.MakeRequest()]


def test_the_control_plane_may_want_it_at_once():
    """SEC-08: after a new authority; a look at the files meanwhile does not undo it."""
    rig = Rig()
    rig.receive(renew=True)
    rig.feed(c.Held(15 * DAY, 30 * DAY, "roots-1"))
    rig.ask()
    assert rig.now == 0.0
    rig.receive(renew=True)
    rig.feed(c.Installed(rig.receive(certificate="PEM")[0]))
    rig.feed(c.Held(20 * DAY, 35 * DAY, "roots-1"))
    assert rig.machine.next_wake == 20 * DAY


@pytest.mark.parametrize("fault", ["refused", "unanswered", "no key", "not installed", "session lost"])
def test_a_renewal_that_fails_is_tried_again(fault):
    """SEC-01: many times before the end of the certificate's life, and never in a tight loop."""
    rig = Rig()
    tries = 0
    while rig.now < 30 * DAY:
        if fault == "no key":
            assert rig.wake() == [c.MakeRequest()]
            assert told(rig.feed(c.NotRequested("no space left")))
        else:
            rig.ask()
            match fault:
                case "refused":
                    (words,) = told(rig.receive(fault="it cannot sign"))
                    assert words == "the certificate was not renewed: it cannot sign"
                case "unanswered":
                    assert "did not answer" in told(rig.wake())[0]
                case "not installed":
                    (install,) = rig.receive(certificate="PEM")
                    assert told(rig.feed(c.Installed(install, "it is another node's")))
                case "session lost":
                    rig.machine.session(False, rig.now)
                    assert rig.machine.next_wake is None
                    rig.machine.session(True, rig.now)
        tries += 1
        assert rig.machine.next_wake > rig.now
    assert 100 < tries < 3000


def test_authorities_come_unasked_and_disturb_nothing():
    """SEC-08: a new bundle is installed at any time, also while a certificate is asked for."""
    rig = Rig()
    install = c.Install("", "ROOTS")
    assert rig.receive(authorities="ROOTS") == [install]
    assert "the authorities were not replaced: damaged" in told(rig.feed(c.Installed(install, "damaged")))
    rig.ask()
    rig.receive(authorities="ROOTS")
    rig.feed(c.Installed(install))
    assert rig.receive(certificate="PEM", authorities="MORE") == [c.Install("PEM", "MORE")]


def test_a_certificate_that_was_not_asked_for_is_not_taken():
    """SEC-01: there is no key for it."""
    rig = Rig()
    assert rig.receive(certificate="PEM") == []
    assert rig.receive(certificate="PEM", authorities="ROOTS") == [c.Install("", "ROOTS")]


def test_a_request_made_for_a_session_that_is_gone_is_dropped():
    """SEC-01: one renewal at a time, whatever comes in between."""
    rig = Rig()
    rig.wake()
    rig.machine.session(False, rig.now)
    assert rig.feed(c.Requested("CSR")) == []
    rig.machine.session(True, rig.now)
    rig.ask()


def test_within_the_agent():
    """SEC-01, SEC-08: hello tells which authorities are trusted; Renew goes out over the session
    and Credential comes in over it."""
    agent = Agent("n", "1", (Address("127.0.0.1", 7001),), random.Random(1))
    agent.handle(c.Held(50.0, 1000.0, "roots-1"), 0.0)
    agent.handle(events.Booted("boot-1", events.AgentState()), 0.0)
    agent.handle(events.InventoryRead(Inventory(address="127.0.0.1")), 0.0)
    agent.handle(events.Woke(), 0.0)
    (hello,) = [each.message for each in agent.handle(session.Opened(1), 0.0)]
    assert hello.authorities == "roots-1"
    welcome = Welcome(session_id="s", protocol=1, version="1", epoch=1, silence_seconds=300.0)
    agent.handle(session.Received(1, welcome), 0.0)
    now = 0.0
    made = []
    while not made:
        now = agent.next_wake
        made = [each for each in agent.handle(events.Woke(), now) if isinstance(each, c.MakeRequest)]
    assert now == 50.0
    (sent,) = agent.handle(c.Requested("CSR"), now)
    assert sent == session.Send(1, Renew(request="CSR"))
    came = agent.handle(session.Received(1, Credential(certificate="PEM")), now)
    assert came == [c.Install("PEM", "")]


def test_a_restored_leader_is_not_obeyed_by_the_agent():
    """AGT-04: the whole agent declines the welcome of a lower epoch, and of its own epoch from another leader."""
    agent = Agent("n", "1", (Address("127.0.0.1", 7001),), random.Random(1))
    agent.handle(events.Booted("boot-1", events.AgentState(highest_epoch=5, leader="a")), 0.0)
    agent.handle(events.InventoryRead(Inventory(address="127.0.0.1")), 0.0)
    for attempt, (epoch, leader) in enumerate([(4, "a"), (5, "b")], start=1):
        agent.handle(events.Woke(), 100.0 * attempt)
        agent.handle(session.Opened(attempt), 100.0 * attempt)
        welcome = Welcome(session_id="s", protocol=1, version="1", epoch=epoch, leader=leader)
        (effect,) = agent.handle(session.Received(attempt, welcome), 100.0 * attempt)
        assert isinstance(effect, session.Disconnect) and "is not obeyed" in effect.reason
        agent.handle(session.Closed(attempt, "closed"), 100.0 * attempt)
