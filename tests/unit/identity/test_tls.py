"""Handshakes between the parts, and what both sides say when they fail (SEC-01)."""

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from llmgw.identity import authority, pem, tls
from llmgw.identity.folder import Folder
from llmgw.identity.names import Identity, IdentityError, Presented, identity
from llmgw.identity.tls import ClientTls, ServerTls, explain, peer
from llmgw.runtime.faults import SettingsError
from tests.harness import identities
from tests.unit.identity.made import CONTROL_PLANE, NODE, NOW, OTHERS, OURS, Office

LONG_AGO = NOW - timedelta(days=40)
OLD = Office("old", LONG_AGO)


def serve(folder: Folder, connection: socket.socket, clients: bool = True) -> tuple[list[object], threading.Thread]:
    """A server that greets whom it takes; what it saw, or the words of why not."""
    seen: list[object] = []
    server = ServerTls(folder, clients=clients)
    server.use(server.load())

    def run() -> None:
        try:
            with identities.answered(server.context, connection) as secure:
                seen.append(peer(secure) if clients else None)
                secure.recv(100)
                secure.sendall(b"hello")
        except OSError as error:
            seen.append(explain(error))

    thread = threading.Thread(target=run)
    thread.start()
    return seen, thread


def meet(server: Folder, client: Folder | ClientTls) -> tuple[object, object]:
    """What the server and the client saw of each other, or their words."""
    here, there = socket.socketpair()
    seen, thread = serve(server, there)
    tls_client = client if isinstance(client, ClientTls) else ClientTls(client)
    tls_client.use(tls_client.load())
    here.settimeout(30)
    answer: object
    try:
        secure, answer = tls_client.connect(here)
        with secure:
            secure.sendall(b"GET / HTTP/1.1\r\n\r\n")  # as a client does before it has read the verdict
            assert secure.recv(10) == b"hello"
            assert secure.version() == "TLSv1.3" and secure.gettimeout() == 30
    except (OSError, IdentityError) as error:
        answer = explain(error)
    thread.join()
    return seen[0], answer


def test_both_know_each_other(tmp_path: Path) -> None:
    """SEC-01: who connects and who answers is in the certificates, whatever the address."""
    server = OURS.folder(tmp_path / "cp", CONTROL_PLANE)
    client = OURS.folder(tmp_path / "node", NODE)
    assert meet(server, client) == (client.presented(), server.presented())
    assert isinstance(meet(server, client)[0], Presented)


@pytest.mark.parametrize(
    ("server", "client", "there", "here"),
    [
        ("good", "expired", "other side's certificate has expired", "says that our certificate has expired"),
        ("good", "early", "not valid yet: are the clocks", "refuses our certificate: it may not be valid yet"),
        ("good", "alien", "of an authority that we do not trust", "does not trust the authority of our certificate"),
        ("expired", "good", "says that our certificate has expired", "other side's certificate has expired"),
        ("alien", "good", "does not trust the authority", "of an authority that we do not trust"),
        ("node", "good", "for another purpose", "for another purpose"),
    ],
)
def test_refused_with_a_reason_on_both_sides(tmp_path: Path, server: str, client: str, there: str, here: str) -> None:
    """SEC-01: expired, not yet valid, of another authority, of another kind."""

    # Each trusts all but the alien. An expired certificate is of an issuer that is still valid.
    office = {"alien": OTHERS, "expired": OLD}
    at = {"expired": LONG_AGO, "early": NOW + timedelta(hours=1)}
    roots = pem.merge(OURS.root, OLD.root)

    def make(what: str, who: Identity) -> Folder:
        return office.get(what, OURS).folder(
            tmp_path / f"{who.kind}-{what}", NODE if what == "node" else who, at.get(what, NOW), roots=roots
        )

    answering, asking = make(server, CONTROL_PLANE), make(client, NODE)
    said = meet(answering, asking)
    assert there in str(said[0]) and here in str(said[1]), said


def test_no_certificate(tmp_path: Path) -> None:
    """SEC-01: a client that shows none is told so, and so is the log."""

    class Silent(ClientTls):
        def load(self) -> ssl.SSLContext:
            context = tls.client_context()
            self._trusting(context)
            return context

    server = OURS.folder(tmp_path / "cp", CONTROL_PLANE)
    there, here = meet(server, Silent(server))
    assert "showed no certificate" in str(there) and "llmgw join" in str(there)
    assert "demands a certificate, and we showed none" in str(here)


def test_a_control_plane_is_wanted(tmp_path: Path) -> None:
    """SEC-01: a certificate that may serve, but is of another kind, is not talked to."""
    folder = Folder(tmp_path / "odd")
    key = authority.new_key()
    odd = authority.sign(authority.request(CONTROL_PLANE, key), CONTROL_PLANE, OURS.issuer, OURS.issuer_key, NOW)
    folder.write(certificate=odd, key=key, authorities=OURS.root)
    client = ClientTls(OURS.folder(tmp_path / "node", NODE), wanted="router")
    _, here = meet(folder, client)
    assert here == "the other side is the controlplane cp1, and should be a router: is the address right?"


def test_a_name_is_not_checked_but_the_identity_is(tmp_path: Path) -> None:
    """SEC-01: two identities of one kind are told apart by what the connection shows."""
    server = OURS.folder(tmp_path / "cp", CONTROL_PLANE)
    for name in ("gpu-7", "gpu-8"):
        seen, _ = meet(server, OURS.folder(tmp_path / name, identity("node", name)))
        assert isinstance(seen, Presented) and seen.identity.name == name


@pytest.mark.parametrize("old_side", ["server", "client"])
def test_tls_13_only(tmp_path: Path, old_side: str) -> None:
    """SEC-01: an older version is refused, by either side."""
    folder = OURS.folder(tmp_path / "cp", CONTROL_PLANE)
    here, there = socket.socketpair()
    if old_side == "client":
        seen, thread = serve(folder, there)
        context = tls.client_context()
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_NONE
        folder.load_into(context)
        with pytest.raises(ssl.SSLError) as refused:
            context.wrap_socket(here)
        thread.join()
        assert "TLS 1.3 is needed" in str(seen[0]) and "TLS 1.3 is needed" in explain(refused.value)
        here.close()
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    folder.load_into(context)

    def answer() -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(there, server_side=True)

    thread = threading.Thread(target=answer)
    thread.start()
    client = ClientTls(folder)
    client.use(client.load())
    with pytest.raises(OSError) as failed:
        client.connect(here)
    assert "TLS 1.3 is needed" in explain(failed.value)
    thread.join()
    there.close()


def test_a_client_waits_no_longer_than_it_should(tmp_path: Path) -> None:
    """AGT-03: an address that takes connections and says nothing is left for the next."""
    client = ClientTls(OURS.folder(tmp_path / "node", NODE))
    client.use(client.load())
    here, there = socket.socketpair()
    with pytest.raises(TimeoutError):
        client.connect(here, 0.05)
    assert here.fileno() == -1
    there.close()


def test_not_loaded() -> None:
    """SEC-01: what was not loaded lets nobody in."""
    with pytest.raises(SettingsError, match="has not been loaded"):
        _ = ServerTls(Folder(Path("none")), clients=True).context


def test_no_session_outlives_its_certificate(tmp_path: Path) -> None:
    """SEC-01: a resumed session would skip the look at the certificate."""
    folder = OURS.folder(tmp_path / "cp", CONTROL_PLANE)
    here, there = socket.socketpair()
    _, thread = serve(folder, there)
    client = ClientTls(folder)
    client.use(client.load())
    secure, _ = client.connect(here)
    with secure:
        secure.sendall(b"GET")
        secure.recv(10)
        thread.join()
        assert secure.session is None or not secure.session.has_ticket


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "nothing listens there"),
        (ConnectionResetError(104, "reset"), "closed the connection"),
        (ConnectionAbortedError("in our words"), "in our words"),
        (TimeoutError("x"), "in time"),
        (OSError(113, "No route to host"), "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (IdentityError("who?"), "who?"),
        (ssl.SSLError(1, "[SSL: SOMETHING_NEW] something new (_ssl.c:1)"), "something new"),
    ],
)
def test_every_error_has_words(error: Exception, words: str) -> None:
    """SEC-01: whatever breaks is told in a line."""
    assert words in explain(error) and "\n" not in explain(error)


PATCHED = """
from gevent import monkey; monkey.patch_all()
import sys
from pathlib import Path
import gevent
from gevent.pywsgi import WSGIServer
from gevent import socket
from llmgw.identity.folder import Folder
from llmgw.identity.tls import ClientTls, ServerTls

here = Path(sys.argv[1])
def answer(environ, start):
    start("200 OK", [("Content-Length", "2")])
    return [b"ok"]
server = ServerTls(Folder(here / "cp"), clients=True)
server.use(server.load())
listener = WSGIServer(("127.0.0.1", 0), answer, ssl_context=server.context, log=None, error_log=None)
listener.start()
silent = [socket.create_connection(listener.address) for _ in range(20)]
ticks = []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.001)
gevent.spawn(tick)
client = ClientTls(Folder(here / "node"))
client.use(client.load())
def ask():
    secure, other = client.connect(socket.create_connection(listener.address))
    secure.settimeout(20)
    secure.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    answer = b"".join(iter(lambda: secure.recv(1000), b""))
    return answer[:15], other.identity.name
jobs = [gevent.spawn(ask) for _ in range(20)]
gevent.joinall(jobs, timeout=20)
print({job.value for job in jobs}, len(ticks) > 1)
"""


def test_in_a_process_of_gevent(tmp_path: Path) -> None:
    """SEC-01: a handshake does not hold the hub, and a gevent server takes our context."""
    OURS.folder(tmp_path / "cp", CONTROL_PLANE)
    OURS.folder(tmp_path / "node", NODE)
    command = [sys.executable, "-c", PATCHED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "{(b'HTTP/1.1 200 OK', 'cp1')} True", done.stderr
