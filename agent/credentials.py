"""The node's certificate as a pure machine: when it is renewed, over the session (SEC-01).

Asked for when it is due, or when the control plane wants it; one renewal at a time, tried
again for as long as it fails. Whom the node trusts comes the same way, unasked (SEC-08).
A driver makes keys and writes files, and answers each effect with one event.
"""

import math
import random
from dataclasses import dataclass
from typing import Literal

from agent.events import Notice, Report
from llmgw.identity import renewal
from llmgw.wire.messages import Credential, Renew

ANSWER_TIMEOUT = 120.0
"""Seconds for the control plane to sign a request: many may wait at the same time."""

Phase = Literal["idle", "making", "asked", "installing"]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Held:
    """What is on disk: when the certificate is due and when it ends (monotonic), and the
    digest of the authorities. Told at the start and again whenever it changed, also because
    the clock of the host did."""

    due: float
    expires: float
    authorities: str


@dataclass(frozen=True, slots=True)
class Requested:
    """Answer to ``MakeRequest``: the PEM of a request with a new key."""

    request: str


@dataclass(frozen=True, slots=True)
class NotRequested:
    """``MakeRequest`` could not be carried out."""

    why: str


@dataclass(frozen=True, slots=True)
class Installed:
    """Answer to ``Install``: it was carried out, and ``Held`` comes too; or ``fault`` says
    why nothing changed."""

    install: "Install"
    fault: str = ""


Event = Held | Requested | NotRequested | Installed

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class MakeRequest:
    """Make a new key, and a request for a certificate for it."""


@dataclass(frozen=True, slots=True)
class Install:
    """Write what came, either of it empty, after checking that it is ours and that the next
    connection will work with it."""

    certificate: str
    authorities: str


Effect = MakeRequest | Install | Report | Notice


class Credentials:
    """See the module. Nothing is asked for before the first ``Held``."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.authorities = ""
        self.phase: Phase = "idle"
        self.next_wake: float | None = None
        self._due = self._expires = math.inf
        self._wanted = False
        self._not_before = -math.inf
        self._live = False

    def session(self, live: bool, now: float) -> None:
        """Tell whether a session stands."""
        if self._live and not live and self.phase == "asked":
            self._fail(now)
        self._live = live
        self._set_wake()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in what became of an effect."""
        effects: list[Effect] = []
        match event:
            case Held(due, expires, authorities):
                self._due, self._expires, self.authorities = due, expires, authorities
            case Requested(request) if self._live:
                self.phase = "asked"
                self._not_before = now + ANSWER_TIMEOUT
                effects = [Report(Renew(request=request))]
            case Requested():
                self._fail(now)
            case NotRequested(why):
                effects = [self._complain(why, now)]
            case Installed(install, fault):
                effects = self._installed(install, fault, now)
        self._set_wake()
        return effects

    def _installed(self, install: Install, fault: str, now: float) -> list[Effect]:
        if not install.certificate:
            return [Notice("warning", f"the authorities were not replaced: {fault}")] if fault else []
        if fault:
            return [self._complain(fault, now)]
        self.phase = "idle"
        self._wanted = False
        self._due = math.inf  # ``Held`` tells the new one's
        self._not_before = -math.inf
        return []

    def received(self, message: Credential, now: float) -> list[Effect]:
        """Take in what the control plane sent. A certificate that was not asked for is none of
        ours: there is no key for it."""
        effects: list[Effect] = []
        certificate = ""
        if self.phase == "asked" and message.fault:
            effects.append(self._complain(message.fault, now))
        elif self.phase == "asked" and message.certificate:
            certificate = message.certificate
            self.phase = "installing"
        if certificate or message.authorities:
            effects.append(Install(certificate, message.authorities))
        if message.renew and self.phase == "idle":
            self._wanted = True
        self._set_wake()
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Do what is due. Harmless when nothing is."""
        if self.next_wake is None or now < self.next_wake:
            return []
        effects: list[Effect] = []
        if self.phase == "asked":
            effects = [self._complain("the control plane did not answer in time", now)]
        elif self.phase == "idle":
            self.phase = "making"
            effects = [MakeRequest()]
        self._set_wake()
        return effects

    def _complain(self, why: str, now: float) -> Notice:
        self._fail(now)
        wait = round(self._not_before - now, 1)
        return Notice("warning", f"the certificate was not renewed: {why}", {"retry_in": wait})

    def _fail(self, now: float) -> None:
        self._not_before = renewal.retry(self._expires, now, self._rng.random())
        self.phase = "idle"

    def _set_wake(self) -> None:
        match self.phase:
            case "idle" if self._live and (self._wanted or self._due < math.inf):
                self.next_wake = max(-math.inf if self._wanted else self._due, self._not_before)
            case "asked":
                self.next_wake = self._not_before
            case _:
                self.next_wake = None
