"""Usage from clients' requests to the sums, with the real router, control plane, agent and
simulated engine (TEN-06, STO-03)."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.fakes.postgresql import Server
from tests.harness.cluster import Cluster
from tests.harness.models import sim_model
from tests.harness.waiting import until

KILLS = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Settings of a store whose commits last."""
    if request.param == "sqlite":
        yield {}
        return
    server = Server(durable=True).start()
    try:
        with server.database() as url:
            yield {"store": {"url": url}}
    finally:
        server.close()


class Clients:
    """Ask all the time, each for itself, and add up what the answers say."""

    def __init__(self, url: str, key: str, model: str, number: int) -> None:
        self.answered = 0
        self.tokens = 0
        self.refused = 0
        self.others: set[str] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._ask = {"url": f"{url}/v1/chat/completions", "headers": {"Authorization": f"Bearer {key}"}}
        self._body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        self._threads = [threading.Thread(target=self._run) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with requests.Session() as session:
            while not self._ending.is_set():
                try:
                    answer = session.post(json=self._body, timeout=30, **self._ask)  # type: ignore[arg-type]
                    tokens = answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else None
                except (requests.RequestException, KeyError) as error:
                    self.others.add(repr(error)[:300])
                    continue
                with self._lock:
                    if tokens is not None:
                        self.answered += 1
                        self.tokens += tokens
                    elif answer.status_code == 503:
                        self.refused += 1
                    else:
                        self.others.add(f"{answer.status_code} {answer.text[:200]}")

    @property
    def done(self) -> int:
        """Requests that have their answer, whichever."""
        return self.answered + self.refused

    def end(self) -> None:
        """Let each finish what it began."""
        self._ending.set()
        for thread in self._threads:
            thread.join()


def test_every_answered_request_is_counted_once_whatever_is_killed(tmp_path: Path, store: dict[str, Any]) -> None:
    """STO-03: kill -9 of the control plane while clients go on, again and again, and a router
    that ends and starts again: requests and tokens are exactly those that clients got."""
    chance = random.Random(11)
    with Cluster(tmp_path, {"m": sim_model()}, controlplane=store) as cluster:
        cluster.start()
        key = cluster.serve("m")

        def sums() -> tuple[int, int]:
            rows = cluster.api("usage?by=model")["usage"]
            answered = sum(row["requests"] - row["failed"] for row in rows)
            return answered, sum(row["completion_tokens"] for row in rows)

        asked = Clients(cluster.router_url, key, "m", 4)
        try:
            for number in range(KILLS):
                reached = asked.answered + 50
                until(lambda reached=reached: asked.answered >= reached, 20, f"clients get answers {asked.others}")
                time.sleep(chance.uniform(0.0, 1.2))  # the moment of the kill
                cluster.controlplane.kill()
                reached = asked.done + 50
                until(lambda reached=reached: asked.done >= reached, 20, f"a router alone {asked.others}")
                cluster.controlplane.restart()
                until(cluster.admin_up, 60, f"control plane {number}")
        finally:
            asked.end()
        assert not asked.others, asked.others
        cluster.router.signal(15)
        assert cluster.router.process.wait(20) == 0
        cluster.router.restart()
        until(cluster.router_up, 60, "the router again")
        until(lambda: sums()[0] >= asked.answered, 60, f"the sums of {asked.answered} answers")
        counted, tokens = sums()
        # What serve() asked to see that the model answers is counted as well.
        spare = counted - asked.answered
        assert 0 <= spare <= 20 and tokens - asked.tokens == spare, "each asked for one token"
        logged = cluster.api("requests?limit=5000")["requests"]
        assert len({entry["id"] for entry in logged}) == len(logged), "none twice"
