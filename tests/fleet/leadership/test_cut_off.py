"""The leader alone cannot reach the store: it is told that another leads, and lets go (HA-01, HA-02)."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
import yaml

from controlplane.leadership.notice import MAX_NOTICE, NOTICE_PATH, Noted, Notice
from llmgw.wire.messages import Goodbye, HeartbeatAck, Welcome
from llmgw.wire.routing import TABLE_PATH, encode
from tests.fakes.controlplane import until
from tests.fakes.line import Line
from tests.fakes.postgresql import Server
from tests.fleet.leadership.pair import PATIENCE, TAKEOVER, TTL, Member, Stopwatch, session
from tests.harness import Cluster, identities
from tests.harness import until as within
from tests.harness.models import sim_model
from tests.harness.traffic import Traffic

CLUSTER_TTL, CLUSTER_MARGIN = 6.0, 1.0


@pytest.fixture
def server() -> Iterator[Server]:
    """A PostgreSQL server that is reached over TCP."""
    made = Server(tcp=True)
    try:
        yield made.start()
    finally:
        made.close()


class CutOff:
    """``first``, which leads, reaches the store over ``line``; ``second`` as ever."""

    def __init__(self, folder: Path, server: Server) -> None:
        database = server.create()
        self.line = Line(server.port)
        self.first = Member(folder / "first", "cp-1", f"postgresql://postgres@127.0.0.1:{self.line.port}/{database}")
        self.second = Member(folder / "second", "cp-2", server.url(database))


@pytest.fixture
def pair(tmp_path: Path, server: Server) -> Iterator[CutOff]:
    made = CutOff(tmp_path, server)
    with ExitStack() as stack:
        stack.callback(made.line.close)
        for member in (made.first, made.second):
            member.start()
            stack.callback(member.stop)
        stack.callback(made.line.mend)
        yield made


def tell(member: Member, kind: str, name: str, body: bytes, *, path: str = NOTICE_PATH) -> requests.Response:
    """What somebody with a certificate of that kind is answered who says that another leads."""
    folder = member.directory / f"as-{kind}-{name}"
    if not folder.exists():
        made = identities.ours()
        made.controlplane(folder, name) if kind == "controlplane" else made.folder(folder, kind, name)
    with identities.session(folder) as peer:
        return peer.post(f"{member.routers}{path}", data=body, headers={"Llmgw-Router": name}, timeout=30)


def test_a_leader_that_alone_cannot_reach_the_store_lets_go_once_another_leads(pair: CutOff) -> None:
    """HA-02: at once, before the store is back for it; then it stands by, and leads again after the other."""
    first, second = pair.first, pair.second
    agent = session(first)
    before = agent.expect(Welcome)
    watch = Stopwatch()
    pair.line.cut()
    goodbye = agent.expect(Goodbye)
    assert watch.seconds < TTL + TAKEOVER + PATIENCE
    assert goodbye.reason == "another control plane leads" and agent.receive() is None
    until(second.serves, "the takeover")
    until(lambda: not first.leads(), "the first stands by")
    assert first.told()["code"] == "not_leader"
    assert session(second, highest_epoch=before.epoch, leader=before.leader).expect(Welcome).epoch == before.epoch + 1
    until(lambda: "who led before leads no more name=cp-1" in second.log(), "the answer")
    assert "cp-2 says that it took the lease, with epoch 2" in first.log()
    pair.line.mend()
    until(lambda: first.told()["leader"] == str(second.addresses["agents.listen"]), "the first knows the second")
    assert second.stop() == 0
    until(first.serves, "the first leads again")
    assert session(first).expect(Welcome).epoch == before.epoch + 2
    assert "Traceback" not in first.log() + second.log()


def test_a_leader_beyond_doubt_believes_nobody(pair: CutOff) -> None:
    """HA-01: no other can have the lease; it goes on. One that stands by says that it does not lead."""
    first, second = pair.first, pair.second
    agent = session(first)
    agent.expect(Welcome)
    answer = tell(first, "controlplane", "cp-2", encode(Notice(epoch=50, name="cp-2")))
    assert answer.status_code == 200 and answer.content == encode(Noted(leads=True))
    answer = tell(second, "controlplane", "cp-3", encode(Notice(epoch=50, name="cp-3")))
    assert answer.status_code == 503 and answer.json()["code"] == "not_leader"
    agent.heartbeat(1)
    assert agent.expect(HeartbeatAck).sequence == 1
    assert first.leads() and first.sure() and first.get("status")["epoch"] == 1
    agent.close()


def test_only_control_planes_are_heard(pair: CutOff) -> None:
    """SEC-01: on that path nobody else, on the others no control plane, also of one that is in doubt; what is
    no notice is refused."""
    first = pair.first
    notice = encode(Notice(epoch=50, name="cp-2"))
    pair.second.stop()
    pair.line.cut()
    until(lambda: not first.sure(), "the doubt")
    for kind in ("router", "node"):
        answer = tell(first, kind, "cp-2", notice)
        assert answer.status_code == 403 and f"that of {kind} cp-2" in answer.json()["message"]
    answer = tell(first, "controlplane", "cp-2", notice, path=TABLE_PATH)
    assert answer.status_code == 403 and answer.json()["code"] == "unauthorised"
    for body, status in ((b"{}", 400), (b'{"epoch": -1}', 400), (b"x", 400), (b" " * (MAX_NOTICE + 1), 413)):
        assert tell(first, "controlplane", "cp-2", body).status_code == status, body
    assert tell(first, "controlplane", "cp-2", encode(Notice(epoch=1, name="cp-2"))).json() == {"leads": True}
    assert first.leads()
    assert tell(first, "controlplane", "cp-2", notice).json() == {"leads": False}
    until(lambda: not first.leads(), "it lets go")


def test_all_agents_and_routers_come_to_the_new_leader_while_requests_go_on(tmp_path: Path, server: Server) -> None:
    """HA-01, HA-02: the old leader has all of them until it is told; no request fails, no engine ends."""
    database = server.create()
    with ExitStack() as stack:
        line = Line(server.port)
        stack.callback(line.close)
        cluster = stack.enter_context(
            Cluster(
                tmp_path,
                {"m": sim_model("--loop", "--decode-rate", "5", "--slots", "64", "--context", "1000000", replicas=2)},
                control_planes=("cp-1", "cp-2"),
                nodes=("node-a", "node-b", "node-c", "node-d"),
                store=server.url(database),
            )
        )
        file = cluster.settings("cp-1")
        settings = yaml.safe_load(file.read_text())
        settings["store"]["url"] = f"postgresql://postgres@127.0.0.1:{line.port}/{database}"
        file.write_text(yaml.safe_dump(settings))
        cluster.start_controlplane("cp-1")
        assert cluster.leader() == "cp-1"
        cluster.start_controlplane("cp-2")
        for node in cluster.layout.nodes:
            cluster.start_agent(node)
        cluster.start_router()
        cluster.wait_up()
        within(lambda: cluster.api("models/m")["ready"] == 2, 40, "both replicas are ready")
        client = cluster.client(cluster.make_key())
        within(lambda: cluster.answers(client, "m"), 10, "the router serves it")
        pids, epoch = cluster.engine_pids(), cluster.api("status")["epoch"]
        traffic = Traffic(client, "m", streams=2)
        stack.callback(traffic.close)

        line.cut()
        began = time.monotonic()
        address = cluster.layout.control_planes["cp-2"]

        def there() -> bool:
            headers = {"Authorization": f"Bearer {address.token_file.read_text().strip()}"}
            answer = requests.get(f"{address.admin_url}/api/v1/status", headers=headers, timeout=5)
            if not answer.ok:
                return False
            status = answer.json()
            return bool(status["nodes"]["connected"] == 4 and len(status["routers"]) >= 2 and status["epoch"] > epoch)

        within(there, 30, "every agent and router process is at the new leader")
        assert time.monotonic() - began < CLUSTER_TTL + CLUSTER_MARGIN + 15.0
        traffic.goes_on()
        assert not traffic.failed and not traffic.cut and traffic.answered
        assert cluster.engine_pids() == pids
        for part in ("cp-1", "cp-2", "node-a", "router"):
            assert "Traceback" not in cluster.part(part).output
