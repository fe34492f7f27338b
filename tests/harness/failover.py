"""An installation of two control planes on one PostgreSQL server, of which the one that leads is
taken away, or the server, while clients' traffic goes on (HA-01, HA-02, AGT-03, AGT-04, REC-25).

Tests and the benchmark run the same scenarios: tests with a short lease, the benchmark with
the product's own times.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import requests

from tests.fakes.postgresql import Server
from tests.harness.cluster import Cluster
from tests.harness.models import sim_model
from tests.harness.obedience import Obedience
from tests.harness.outcome import Outcome, Takeover
from tests.harness.traffic import Traffic
from tests.harness.waiting import until

STEADY = "steady"
"""The model of the traffic, as many replicas as there are nodes."""

SPARE = "spare"
"""One that nobody asks, whose engine may be killed."""

EXTRA = "extra"
"""One that comes and goes."""

LATER = "catalog and cluster settings are read later"
"""What a control plane says that is told to read them while its lease is in doubt."""

WORKERS = 2
"""Processes of the router, each with a table of its own."""


class Site:
    """The installation; a context manager. ``settings`` overlays both control planes'; ``ttl``
    is how long their lease lasts by them, in seconds."""

    def __init__(self, folder: Path, *, nodes: int, streams: int, settings: Mapping[str, Any], ttl: float) -> None:
        self._stack = ExitStack()
        self._streams = streams
        self.server = Server(durable=True).start()
        self._stack.callback(self.server.close)
        load = ("--loop", "--decode-rate", "5", "--slots", "256", "--context", "1000000")
        self.models = {STEADY: sim_model(*load, replicas=nodes), SPARE: sim_model()}
        self.cluster = Cluster(
            folder,
            self.models,
            controlplane=settings,
            control_planes=("cp-1", "cp-2"),
            nodes=[f"node-{number:02}" for number in range(1, nodes + 1)],
            store=self.server.url(self.server.create()),
        )
        self.ttl = ttl
        self.key = ""
        self.asked = 0
        """Requests that the router was asked with ``key``, whatever became of them."""
        self.seen: Traffic | None = None
        """The traffic that goes on."""
        self.obedience: Obedience

    def __enter__(self) -> "Site":
        with ExitStack() as stack:
            stack.push(self._stack.pop_all())
            cluster = stack.enter_context(self.cluster)
            self._start()
            sites = cluster.layout.nodes.values()
            self.obedience = Obedience({site.name: site.state / "agent.json" for site in sites})
            stack.callback(self.obedience.close)
            until(self._serving, 60, f"{STEADY} and {SPARE} are ready")
            self.key = cluster.make_key("traffic")
            client = cluster.client(self.key)
            until(lambda: self._answered(client, STEADY), 15, f"the router serves {STEADY}")
            self._stack = stack.pop_all()
        return self

    def _start(self) -> None:
        """``cp-1`` leads: every run goes the same way."""
        first, second = self.cluster.layout.control_planes
        self.cluster.start_controlplane(first)
        for node in self.cluster.layout.nodes:
            self.cluster.start_agent(node)
        self.cluster.start_router()
        until(lambda: self.metric(first, "llmgw_leader") == 1, 20, f"{first} leads")
        self.cluster.start_controlplane(second)
        self.cluster.wait_up()

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    # ------------------------------------------------------------ what is so

    def get(self, name: str, path: str) -> Any:
        """A resource, of this control plane alone. An ``AssertionError`` if it does not answer."""
        site = self.cluster.layout.control_planes[name]
        try:
            headers = {"Authorization": f"Bearer {site.token_file.read_text().strip()}"}
            answer = requests.get(f"{site.admin_url}/api/v1/{path}", headers=headers, timeout=2)
        except (OSError, requests.RequestException) as error:
            raise AssertionError(f"{name}: {error}") from error
        assert answer.ok, f"{name}: {answer.status_code} {answer.text}"
        return answer.json()

    def metric(self, name: str, series: str, seconds: float = 2.0) -> float | None:
        """A figure of a control plane; ``None`` if it does not answer, or has no such figure."""
        site = self.cluster.layout.control_planes[name]
        with suppress(requests.RequestException):
            for line in requests.get(f"{site.admin_url}/metrics", timeout=seconds).text.splitlines():
                if line.startswith(f"{series} "):
                    return float(line.rpartition(" ")[2])
        return None

    def boot(self, name: str) -> str:
        """The name of the term of the control plane that leads."""
        site = self.cluster.layout.control_planes[name]
        shown = requests.get(f"{site.admin_url}/metrics", timeout=5).text
        return shown.partition('llmgw_controlplane_info{boot="')[2].partition('"')[0]

    def leader(self) -> str:
        """Who leads."""
        (name,) = until(self._leaders, 20, "one control plane leads")
        return name

    def _leaders(self) -> list[str]:
        names = self.cluster.layout.control_planes
        found = [name for name in names if self.metric(name, "llmgw_leader") == 1]
        return found if len(found) == 1 else []

    def other(self, name: str) -> str:
        """The other control plane."""
        (other,) = [each for each in self.cluster.layout.control_planes if each != name]
        return other

    def ready(self, model: str, name: str = "") -> int:
        """Ready replicas of a model, to who leads."""
        return int(self.get(name or self.leader(), f"models/{model}")["ready"])

    def _answered(self, client: openai.OpenAI, model: str) -> bool:
        """Whether a request gets its answer; every try counts."""
        self.asked += 1
        try:
            client.completions.create(model=model, prompt="x", max_tokens=1)
        except openai.APIStatusError as error:
            raise AssertionError(str(error)) from error
        return True

    def _serving(self) -> bool:
        return self.ready(STEADY) == len(self.cluster.layout.nodes) and self.ready(SPARE) == 1

    def whole(self) -> "Site":
        """Until one control plane leads, the other stands by, and every node is in session."""
        for name in self.cluster.layout.control_planes:
            if not self.cluster.part(name).running:
                self.cluster.part(name).restart()
        until(lambda: self.metric(self.other(self.leader()), "llmgw_leader") == 0, 20, "the other one stands by")
        until(lambda: self._in(self.leader(), ""), 60, "every node and router process is there")
        return self

    def _in(self, name: str, boot: str) -> bool:
        """Whether it has every node and router process, and has settled."""
        status = self.get(name, "status")
        return self._nodes(status) and self._routers(status, boot)

    def _nodes(self, status: Any) -> bool:
        return bool(status["nodes"]["connected"] == len(self.cluster.layout.nodes) and not status["settling"]["active"])

    @staticmethod
    def _routers(status: Any, boot: str) -> bool:
        current = [each for each in status["routers"] if str(each["generation"]).startswith(boot)]
        return len(current) >= WORKERS

    def counted(self) -> int:
        """Requests with ``key`` that are in the store, once all are; or after a while."""

        def count() -> int:
            rows = self.get(self.leader(), "usage?by=key")["usage"]
            return sum(row["requests"] for row in rows if row["key_name"] == "traffic")

        with suppress(AssertionError):
            until(lambda: count() >= self.asked, 20)
        return count()

    # ------------------------------------------------------------ scenarios

    @contextmanager
    def traffic(self, *, may_end: Callable[[], set[int]] = set) -> Iterator[Outcome]:
        """Traffic while the body breaks things; what came of it is known at its end, engines of
        ``may_end`` left out."""
        outcome = Outcome(streams=self._streams)
        before = self.cluster.engine_pids()
        disobeyed = len(self.obedience.faults)
        began = time.monotonic()
        self.seen = seen = Traffic(self.cluster.client(self.key), STEADY, streams=self._streams)
        try:
            yield outcome
            seen.goes_on()
        finally:
            outcome.cut = seen.cut
            self.seen = None
            seen.close()
            self.asked += seen.answered + len(seen.failed) + self._streams
            outcome.answered = seen.answered
            outcome.failed = [(at - began, how) for at, how in seen.failed]
            outcome.slowest, outcome.pause = seen.slowest, seen.pause
            outcome.disobeyed = self.obedience.faults[disobeyed:]
            outcome.moved = (before ^ self.cluster.engine_pids()) - may_end()

    def watching(self, name: str, began: float, took: Takeover) -> Callable[[], bool]:
        """A condition: this control plane has taken over. When it did what goes into ``took``."""
        boot = ""

        def over() -> bool:
            nonlocal boot
            status = self.get(name, "status")
            boot = boot or self.boot(name)
            passed = time.monotonic() - began
            took.people = took.people or passed
            took.routers = took.routers or (passed if self._routers(status, boot) else 0.0)
            took.nodes = took.nodes or (passed if self._nodes(status) else 0.0)
            return bool(took.routers and took.nodes)

        return over

    def stopped(self) -> Outcome:
        """The leader is stopped in good order."""
        return self._ended(lambda leader: self.cluster.part(leader).signal(signal.SIGTERM))

    def killed(self) -> Outcome:
        """The leader is killed."""
        return self._ended(lambda leader: self.cluster.part(leader).kill())

    def _ended(self, end: Callable[[str], Any]) -> Outcome:
        leader = self.leader()
        boot = self.boot(leader)
        with self.traffic() as outcome:
            began = time.monotonic()
            end(leader)
            given = self.obedience.commands(boot)
            until(self.watching(self.other(leader), began, outcome.takeover), self.ttl + 60, "a takeover", every=0.05)
            outcome.stale = self.obedience.commands(boot) - given
            self.changes()
            assert self.cluster.part(leader).stop() in (0, -signal.SIGKILL)
        return outcome

    def frozen(self, seconds: float, *, changes: bool = True) -> Outcome:
        """The leader stands still for longer than its lease, and is told meanwhile to stop what
        all traffic goes to and to start something else: it must not when it wakes up.
        ``changes``: afterwards there are some."""
        leader = self.leader()
        successor = self.other(leader)
        boot = self.boot(leader)
        with self.traffic() as outcome, self._paused(leader) as began:
            given = self.obedience.commands(boot)
            over = self.watching(successor, began, outcome.takeover)

            def slept() -> bool:
                with suppress(AssertionError):
                    over()
                return time.monotonic() > began + seconds

            until(slept, seconds, "it stood still for long enough")
            assert outcome.takeover.people, f"{successor} does not lead after {seconds:g} s"
            self._mislead(leader)
            self.cluster.part(leader).resume()
            until(over, self.ttl + 60, f"{successor} takes over", every=0.05)
            until(lambda: self.metric(leader, "llmgw_leader") == 0, 20, f"{leader} stands by")
            outcome.stale = self.obedience.commands(boot) - given
            self.cluster.set_catalog(self.models)
            if changes:
                self.changes()
        return outcome

    def frozen_without_a_store(self) -> Outcome:
        """The same, and the store is away when it wakes up, with all nodes but one in session with
        it: its successor alone can tell it that another leads, some seconds later. Needs a
        silence of sessions that is far longer than the lease."""
        leader = self.leader()
        successor = self.other(leader)
        boot = self.boot(leader)
        gone_over = list(self.cluster.layout.nodes)[-1]
        with self.traffic() as outcome, self._paused(leader) as began:
            given = self.obedience.commands(boot)
            until(lambda: self.get(successor, "status"), self.ttl + 20, f"{successor} leads", every=0.05)
            outcome.takeover.people = time.monotonic() - began
            self.cluster.part(gone_over).stop()
            self.cluster.part(gone_over).restart()
            until(lambda: self._has(successor, gone_over), 30, f"{gone_over} goes to {successor}")
            self._mislead(leader)
            self.server.stop()
            back = time.monotonic()
            self.cluster.part(leader).resume()
            until(lambda: self.metric(leader, "llmgw_leader") == 0, 30, f"{leader} is told, and stands by")
            assert self.metric(successor, "llmgw_leader") == 1
            self.cluster.set_catalog(self.models)
            took = Takeover(outcome.takeover.people)
            until(self.watching(successor, back, took), self.ttl + 60, f"{successor} takes over", every=0.05)
            outcome.takeover = took
            outcome.stale = self.obedience.commands(boot) - given
            self.server.start()
            until(lambda: self.metric(successor, "llmgw_lease_sure") == 1, self.ttl, f"{successor} is sure")
            self.changes()
        return outcome

    def store_away(self, seconds: float) -> Outcome:
        """The store is away for ``seconds``: the leader keeps the lead, starts what fails again
        where it was, and places nothing new until the store is back."""
        leader = self.leader()
        killed: set[int] = set()
        epoch = self.get(leader, "status")["epoch"]

        def healed() -> set[int]:
            return killed | {self._spare(leader)[1]}

        with self.traffic(may_end=healed) as outcome:
            began = time.monotonic()
            self.server.stop()
            until(lambda: self.metric(leader, "llmgw_lease_sure") == 0, self.ttl, "the doubt")
            given = self.obedience.count
            self.cluster.set_catalog(self.models | {EXTRA: sim_model()})
            told = self._later(leader)
            self.cluster.part(leader).signal(signal.SIGHUP)
            place, pid = self._spare(leader)
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            until(lambda: self._spare(leader)[1] not in killed, 30, f"{SPARE} runs again")
            assert self._spare(leader)[0] == place, f"{SPARE} moved from {place}"
            until(lambda: self._later(leader) > told, 20, "the catalog waits for the store")
            until(lambda: time.monotonic() > began + seconds, seconds, "the store was away for long enough")
            assert not self._replicas(EXTRA, leader) and self.metric(self.other(leader), "llmgw_leader") == 0
            outcome.stale = self.obedience.count - given - 1
            back = time.monotonic()
            self.server.start()
            until(lambda: self.metric(leader, "llmgw_lease_sure") == 1, 20, "no doubt any more", every=0.05)
            outcome.takeover.people = time.monotonic() - back
            until(lambda: self.ready(EXTRA, leader) == 1, 30, f"{EXTRA}, which waited, is ready")
            assert self.get(leader, "status")["epoch"] == epoch and self._in(leader, "")
            self.changes()
        return outcome

    def changes(self) -> None:
        """Who leads places what is new, and stops what is not wanted any more."""
        leader = self.leader()
        client = self.cluster.client(self.key)
        self.cluster.set_catalog(self.models | {EXTRA: sim_model()})
        self.cluster.part(leader).signal(signal.SIGHUP)
        until(lambda: self.ready(EXTRA, leader) == 1, 30, f"{EXTRA} is ready")
        until(lambda: self._answered(client, EXTRA), 15, f"the router serves {EXTRA}")
        self.cluster.set_catalog(self.models)
        self.cluster.part(leader).signal(signal.SIGHUP)
        until(lambda: not self._replicas(EXTRA, leader), 30, f"{EXTRA} is stopped")

    @contextmanager
    def _paused(self, leader: str) -> Iterator[float]:
        part = self.cluster.part(leader)
        part.pause()
        try:
            yield time.monotonic()
        finally:
            part.resume()

    def _mislead(self, leader: str) -> None:
        """A frozen control plane's next act is to read a catalog that nobody else reads."""
        self.cluster.set_catalog({SPARE: self.models[SPARE], EXTRA: sim_model()})
        self.cluster.part(leader).signal(signal.SIGHUP)

    def _later(self, name: str) -> int:
        return self.cluster.part(name).output.count(LATER)

    def _has(self, name: str, node: str) -> bool:
        return bool(self.get(name, f"nodes/{node}")["status"] == "connected")

    def _replicas(self, model: str, name: str) -> list[Any]:
        return [each for each in self.get(name, "replicas")["replicas"] if each["model"] == model]

    def _spare(self, name: str) -> tuple[str, int]:
        """Node and process of the engine that nobody asks."""
        shown = self.get(name, f"models/{SPARE}")
        assert shown["ready"] == 1, shown
        for each in shown["replicas"]:
            replica = self.get(name, f"replicas/{each}")
            if replica["state"] == "ready":
                (shard,) = replica["shards"]
                return str(shard["node"]), int(shard["pid"])
        raise AssertionError(f"{SPARE} is not ready: {shown}")
