"""Who is refused, by real parts: what both sides say, and that others do not notice (SEC-01, SEC-02, SEC-08, AGT-03).

What a control plane answers on the wire is tested in ``tests/fleet/controlplane/edges``, what an agent or a router does
with each answer in ``tests/fleet``. Here both are the real ones, while a model serves.
"""

import json
import socket
import sqlite3
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from llmgw.identity import joining, pem
from llmgw.identity.folder import Folder
from llmgw.wire.frames import encode
from llmgw.wire.messages import Hello
from llmgw.wire.routing import TABLE_PATH
from llmgw.wire.versions import PROTOCOL, UPGRADE
from tests.harness import Cluster, identities, until
from tests.harness.cluster import MARK
from tests.harness.layout import NODE, ROUTER_ID
from tests.harness.models import sim_model
from tests.harness.ports import PortBlock
from tests.harness.process import Process
from tests.harness.stalls import Stalls
from tests.harness.streams import OpenStream

OTHER = "node-b"
NODES = (NODE, OTHER)
SILENT = 1000
SHORT = timedelta(seconds=24)
"""Life of a certificate that is renewed while one looks on."""

HELD = 0.1
"""Seconds for which the control plane's hub may be held at most."""

MODEL = sim_model("--loop", "--decode-rate", "40", "--context", "100000")


class Asking(threading.Thread):
    """A client that asks again and again: ``answered`` and ``failed`` say with what success."""

    def __init__(self, client: openai.OpenAI) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._ending = threading.Event()
        self.answered = 0
        self.failed: list[str] = []

    def run(self) -> None:
        """Ask until told to stop."""
        while not self._ending.wait(0.05):
            try:
                self._client.completions.create(model="simulated", prompt="x", max_tokens=1)
                self.answered += 1
            except openai.OpenAIError as error:
                self.failed.append(str(error))

    def stop(self) -> None:
        """Ask no more."""
        self._ending.set()
        self.join(20)


class Installation:
    """Two nodes, one of which serves a model, with a stream that goes on."""

    def __init__(self, cluster: Cluster) -> None:
        self.c = cluster.start()
        self.client = cluster.client(cluster.serve("simulated"))
        (self.home,) = {shard["node"] for shard in cluster.replica("simulated")["shards"]}
        (self.away,) = set(NODES) - {self.home}
        self.stream = OpenStream(self.client, "simulated", max_tokens=90_000)
        self.stream.goes_on()

    def opened(self, node: str) -> int:
        """Sessions of a node so far."""
        return len([line for line in self.c.controlplane.output.splitlines() if f"session opened node={node} " in line])

    def concerns(self) -> set[str]:
        """Whose certificates a person should look at."""
        return {row["subject"] for row in self.c.api("status")["problems"] if row["kind"] == "certificate"}

    @contextmanager
    def unharmed(self, *nodes: str) -> Iterator[None]:
        """Meanwhile every request is answered, the stream goes on, the sessions of ``nodes`` stand, and nothing
        holds the control plane up."""
        c = self.c
        before = {node: self.opened(node) for node in nodes}
        asking = Asking(self.client)
        asking.start()
        with Stalls(c.controlplane.pid, c.controlplane.log) as stalls:
            try:
                yield
                heard = {node: c.api(f"nodes/{node}")["last_heard_seconds"] for node in nodes}
                self.stream.goes_on()
            finally:
                asking.stop()
        assert not asking.failed
        assert asking.answered > 5
        assert {node: self.opened(node) for node in nodes} == before
        assert max(heard.values()) < 3.0, heard
        assert all(c.node_in_session(node) for node in nodes)
        assert stalls.longest[0] < HELD, stalls.longest[1]
        assert "Traceback" not in c.controlplane.output


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One installation for the tests of this module that leave it as it was."""
    folder = tmp_path_factory.mktemp("identity")
    with Cluster(folder, {"simulated": MODEL}, nodes=NODES, controlplane={"agents": {"hello": "3s"}}) as cluster:
        installation = Installation(cluster)
        yield installation
        installation.stream.close()


def says(process: Process, *words: str) -> bool:
    """Whether a line of its output has all these words."""
    return any(all(word in line for word in words) for line in process.output.splitlines())


def hears(process: Process, *words: str, seconds: float = 30.0) -> None:
    """Wait for such a line."""
    until(lambda: says(process, *words), seconds, f"{process.name} says {words}:\n{process.tail(15)}", every=0.1)


def stranger(c: Cluster, kind: str, name: str, folder: Path, port: int) -> Process:
    """A real agent or router that is none of the installation's, with the identity in ``folder``."""
    (site,) = c.layout.control_planes.values()
    settings: dict[str, Any] = {"identity": str(folder), "state_dir": str(folder.parent / f"state-{name}")}
    if kind == "node":
        settings |= {"node_id": name, "control_planes": [f"127.0.0.1:{site.agents}"], "hardware": {"gpu": "off"}}
        settings |= {"engine_ports": f"{port}-{port}", "engines": {"sim": {"kind": "builtin"}}}
    else:
        settings |= {"router_id": name, "control_planes": [f"127.0.0.1:{site.routers}"], "workers": 1}
        settings |= {"listen": f"127.0.0.1:{port}"}
    file = folder.parent / f"{name}.yaml"
    file.write_text(yaml.safe_dump(settings))
    module = "agent" if kind == "node" else "router"
    command = [sys.executable, "-m", f"{module}.main", "--config", str(file)]
    return Process(name, command, folder.parent / f"{name}.log", {MARK: str(c.folder)})


@contextmanager
def closing_part(part: Process) -> Iterator[Process]:
    """Kill a part at the end."""
    try:
        yield part
    finally:
        part.kill()


@contextmanager
def ports() -> Iterator[PortBlock]:
    """A block of ports."""
    with closing(PortBlock()) as block:
        yield block


# ---------------------------------------------------------------- wrong certificates

FAULTS: dict[str, tuple[Callable[[Path, str, str], Path], str, str]] = {
    "expired": (
        lambda path, kind, name: identities.ours().expired(path, kind, name),
        "the other side says that our certificate has expired: join it anew (llmgw join)",
        "the other side's certificate has expired",
    ),
    "foreign": (
        lambda path, kind, name: identities.strangers().folder(path, kind, name, trusts=[identities.ours().root]),
        "the other side does not trust the authority of our certificate: it belongs to another installation",
        "the other side's certificate is of an authority that we do not trust",
    ),
    "distrustful": (
        lambda path, kind, name: identities.ours().folder(path, kind, name, trusts=[identities.strangers().root]),
        "the other side's certificate is of an authority that we do not trust: it belongs to another installation",
        "the other side does not trust the authority of our certificate",
    ),
}
"""What is wrong with an identity, what the part with it says, and what the control plane says."""


def test_agents_and_routers_with_a_wrong_certificate(serving: Installation, tmp_path: Path) -> None:
    """SEC-01: expired, of another authority, or one that trusts another authority: each says what is wrong and
    what to do, the control plane says it too with the peer's address, and nobody else notices."""
    c = serving.c
    with ports() as block, ExitStack() as stack, serving.unharmed(*NODES):
        port = block.first
        parts = []
        for fault, (make, there, here) in FAULTS.items():
            for kind in ("node", "router"):
                name = f"{fault}-{kind}"
                part = stranger(c, kind, name, make(tmp_path / name, kind, name), port)
                stack.callback(part.kill)
                parts.append((part, there, here, kind))
                port += 1
        for part, there, here, kind in parts:
            hears(part, there)
            logger = "llmgw.agents" if kind == "node" else "llmgw.routers"
            hears(c.controlplane, logger, "a TLS handshake failed peer=127.0.0.1:", here)
            assert part.running and "Traceback" not in part.output
    shown = {row["name"] for row in c.api("identities?limit=200")["identities"]}
    assert shown == {*NODES, ROUTER_ID}, "nobody was enrolled by it"


# ---------------------------------------------------------------- revoked, and others' certificates


def rejoin(c: Cluster, kind: str, name: str, folder: Path) -> None:
    """By the two commands that people use."""
    made = c.llmgw_json("ctl", f"{kind}s", "add", name)
    c.secrets[f"join token of {name}"] = made["token"]
    token = folder.parent / "token"
    identities.private(token, made["token"])
    c.llmgw("join", kind, made["join"], name, "--identity", str(folder), "--token-file", str(token), "--force")


def test_revoked_in_session_then_others_certificates_then_joined_anew(serving: Installation, tmp_path: Path) -> None:
    """SEC-01, SEC-02: the session of a revoked node ends at once, and its engine goes on serving; a revoked
    router serves by its last table. The certificate of another node or router, or of another kind, is not used by
    them, and opens nothing to who uses it. Both sides name who, why, and the remedy. Joined anew, both are taken back
    without a restart."""
    c = serving.c
    (site,) = c.layout.control_planes.values()
    home, away = serving.home, serving.away
    engine = c.engine_pid("simulated")
    agent, router = c.part(home), c.router
    folders = {home: c.layout.nodes[home].identity, ROUTER_ID: c.layout.router_state / "identity"}
    doors = {
        home: (f"https://127.0.0.1:{site.agents}/agent/v1/session", {"Upgrade": UPGRADE, "Llmgw-Node": home}),
        ROUTER_ID: (f"https://127.0.0.1:{site.routers}{TABLE_PATH}", {"Llmgw-Router": ROUTER_ID}),
    }
    ours = identities.ours()
    with serving.unharmed(away):
        began = time.monotonic()
        for kind, name in (("node", home), ("router", ROUTER_ID)):
            c.ctl("cert", "revoke", kind, name, "--reason", "stolen", "--yes")
        hears(agent, f"refused: node {home} had its certificates revoked: join it anew", "(revoked)")
        hears(c.controlplane, f"session closed node={home} peer=127.0.0.1:", "revoked", seconds=1)
        assert time.monotonic() - began < 10
        hears(agent, "answered 403", "(stolen)", f"llmgw ctl nodes add {home} (revoked)")
        hears(c.controlplane, "connection refused peer=127.0.0.1:", f'certificate="node {home}"', "code=revoked")
        hears(router, "answered 403", "(stolen)", f"llmgw ctl routers add {ROUTER_ID} (revoked)")
        hears(c.controlplane, f"router refused router={ROUTER_ID} peer=127.0.0.1:", "code=revoked")
        assert serving.concerns() == {f"node {home}", f"router {ROUTER_ID}"}

        for agents, routers in ((("node", "node-x"), ("router", "router-x")), (("router", home), ("node", ROUTER_ID))):
            for mine, (kind, name) in ((home, agents), (ROUTER_ID, routers)):
                other = ours.folder(tmp_path / f"{kind}-{name}", kind, name)
                identities.replaced(folders[mine], other)
                where, headers = doors[mine]
                answer = identities.session(other).get(where, headers={"Connection": "Upgrade", **headers}, timeout=10)
                of = f"{'node' if mine == home else 'router'} {mine}"
                said = f"the certificate is that of {kind} {name}, not of {of}: give it its own with llmgw join"
                assert answer.status_code == 403 and "unauthorised" in answer.text and said in answer.text
                hears(c.controlplane, "refused", "peer=127.0.0.1:", "code=unauthorised", said)
            for part, mine, (kind, name) in ((agent, f"node {home}", agents), (router, f"router {ROUTER_ID}", routers)):
                hears(part, "the one in use stays", f"is that of {kind} {name}, not of {mine}", seconds=40)

        assert c.engine_pid("simulated") == engine
        for kind, name in (("node", home), ("router", ROUTER_ID)):
            rejoin(c, kind, name, folders[name])
        until(lambda: c.node_in_session(home), 40, f"{home} is back\n{agent.tail(10)}")
        until(lambda: not serving.concerns(), 40, "no problem is left")
        hears(router, "reports are taken again")
    assert c.replica("simulated")["shards"][0]["pid"] == engine, "it was never started anew"
    assert agent.starts == router.starts == 1


# ---------------------------------------------------------------- join tokens


def impostor(folder: Path, roots: bytes) -> tuple[int, Callable[[], None], list[bytes]]:
    """A join listener with the identity in ``folder`` that hands out ``roots``: its port, what ends it, and what it
    was sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), context.wrap_socket(plain, server_side=True) as secure:
                got.append(secure.recv(65536))
                body = json.dumps({"authorities": roots.decode()}).encode()
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    threading.Thread(target=serve, daemon=True).start()

    def end() -> None:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return listener.getsockname()[1], end, got


def test_tokens_that_are_no_good(serving: Installation, tmp_path: Path) -> None:
    """SEC-02: for another node, expired, used, or given to a man in the middle: the command says what is wrong and
    what helps, the control plane's log says who tried from where, and nothing is written on the machine."""
    c = serving.c
    (site,) = c.layout.control_planes.values()
    log = c.controlplane

    def join(made: dict[str, Any], name: str, address: str = "") -> str:
        c.secrets[f"join token {made['id']}"] = made["token"]
        identities.private(tmp_path / "token", made["token"])
        where = ("--identity", str(tmp_path / name), "--token-file", str(tmp_path / "token"))
        done = c.llmgw("join", "node", address or made["join"], name, *where, check=False)
        assert (done.returncode == 0) == (tmp_path / name).exists(), done.stderr
        assert made["token"].split(".")[1] not in done.stdout + done.stderr
        return done.stdout + done.stderr

    def token(name: str) -> dict[str, Any]:
        return dict(c.llmgw_json("ctl", "nodes", "add", name))

    with serving.unharmed(*NODES):
        made = token("gpu-1")
        told = join(made, "gpu-2")
        assert "the join token is for node gpu-1, not for node gpu-2" in told and "llmgw ctl nodes add gpu-2" in told
        hears(log, "a request to join was refused peer=127.0.0.1:", 'who="node gpu-2"', "is for node gpu-1")

        for folder, roots, words in (
            (identities.strangers().controlplane(tmp_path / "foreign"), identities.strangers().root, "not under the"),
            (tmp_path / "foreign", identities.ours().root, "of an authority that we do not trust"),
            (identities.ours().node(tmp_path / "insider", "node-x"), identities.ours().root, "is for another purpose"),
        ):
            port, end, got = impostor(folder, roots)
            told = join(made, "gpu-1", f"127.0.0.1:{port}")
            end()
            assert words in told, told
            assert not [data for data in got if made["token"].encode() in data or b"POST" in data], "the token left"
        assert c.api(f"join-tokens/{made['id']}")["state"] == "unused"
        assert "holds the node gpu-1" in join(made, "gpu-1")
        (tmp_path / "gpu-1").rename(tmp_path / "gpu-1.first")
        told = join(made, "gpu-1")
        assert "was used already, from 127.0.0.1:" in told and "llmgw ctl nodes add gpu-1" in told
        hears(log, "a request to join was refused peer=127.0.0.1:", 'who="node gpu-1"', "was used already")

        late = token("gpu-3")
        with closing(sqlite3.connect(site.state / "llmgw.db", timeout=10)) as store, store:
            # a quarter of an hour passes
            store.execute("UPDATE join_tokens SET expires_at = expires_at - 901 WHERE id = ?", (late["id"],))
        told = join(late, "gpu-3")
        assert "has expired (it is good for 15 minutes)" in told and "llmgw ctl nodes add gpu-3" in told
        hears(log, "a request to join was refused peer=127.0.0.1:", 'who="node gpu-3"', "has expired")
    c.ctl("nodes", "remove", "gpu-1", "--yes")
    assert joining.parse(made["token"]).secret not in log.output


# ---------------------------------------------------------------- who holds others up


def drained(sock: socket.socket, seconds: float = 40.0) -> bytes:
    """What the peer says until it ends the connection; it must end it."""
    data = b""
    sock.settimeout(seconds)
    with suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            data += piece
    return data


def silent(stack: ExitStack, port: int, context: ssl.SSLContext | None) -> list[socket.socket]:
    """Connections to one listener, after their TLS handshake if there is a context."""
    made = []
    for _ in range(SILENT):
        sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        made.append(stack.enter_context(sock if context is None else context.wrap_socket(sock)))
    return made


def test_silent_connections_and_a_frame_of_20_mb(serving: Installation, tmp_path: Path) -> None:
    """AGT-03, SEC-01, SEC-02: a thousand connections to each listener that say nothing, and as many to each that
    prove who they are, where that is asked, and then say nothing, all at the same time: sessions stand, a node joins,
    a router gets its table. Those that were silent are told that it was for too long. A frame of 20 MB is refused
    before it is read."""
    c = serving.c
    (site,) = c.layout.control_planes.values()
    for name in ("silent", "huge"):
        identities.ours().node(tmp_path / name, name)
    node, quiet = identities.client(tmp_path / "silent"), identities.ours().router(tmp_path / "quiet", "quiet")
    nobody = identities.client(tmp_path / "silent", shown=False)
    doors = {site.agents: node, site.routers: identities.client(quiet), site.join: nobody}
    with ExitStack() as stack, serving.unharmed(*NODES):
        plain = [sock for port in doors for sock in silent(stack, port, None)]
        with ThreadPoolExecutor(len(doors)) as pool:
            secure = dict(zip(doors, pool.map(lambda door: silent(stack, *door), doors.items()), strict=True))

        began = time.monotonic()
        rejoin(c, "node", "gpu-9", tmp_path / "gpu-9")
        router = identities.session(quiet)
        router.headers["Llmgw-Router"] = "quiet"
        assert router.get(f"https://127.0.0.1:{site.routers}/router/v1/table", timeout=10).ok
        newcomer = upgraded(site.agents, tmp_path / "huge", "huge")
        assert time.monotonic() - began < 10, "who comes meanwhile waits for nobody"

        size = 20 * 1024 * 1024
        hello = Hello(node_id="huge", version="0", oldest_protocol=PROTOCOL, newest_protocol=PROTOCOL)
        with newcomer, suppress(OSError):
            newcomer.sendall(encode(hello) + struct.pack(">I", size) + b"x" * size)
            assert b"frame_too_large" in drained(newcomer)
        hears(c.controlplane, 'certificate="node huge"', "code=frame_too_large", "20971520 bytes")

        said = {port: Counter(drained(sock) for sock in socks) for port, socks in secure.items()}
        assert set(map(drained, plain)) == {b""}
    words = {port: {answer.partition(b'"message": ')[2] for answer in answers} for port, answers in said.items()}
    late, full = b"no request came in 10 s", b"asked for nothing while too many others came"
    assert b"no hello in 3 s" in b"".join(words[site.agents])
    assert b"8 connections of node silent wait for their hello already" in b"".join(words[site.agents])
    assert late in b"".join(words[site.routers]) and full in b"".join(words[site.join])
    assert not [answer for answers in said.values() for answer in answers if answer[9:12] not in (b"408", b"503")]
    for logger in ("agents", "routers", "join"):
        hears(c.controlplane, f"llmgw.{logger}", "a TLS handshake failed peer=127.0.0.1:", "did not finish the TLS")
        hears(c.controlplane, f"llmgw.{logger}", "connection refused peer=127.0.0.1:")
    for kind, name in (("node", "gpu-9"), ("node", "huge"), ("router", "quiet")):
        c.ctl(f"{kind}s", "remove", name, "--yes")


def upgraded(port: int, folder: Path, name: str) -> ssl.SSLSocket:
    """A node's connection after its request for a session was granted."""
    secure = identities.client(folder).wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=30))
    head = f"GET /agent/v1/session HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"
    secure.sendall(f"{head}Llmgw-Node: {name}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += secure.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return secure


# ---------------------------------------------------------------- renewal and rotation


def roots_of(folder: Path) -> int:
    """How many roots it trusts."""
    return len(pem.split((folder / "authorities.pem").read_bytes()))


def test_certificates_are_renewed_and_the_root_is_rotated_without_a_pause(tmp_path: Path) -> None:
    """SEC-01, SEC-08: short-lived certificates of a node, a router and the control plane are new before a third of
    their life remains, and the root is replaced by the commands that people use. No session ends, no request
    fails, nothing is restarted; what the old root signed is refused in the end."""
    ours = identities.ours()
    office = ours.authority_folder(tmp_path / "authority")
    with Cluster(tmp_path, {"simulated": MODEL}, nodes=NODES) as c:
        (site,) = c.layout.control_planes.values()
        folders = {name: node.identity for name, node in c.layout.nodes.items()}
        folders |= {ROUTER_ID: c.layout.router_state / "identity", site.name: site.identity}
        old = ours.node(tmp_path / "old", "old")
        for kind, name in (("node", NODE), ("router", ROUTER_ID), ("controlplane", site.name)):
            ours.folder(folders[name], kind, name, lifetime=SHORT)
        first = {name: Folder(folder).presented() for name, folder in folders.items()}
        serving = Installation(c)

        def cert(*arguments: str) -> None:
            c.llmgw("ctl", "cert", *arguments, "--authority", str(office))

        def renewed(*names: str) -> bool:
            return all(Folder(folders[name]).presented().serial != first[name].serial for name in names)

        with serving.unharmed(*NODES):
            until(lambda: renewed(NODE, ROUTER_ID, site.name), 30, "the short-lived ones are renewed", every=0.1)
            for name in (NODE, ROUTER_ID, site.name):
                again, end = Folder(folders[name]).presented(), first[name].expires_at
                assert end - again.issued_at > SHORT.total_seconds() / 3, f"{name} was renewed too late"
            before = {name: Folder(folder).presented() for name, folder in folders.items()}
            hears(c.controlplane, "identity loaded", before[site.name].serial, seconds=10)

            cert("init", "--rotate", "--name", "second")
            cert("renew", str(site.identity))
            hears(c.controlplane, "identity loaded", Folder(site.identity).presented().serial, seconds=10)
            # Somebody who was away knows the old root alone, and still finds the way.
            away = ours.node(tmp_path / "away", "away")
            with ports() as block, closing_part(stranger(c, "node", "away", away, block.first)) as part:
                hears(part, "session established")
                until(lambda: roots_of(away) == 2, 20, "it trusts both")
            until(lambda: all(roots_of(folder) == 2 for folder in folders.values()), 45, "all trust both", every=0.1)
            first = before
            until(lambda: renewed(*NODES, ROUTER_ID), 45, "all have new certificates", every=0.1)

            cert("init", "--retire")
            cert("renew", str(site.identity))
            hears(c.controlplane, "identity loaded", Folder(site.identity).presented().serial, seconds=10)
            until(lambda: all(roots_of(folders[name]) == 1 for name in NODES), 20, "the old root is forgotten")
        assert {name: c.part(name).starts for name in (*NODES, "router", site.name)} == dict.fromkeys(
            (*NODES, "router", site.name), 1
        )
        for name in NODES:
            assert serving.opened(name) == 1

        # Whoever comes now has the new root alone: a node that starts anew does, and one that was away meanwhile
        # would learn of it at its welcome; what the old root signed is good for nothing.
        agent = c.part(serving.home)
        assert agent.stop() == 0
        agent.restart()
        until(lambda: c.node_in_session(serving.home), 20, "it is back by its new certificate")
        with ports() as block, closing_part(stranger(c, "node", "old", old, block.first)) as part:
            hears(part, "the other side's certificate is of an authority that we do not trust")
        serving.stream.goes_on()
        serving.stream.close()
