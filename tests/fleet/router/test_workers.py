"""Several workers: their deaths, their orderly end, and a start without a control plane."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import psutil
import pytest
import yaml

from llmgw.wire.routing import RoutedModel, decode_table
from router.settings import TABLE_FILE
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, ROOT, ROUTER_ID, Client, Router, endpoint, table_of, until
from tests.harness import identities

CHAT = '{"model":"m","messages":[]}'
STREAM = '{"model":"m","messages":[],"stream":true}'
EVENT = fake.event({"choices": [{"delta": {"content": "x"}}]})


@pytest.fixture
def upstream():
    one = FakeUpstream(key="ek-0123456789abcdef")
    yield one
    one.stop()


def table(upstream, **fields):
    return table_of(RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),)), **fields)


def owner(router, client):
    """The worker that holds a client's connection."""
    local = client.sock.getsockname()[1]
    for worker in router.workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in psutil.Process(worker).net_connections("tcp"):
                if connection.raddr and connection.raddr.port == local:
                    return worker
    return None


def held_stream(router, upstream, release):
    """A client in the middle of a stream that waits for ``release``."""
    upstream.script.append(fake.hold(fake.chunked(EVENT), release, fake.chunked(fake.DONE) + fake.LAST))
    client = router.connect()
    client.post(STREAM)
    client.read_until(EVENT)
    return client


def test_kill_9_of_a_worker(tmp_path, upstream):
    """RTR-15: another worker's streams are unharmed, and the dead one is replaced."""
    release = threading.Event()
    with Router(tmp_path, table(upstream), workers=2) as router:
        clients = {}

        def both_have_one():
            client = held_stream(router, upstream, release)
            clients.setdefault(owner(router, client), client)
            return len(clients) == 2

        until(both_have_one, 15, "a stream on each worker")
        before = set(router.workers)
        victim, survivor = clients
        os.kill(victim, signal.SIGKILL)
        assert not clients[victim].answer().complete
        until(lambda: len(router.workers) == 2 and set(router.workers) - before, 10, "a new worker")
        release.set()
        answer = clients[survivor].answer()
        assert (answer.complete, answer.body) == (True, EVENT + fake.DONE)
        assert survivor in router.workers
        for client in clients.values():
            client.sock.close()

        def served():
            with router.connect() as client:
                client.post(CHAT)
                return client.answer().status == 200

        until(served, 5, "service")


def test_graceful_stop(tmp_path, upstream):
    """RTR-15: SIGTERM closes idle connections, lets streams finish, takes no new ones, exits 0."""
    release = threading.Event()
    with Router(tmp_path, table(upstream), workers=2) as router:
        idle = router.connect()
        idle.post(CHAT)
        assert idle.answer().status == 200
        silent = router.connect()
        busy = held_stream(router, upstream, release)
        router.process.send_signal(signal.SIGTERM)
        idle.sock.settimeout(3)
        assert idle.more() == b""
        silent.sock.settimeout(3)
        assert silent.more() == b""

        def refused():
            try:
                Client(router.port).sock.close()
            except ConnectionRefusedError:
                return True
            return False

        until(refused, 5, "the listener's end")
        assert router.process.poll() is None
        release.set()
        answer = busy.answer()
        assert (answer.complete, answer.body) == (True, EVENT + fake.DONE)
        assert busy.more() == b""
        assert router.stop() == 0


def test_a_stop_while_workers_start(tmp_path, upstream):
    """RTR-15: a stop that meets a worker in its first moments is not lost: without that the master
    waits for it through the whole drain time."""
    with Router(tmp_path, table(upstream), workers=3) as router:
        router.process.send_signal(signal.SIGTTIN)
        until(lambda: len(router.workers) == 4, 5, "one more worker")
        started = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - started < 15


def test_a_stream_is_not_waited_for_for_ever(tmp_path, upstream):
    """RTR-15: the drain has a bound."""
    release = threading.Event()
    with Router(tmp_path, table(upstream), timeouts={"drain": "300ms"}) as router:
        busy = held_stream(router, upstream, release)
        started = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - started < 15
        assert "answers cut at the end of the drain" in router.log.read_text()
        assert not busy.answer().complete
        release.set()


def test_the_table_on_disk(tmp_path, upstream):
    """RTR-03: mode 0600 since it holds engine keys; a router starts from it while no control plane
    answers, and follows the control plane again when one does."""
    with Router(tmp_path, table(upstream, generation="g5")) as router:
        file = tmp_path / "state" / "route-table.json"
        until(file.exists, 5, "the table on disk")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert decode_table(file.read_bytes()) == table(upstream, generation="g5")
        assert router.stop() == 0
        router.control.stop()
        router.control = None
        router.start()
        with router.connect() as client:
            client.post(CHAT)
            assert client.answer().status == 200
            client.post(CHAT, key="wrong")
            assert client.answer().status == 401
        assert "does not answer" in router.log.read_text()


def test_a_damaged_table_on_disk(tmp_path, upstream):
    """RTR-03: a worker starts all the same, and the control plane is asked."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "route-table.json").write_bytes(b'{"generation":1}')
    with Router(tmp_path, table(upstream)) as router:
        assert "is damaged and was ignored" in router.log.read_text()
        with router.connect() as client:
            client.post(CHAT)
            assert client.answer().status == 200


def test_without_any_table(tmp_path):
    """RTR-14, RTR-02: alive, not ready, and every request told to come back."""
    with Router(tmp_path, None) as router:
        assert router.get("/healthz").status == 200
        assert router.get("/readyz").status == 503
        assert router.get("/").status == 200
        for answer in (router.get("/v1/models", f"Authorization: Bearer {KEY}"), router.get("/v1/x")):
            assert (answer.status, answer.code) == (503, "no_route_table")
        with router.connect() as client:
            client.post(CHAT)
            answer = client.answer()
            assert (answer.status, answer.code) == (503, "no_route_table")
            assert int(answer.headers["retry-after"]) > 0


def test_a_worker_serves_only_once_it_has_asked(tmp_path, upstream):
    """RTR-15: after the start every connection meets a worker with a table. A worker that
    accepted before its first poll was answered would refuse its share with 503."""
    with Router(tmp_path, table(upstream), workers=2) as router:
        assert router.stop() == 0
        (tmp_path / "state" / TABLE_FILE).unlink()
        router.control.delay = 0.3
        router.start(wait=False)
        assert {router.get("/readyz").status for _ in range(20)} == {200}


def test_a_settling_control_plane_unroutes_nothing(tmp_path, upstream):
    """REC-25: endpoints stay in use while the new control plane waits for its agents, also over a
    restart of the router."""
    with Router(tmp_path, table(upstream)) as router:
        until((tmp_path / "state" / "route-table.json").exists, 5, "the table on disk")
        router.control.publish(table_of(RoutedModel(name="m", state="loading"), generation="new-1", settling=True))
        until(lambda: "settling=True" in router.log.read_text(), 5, "the new table")

        def status():
            with router.connect() as client:
                client.post(CHAT)
                return client.answer().status

        assert status() == 200
        assert router.stop() == 0
        router.start()
        assert status() == 200
        router.control.publish(table_of(RoutedModel(name="m", state="loading"), generation="new-2"))
        until(lambda: status() == 503, 5, "the settled table")


def test_an_endpoint_that_leaves(tmp_path, upstream):
    """RTR-03: no new request goes to it, and its running stream finishes."""
    release = threading.Event()
    other = FakeUpstream(key=upstream.key)
    with Router(tmp_path, table(upstream)) as router:
        busy = held_stream(router, upstream, release)
        model = RoutedModel(name="m", state="ready", endpoints=(endpoint(other, "e9"),))
        router.control.publish(table_of(model, generation="g2"))

        def moved():
            with router.connect() as client:
                client.post(CHAT)
                assert client.answer().status == 200
            return other.received

        until(moved, 5, "the new endpoint")
        seen = len(upstream.received)
        assert moved()
        assert len(upstream.received) == seen
        release.set()
        assert busy.answer().complete
    other.stop()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("strange", "does not trust"), ("expired", "expired"), ("another", "unauthorised"), ("their", "we do not trust")],
)
def test_a_wrong_certificate(tmp_path, upstream, wrong, words):
    """RTR-03, SEC-02: of an authority that they do not know, expired, another's, or theirs of one that we do not
    know: said once, with the remedy."""
    ours, strangers = identities.ours(), identities.strangers()
    if wrong == "strange":
        strangers.folder(tmp_path / "identity", "router", ROUTER_ID, trusts=[ours.root])
    elif wrong == "their":
        ours.folder(tmp_path / "identity", "router", ROUTER_ID, trusts=[strangers.root])
    elif wrong == "expired":
        ours.expired(tmp_path / "identity", "router", ROUTER_ID)
    settings = {"router_id": "r2"} if wrong == "another" else {}
    if wrong == "another":
        ours.router(tmp_path / "identity", "r2")
    with Router(tmp_path, table(upstream), accepted=False, **settings) as router:
        until(lambda: "no route table" in router.log.read_text(), 5, "the fault")
        until(lambda: router.control.polls == 0 and router.get("/readyz").status == 503, 5, "not ready")
        assert router.log.read_text().count("no route table") == 1
        assert words in router.log.read_text()


def test_secrets_are_in_no_log_and_no_command_line(tmp_path, upstream):
    """SEC-03: the router's own key, engine keys and clients' keys."""
    with Router(tmp_path, table(upstream), log={"level": "debug"}) as router, router.connect() as client:
        client.post(CHAT)
        client.answer()
        upstream.script.append(fake.reset)
        upstream.script.append(fake.reset)
        client.post(CHAT)
        client.answer()
        client.post(CHAT, key="sk-llmgw-wrong-0123456789")
        client.answer()
        lines = [" ".join(psutil.Process(pid).cmdline()) for pid in (router.process.pid, *router.workers)]
        text = router.log.read_text() + "\n".join(lines)
    own = (tmp_path / "identity" / "key.pem").read_text().splitlines()[1]
    for secret in (own, upstream.key, KEY, "sk-llmgw-wrong-0123456789"):
        assert secret not in text


def test_without_keys(tmp_path, upstream):
    """RTR-12, SEC-06: where the table says so no key is asked for, and a public listener is warned of."""
    with Router(tmp_path, table(upstream, auth=False), listen="0.0.0.0:0") as router, router.connect() as client:
        client.post(CHAT, key="")
        assert client.answer().status == 200
        client.post(CHAT, key="whatever")
        assert client.answer().status == 200
        assert router.get("/v1/models").json["data"][0]["id"] == "m"
        assert b"authorization: Bearer " + upstream.key.encode() in upstream.received[-1].raw_head
        assert "keys are off and the listener is public" in router.log.read_text()


def test_reload(tmp_path, upstream):
    """RTR-15: SIGHUP takes new settings into new workers; with faults the ones in use stay."""
    with Router(tmp_path, table(upstream)) as router:
        before = set(router.workers)
        config = tmp_path / "router.yaml"
        settings = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump({**settings, "wrkers": 3}))
        router.process.send_signal(signal.SIGHUP)
        until(lambda: "did you mean workers" in router.log.read_text(), 5, "the fault")
        assert set(router.workers) == before
        config.write_text(yaml.safe_dump({**settings, "limits": {"body_bytes": 2000}}))
        router.process.send_signal(signal.SIGHUP)
        until(lambda: router.workers and not before & set(router.workers), 10, "new workers")
        until(lambda: router.get("/readyz").status == 200, 5, "a table")
        with router.connect() as client:
            client.post(json.dumps({"model": "m", "x": "a" * 3000}))
            assert client.answer().status == 413


def test_a_reload_with_faults_changes_nothing(tmp_path, upstream):
    """RTR-15: not for workers that are replaced later either; and an address that cannot be taken over does not end
    the router."""
    with Router(tmp_path, table(upstream)) as router, socket.create_server(("127.0.0.1", 0)) as taken:
        config = tmp_path / "router.yaml"
        settings = yaml.safe_load(config.read_text())
        changed = {**settings, "limits": {"body_bytes": 2000}}
        for fault, words in (
            ({"identity": "/nowhere/identity"}, "/nowhere/identity"),
            ({"listen": f"127.0.0.1:{taken.getsockname()[1]}"}, "listen: cannot change"),
        ):
            before = router.workers
            config.write_text(yaml.safe_dump({**changed, **fault}))
            router.process.send_signal(signal.SIGHUP)
            until(lambda words=words: words in router.log.read_text(), 5, "the fault")
            assert router.workers == before
            os.kill(before[0], signal.SIGKILL)
            until(lambda before=before: router.workers and router.workers != before, 10, "a new worker")
            until(lambda: router.get("/readyz").status == 200, 5, "a table")
            with router.connect() as client:
                client.post(json.dumps({"model": "m", "x": "a" * 3000}))
                assert client.answer().status == 200


def test_kill_9_of_the_master(tmp_path, upstream):
    """RTR-15: its workers end, since nobody would replace them, but not in the middle of an answer."""
    release = threading.Event()
    with Router(tmp_path, table(upstream), workers=1) as router:
        (worker,) = router.workers
        busy = held_stream(router, upstream, release)
        router.process.kill()
        router.process.wait()
        until(lambda: "the master process is gone" in router.log.read_text(), 5, "the worker's notice")
        release.set()
        answer = busy.answer()
        assert (answer.complete, answer.body) == (True, EVENT + fake.DONE)

        def ended():
            return not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE

        until(ended, 5, "the worker's end")


def test_an_address_in_use(tmp_path):
    """TST-7: named, with the remedy."""
    identity = identities.ours().router(tmp_path / "identity", ROUTER_ID)
    config = tmp_path / "router.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {"listen": listen, "state_dir": str(tmp_path / "state"), "identity": str(identity)}
        config.write_text(yaml.safe_dump({**settings, "router_id": ROUTER_ID}))
        done = run_router(config)
    assert done.returncode == 2
    assert f"listen: {listen} cannot be opened: stop what uses it" in done.stderr
    assert "Traceback" not in done.stderr


def run_router(config):
    """A router that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "router.main", "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"listen": "nowhere", "workers": 0, "limits": {"body": 1}},
            ["listen: ", "workers: ", "limits.body: ", "did you mean limits.body_bytes"],
        ),
        ({"router_id": "b\u00fcro", "state_dir": "/proc/x"}, ["router_id: 'b\\xfcro' must be", "state_dir: "]),
        ({"state_dir": "/proc/x"}, ["state_dir: /proc/x cannot be made"]),
        ({"identity": "/nowhere/identity"}, ["/nowhere/identity: ", "is no directory", "llmgw join"]),
        ({"upstream": {"ca_file": "/nowhere/ca"}}, ["upstream.ca_file: /nowhere/ca cannot be used", "No such file"]),
        ({"upstream": {"ca_file": __file__}}, ["upstream.ca_file: ", "cannot be used as PEM certificates"]),
    ],
)
def test_faulty_settings(tmp_path, settings, words):
    """TST-7: all faults at once with their place, status 2, no traceback."""
    config = tmp_path / "router.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(tmp_path / "state"), **settings}))
    done = run_router(config)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_garbage_instead_of_a_table(tmp_path):
    """RTR-03: the last table stays in use and on disk, the fault is told once, and the next whole table is taken."""
    upstream = FakeUpstream()
    ready = RoutedModel(name="m", state="ready", endpoints=(endpoint(upstream),))
    with Router(tmp_path, table_of(ready)) as router:
        file = tmp_path / "state" / "route-table.json"
        until(file.exists, 5, "the table on disk")
        kept = file.read_bytes()
        router.control.garbage += [b"", b'{"generation":"g","models":[{}]}', b"\xff" * 300, b"[" * 50000]
        router.control.publish(router.control.table)
        until(lambda: not router.control.garbage, 15, "it was sent")

        def status():
            with router.connect() as client:
                client.post('{"model":"m","messages":[]}')
                return client.answer().status

        assert status() == 200
        assert file.read_bytes() == kept
        assert router.log.read_text().count("the route table cannot be read") == 1
        assert "Traceback" not in router.log.read_text()
        router.control.publish(table_of(RoutedModel(name="m", state="off"), generation="g2"))
        until(lambda: status() == 404, 15, "the next table")
    upstream.stop()
