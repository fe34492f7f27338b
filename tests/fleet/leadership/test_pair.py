"""Two control planes on one store: who leads, who takes over, and what the others are told (HA-01, HA-02)."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml

from llmgw.wire.messages import Goodbye, HeartbeatAck, Welcome
from llmgw.wire.routing import decode_table
from tests.fakes.controlplane import CATALOG, ControlPlane, until
from tests.fakes.postgresql import Server
from tests.fleet.leadership.pair import PATIENCE, TAKEOVER, TTL, Member, Pair, Stopwatch, session


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Pair]:
    """A pair for what does not depend on the kind of store."""
    (tmp_path / "store").mkdir()
    made = Pair(tmp_path, f"sqlite://{tmp_path}/store/llmgw.db")
    try:
        yield made.start()
    finally:
        made.stop()


def table(member: ControlPlane) -> requests.Response:
    """What a router gets."""
    return member.router().get(f"{member.routers}/router/v1/table", params={"wait": "2"}, timeout=30)


@pytest.mark.filterwarnings("ignore:Unverified HTTPS")
def test_the_one_that_stands_by_sends_everybody_to_the_leader(quick: Pair) -> None:
    """HA-01: agents, routers, people and who joins; watchdogs and Prometheus are answered."""
    first, second = quick.first, quick.second
    assert first.leads() and first.sure() and not second.leads() and not second.sure()
    told = second.told()
    assert told["code"] == "not_leader" and told["leader"] == str(first.addresses["agents.listen"])
    assert told["retry_seconds"] == 1.0 and "cp-1 leads" in told["message"]
    assert 0.0 < told["takeover_seconds"] <= TTL

    routers = second.router()
    for method, path in (("GET", "table"), ("POST", "report"), ("POST", "usage"), ("POST", "identity")):
        answer = routers.request(method, f"{second.routers}/router/v1/{path}", data=b"x" * 1000, timeout=30)
        assert answer.status_code == 503
        assert answer.json()["code"] == "not_leader"
        assert answer.json()["leader"] == str(first.addresses["routers.listen"])
    for path in ("status", "nodes", "no/such/path"):
        answer = second.ask(path)
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
        assert answer.json()["leader"] == str(first.addresses["admin.listen"])
        assert answer.json()["message"].startswith(
            f"this control plane stands by: cp-1 leads ({first.addresses['admin.listen']}); if it renews its lease no "
            "more, this one leads in "
        )
        assert 0.0 < answer.json()["takeover_seconds"] <= TTL
    joined = requests.get(f"https://{second.addresses['join.listen']}/join/v1/authorities", timeout=30, verify=False)  # noqa: S501 - as one that joins
    assert joined.status_code == 503 and joined.json()["leader"] == str(first.addresses["join.listen"])
    assert requests.get(f"{second.api}/healthz", timeout=30).json() == {"status": "ok"}

    leader = first.get("status")["leader"]
    assert leader["name"] == "cp-1" and leader["ha"] and leader["sure"] and 0 < leader["remaining_seconds"] <= TTL
    published = decode_table(table(first).content)
    agent = session(first)
    welcome = agent.expect(Welcome)
    assert (published.epoch, published.leader) == (welcome.epoch, welcome.leader) and welcome.leader
    agent.close()


def test_a_clean_stop_is_taken_over_at_once(pair: Pair) -> None:
    """HA-02: within 4 s of it; agents hear goodbye at once, and are welcome at the other, with a higher epoch."""
    first, second = pair.first, pair.second
    agent = session(first)
    before = agent.expect(Welcome)
    watch = Stopwatch()
    first.tell(signal.SIGTERM)
    goodbye = agent.expect(Goodbye)
    assert goodbye.spread_seconds >= 1 and goodbye.reason == "the control plane is stopping"
    assert agent.receive() is None and watch.seconds < 2.0 + PATIENCE
    until(second.serves, "the takeover")
    assert watch.seconds < TAKEOVER + PATIENCE
    assert first.stop() == 0
    after = session(second, highest_epoch=before.epoch, leader=before.leader).expect(Welcome)
    assert after.epoch == before.epoch + 1 and after.leader != before.leader
    assert second.get("status")["leader"]["name"] == "cp-2"


def test_events_tell_of_every_leader(quick: Pair) -> None:
    """API-04, HA-01: who led when, and why, whoever is asked; what the one before did, also where the one
    that is asked led before that."""
    first, second = quick.first, quick.second
    assert first.stop() == 0
    until(second.serves, "the takeover")
    first.start()
    assert second.stop() == 0
    until(first.serves, "the first leads again")
    words = [
        "cp-1 leads with epoch 3: cp-2 let go of its lease",
        "cp-2 leads no more: the control plane is stopping",
        "cp-2 leads with epoch 2: cp-1 let go of its lease",
        "cp-1 leads no more: the control plane is stopping",
        "cp-1 leads with epoch 1: nobody ever had the lease",
    ]

    def told() -> bool:
        return [event["reason"] for event in first.get("events?kind=leader")["events"]] == words

    until(told, "the events")
    epochs = [event["epoch"] for event in first.get("events?limit=1000")["events"]]
    assert set(epochs) == {1, 2, 3} and epochs == sorted(epochs, reverse=True)
    pages, cursor = [], ""
    while cursor is not None:
        answer = first.get(f"events?kind=leader&limit=2{cursor and '&cursor='}{cursor}")
        pages += [event["reason"] for event in answer["events"]]
        cursor = answer.get("next")
    assert pages == words


def test_a_crash_is_taken_over_once_the_lease_has_run_out(pair: Pair) -> None:
    """HA-02: kill -9; within its length and 4 s, and not before. The one that comes back stands by."""
    first, second = pair.first, pair.second
    epoch = session(first).expect(Welcome).epoch
    watch = Stopwatch()
    first.stop(signal.SIGKILL)
    until(second.serves, "the takeover")
    assert TTL - 1.0 < watch.seconds < TTL + TAKEOVER + PATIENCE
    assert session(second).expect(Welcome).epoch == epoch + 1
    first.start()
    assert not first.leads() and first.told()["leader"] == str(second.addresses["agents.listen"])


def test_one_that_slept_lets_everything_go_when_it_wakes(pair: Pair) -> None:
    """HA-01, HA-02: SIGSTOP for longer than the lease; agents are told to go elsewhere; it stands by then,
    and leads again when the other ends."""
    first, second = pair.first, pair.second
    agent = session(first)
    before = agent.expect(Welcome)
    first.freeze()
    until(second.serves, "the takeover")
    first.tell(signal.SIGCONT)
    goodbye = agent.expect(Goodbye)
    assert goodbye.reason == "another control plane leads" and agent.receive() is None
    until(lambda: not first.leads(), "the first stands by")
    assert first.told()["leader"] == str(second.addresses["agents.listen"])
    assert session(second).expect(Welcome).epoch == before.epoch + 1

    def told() -> list[str]:
        return [event["reason"] for event in second.get("events?kind=leader")["events"]]

    until(lambda: any(words.startswith("cp-1 leads no more: ") and "cp-2" in words for words in told()), "its word")
    assert f"cp-2 leads with epoch {before.epoch + 1}: cp-1 no longer renewed its lease" in told()
    assert second.stop() == 0
    until(first.serves, "the first leads again")
    again = session(first).expect(Welcome)
    assert again.epoch == before.epoch + 2 and again.leader != before.leader
    assert first.get("status")["epoch"] == again.epoch


def test_a_change_by_one_that_does_not_know_yet_is_not_kept(quick: Pair) -> None:
    """HA-01: a leader that wakes up after another took over confirms nothing that the other does not know."""
    first, second = quick.first, quick.second
    agent = session(first)
    agent.expect(Welcome)
    first.freeze()
    until(second.serves, "the takeover")
    first.tell(signal.SIGCONT)
    answer = requests.post(f"{first.api}/api/v1/keys", json={"name": "lost"}, headers=first.auth, timeout=30)
    assert answer.status_code == 503, answer.text
    assert second.get("keys")["keys"] == []


def test_an_epoch_that_a_peer_saw_is_topped(quick: Pair) -> None:
    """AGT-04: on the word of the store; the next leader's is higher still."""
    first, second = quick.first, quick.second
    told = first.agent().upgrade().hello(highest_epoch=40, leader="somebody")
    assert told.receive().code == "epoch_unproven"
    told.close()

    def welcome() -> Welcome | None:
        agent = first.agent().upgrade().hello(highest_epoch=40, leader="somebody")
        answer = agent.receive()
        agent.close()
        return answer if isinstance(answer, Welcome) else None

    assert until(welcome, "a welcome").epoch == 41
    assert first.get("status")["epoch"] == 41
    until(lambda: decode_table(table(first).content).epoch == 41, "the table's epoch")
    first.stop()
    until(second.serves, "the takeover")
    assert session(second).expect(Welcome).epoch == 42


def test_a_catalog_that_changed_while_it_stood_by_counts_when_it_leads(quick: Pair) -> None:
    """CAT-06: and one that is faulty by then keeps it from nothing: what was last valid counts."""
    first, second = quick.first, quick.second
    second.catalog.write_text(yaml.safe_dump({"models": {"later": CATALOG["models"]["sim-off"]}}))
    second.tell(signal.SIGHUP)
    until(lambda: "catalog read models=1" in second.log(), "the reload")
    second.catalog.write_text("models: {a: {scalin: 1}}")
    first.stop()
    until(second.serves, "the takeover")
    assert "the catalog was refused, the one before stays" in second.log() and "models.a.scalin" in second.log()
    assert second.get("catalog")["models"] == ["later"]


def test_those_that_agree_and_those_that_do_not_keep_each_other_out(url: str, tmp_path: Path) -> None:
    """HA-01: without ha a control plane has its store for itself, or does not start."""
    alone = ControlPlane(tmp_path, store__url=url).start()
    member = Member(tmp_path / "member", "cp-2", url)
    own = "store.url of its own" if url.startswith("sqlite") else "database of its own"
    with pytest.raises(AssertionError, match=f"another control plane uses it.*give this one a {own}"):
        member.start()
    assert member.process is not None and member.process.wait(30) == 2
    assert alone.stop() == 0
    member.start()
    with pytest.raises(AssertionError, match="another control plane uses it"):
        alone.start()
    twin = Member(tmp_path / "twin", "cp-3", url, state_dir=str(member.state))
    with pytest.raises(AssertionError, match="give this one a state_dir of its own"):
        twin.start()  # journal and spool have one writer, whoever leads
    member.stop()


def test_a_store_that_is_away_puts_the_lead_in_doubt_and_ends_it_not(tmp_path: Path) -> None:
    """HA-01: sessions and tables stay, nobody takes over, and it goes on once the store is back."""
    server = Server().start()
    try:
        with server.database() as url:
            pair = Pair(tmp_path, url).start()
            try:
                _away(server, pair)
            finally:
                pair.stop()
    finally:
        server.close()


def _away(server: Server, pair: Pair) -> None:
    first, second = pair.first, pair.second
    agent = session(first)
    welcome = agent.expect(Welcome)
    server.stop()
    until(lambda: not first.sure(), "the doubt")
    assert first.leads() and not second.leads()
    status = first.get("status")
    assert not status["leader"]["sure"] and status["leader"]["failing"]
    (problem,) = [each for each in status["problems"] if each["kind"] == "lease" or each["subject"] == "database"]
    assert "has not renewed this control plane's lease" in problem["message"]
    assert "see that the database runs" in problem["message"] and "nothing was changed" not in problem["message"]
    assert second.told()["code"] == "not_leader"
    watch = Stopwatch()
    until(lambda: watch.seconds > TTL + 2.0, "longer than the lease")
    assert first.leads() and not second.leads()
    agent.heartbeat(3)
    assert agent.expect(HeartbeatAck).sequence == 3
    assert table(first).status_code == 200
    server.start()
    until(first.sure, "no doubt")
    assert not second.leads() and first.get("status")["epoch"] == welcome.epoch
    agent.heartbeat(4)
    assert agent.expect(HeartbeatAck).sequence == 4
    agent.close()
