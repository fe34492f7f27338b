"""How a node gets its first certificate, and whom it believes on the way (SEC-02)."""

import contextlib
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.identity import authority, pem
from llmgw.identity.folder import Folder
from llmgw.identity.joining import (
    Authorities,
    JoinAnswer,
    JoinRefusal,
    JoinRequest,
    JoinToken,
    digest,
    join,
    new_token,
    parse,
    pinned,
)
from llmgw.identity.names import IdentityError, identity
from llmgw.identity.tls import ServerTls
from llmgw.runtime.faults import SettingsError
from llmgw.runtime.kinds import Address
from tests.unit.identity.listener import Answer, Listener, listener, signing
from tests.unit.identity.made import CONTROL_PLANE, NODE, NOW, OTHERS, OURS, Office

ROOT = pem.split(OURS.root)[0]


@pytest.fixture
def token() -> JoinToken:
    """One of ours."""
    return new_token(ROOT)


def test_a_token_is_what_it_says(token: JoinToken) -> None:
    """SEC-02, SEC-03: at least 128 bits, told apart by its id, and never printed by accident."""
    assert parse(f" {token.text}\n") == token
    assert len(token.secret) * 6 >= 128
    assert token.pin == pem.pin(ROOT)
    assert token.secret not in repr(token) and token.secret not in repr(JoinRequest(token.text, "node", "a", "b"))
    other = new_token(ROOT)
    assert len({digest(token), digest(other)}) == 2 and token.secret not in digest(token)
    assert digest(parse(token.text)) == digest(token)


@given(st.text(max_size=200))
def test_no_other_text_is_a_token(text: str) -> None:
    """SEC-02: refused in words that do not repeat it."""
    with pytest.raises(IdentityError) as error:
        parse(text)
    assert len(text) < 20 or text not in str(error.value)


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_part_of_a_token_is_none(start: int, end: int) -> None:
    """SEC-02: one that was cut when it was copied is told from one that is wrong."""
    whole = new_token(ROOT).text
    cut = whole[start : len(whole) - end]
    try:
        assert parse(cut).text == cut
    except IdentityError as error:
        assert "is it whole" in str(error)


def test_joined(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: the key is made here, before it is asked, and never sent; the folder is whole."""
    with listener(OURS, tmp_path / "cp") as server:
        given = join(server.address, token, NODE, tmp_path / "state" / "identity")
    folder = Folder(tmp_path / "state" / "identity")
    assert folder.check(kind="node", name="gpu-7") == [] and folder.presented() == given
    assert folder.roots() == OURS.root
    assert stat.S_IMODE(folder.key.stat().st_mode) == 0o600
    (asked,) = server.asked
    assert (asked.token, asked.kind, asked.name) == (token.text, "node", "gpu-7")
    assert b"PRIVATE" not in server.raw
    assert sorted(file.name for file in folder.path.iterdir()) == ["authorities.pem", "certificate.pem", "key.pem"]


def test_an_impostor_gets_nothing(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: whoever took over the address learns neither the token nor the name of the node."""
    for place, answer in (
        ("others", signing(OTHERS)),
        # It repeats our authorities, which are public, but has no certificate of theirs.
        ("mimic", lambda asked: Authorities(OURS.root.decode())),
    ):
        with (
            listener(OTHERS, tmp_path / place, answer) as server,
            pytest.raises(IdentityError, match=r"not sent|do not trust"),
        ):
            join(server.address, token, NODE, tmp_path / "id")
        assert server.asked == [] and token.secret.encode() not in server.raw and b"gpu-7" not in server.raw
    assert not Folder(tmp_path / "id").exists()


def test_only_the_named_root_is_believed(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: a root that is slipped in beside the right one is not believed."""
    both = pem.merge(OTHERS.root, OURS.root)
    assert pinned(both, token) == OURS.root
    with (
        listener(OTHERS, tmp_path / "cp", lambda asked: Authorities(both.decode())) as server,
        pytest.raises(IdentityError, match="do not trust"),
    ):
        join(server.address, token, NODE, tmp_path / "id")
    assert server.asked == []


def test_a_node_of_ours_is_no_control_plane(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: with the key of a node one cannot collect the tokens of others."""
    with (
        listener(OURS, tmp_path / "node", who=identity("node", "evil")) as server,
        pytest.raises(IdentityError, match="for another purpose"),
    ):
        join(server.address, token, NODE, tmp_path / "id")
    assert server.asked == []


def refusing(code: str, message: str, leader: str = "") -> Answer:
    """Says no to the second question."""

    def answer(asked: JoinRequest | None) -> object:
        return JoinRefusal(code, message, leader) if asked else Authorities(OURS.root.decode())

    return answer


def odd(body: object) -> Answer:
    """Answers this to the second question."""
    return lambda asked: body if asked else Authorities(OURS.root.decode())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusing("join_refused", "the token was used"), r"refuses: the token was used \(join_refused\)"),
        (refusing("not_leader", "ask another"), r"ask another \(not_leader\)"),
        (refusing("not_leader", "ask another", "nonsense"), r"ask another \(not_leader\)"),
        (odd(b"<html>"), "no JSON of ours"),
        (odd(b"[" * 100_000), "no JSON of ours"),
        (odd(b"{}"), "no JSON of ours"),
        (odd(b"x" * 1_000_000), "more than it should"),
        (odd(None), "may be used up"),
        (odd(JoinAnswer("", "")), "holds no certificate"),
        (odd(JoinAnswer(OURS.chain(NODE, OURS.root_key).decode(), OURS.root.decode())), "not for the key"),
        (signing(OURS, identity("node", "gpu-8")), "is that of node gpu-8"),
        (odd(JoinAnswer(OURS.chain(NODE, OURS.root_key).decode(), OTHERS.root.decode())), "none of the authorities"),
        (lambda asked: b"{}", "no JSON of ours"),
        (lambda asked: Authorities("nonsense"), "no certificate in PEM"),
    ],
)
def test_answers_that_will_not_do(tmp_path: Path, token: JoinToken, answer: Answer, words: str) -> None:
    """SEC-02: every refusal and every odd answer ends in words, without the secret, and leaves no identity."""
    with (
        listener(OURS, tmp_path / "cp", answer) as server,
        pytest.raises((IdentityError, SettingsError), match=words) as error,
    ):
        join(server.address, token, NODE, tmp_path / "id")
    assert token.secret not in str(error.value)
    assert not (tmp_path / "id").exists()


def test_the_old_identity_stays_until_the_new_one_is_there(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: a token that is refused costs a node nothing."""
    folder = OURS.folder(tmp_path / "id", NODE)
    before = folder.presented()
    with (
        listener(OURS, tmp_path / "cp", refusing("join_refused", "used")) as server,
        pytest.raises(IdentityError),
    ):
        join(server.address, token, NODE, folder.path)
    assert folder.presented() == before and folder.check() == []
    assert not list(folder.path.glob("next-*"))
    with listener(OURS, tmp_path / "cp2") as server:
        after = join(server.address, token, NODE, folder.path)
    assert folder.presented() == after != before and folder.check() == []


def test_the_leader_is_asked(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02, HA-01: any control plane will do; one that stands by names the one that leads."""
    with listener(OURS, tmp_path / "leader") as leader:
        standby = refusing("not_leader", "ask the one that leads", str(leader.address))
        with listener(OURS, tmp_path / "standby", standby) as server:
            join(server.address, token, NODE, tmp_path / "id")
    assert len(leader.asked) == 1 and Folder(tmp_path / "id").check() == []


def test_control_planes_that_name_each_other(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: no walking in circles."""
    server: Listener = listener(OURS, tmp_path / "cp")
    server.answer = refusing("not_leader", "ask the other", str(server.address))
    with server, pytest.raises(IdentityError, match="name each other"):
        join(server.address, token, NODE, tmp_path / "id")
    assert len(server.asked) == 3


def test_while_the_root_is_rotated(tmp_path: Path) -> None:
    """SEC-02, SEC-08: a token made before names the old root, and is good all the same."""
    new = Office("new")
    bridge = authority.bridge(new.root, OURS.root, OURS.root_key, NOW)
    new.issuer = authority.new_issuer("issuer", new.issuer_key, new.root + bridge, new.root_key, NOW)
    both = pem.merge(new.root, OURS.root)
    answers = signing(new)

    def answer(asked: JoinRequest | None) -> object:
        if asked is None:
            return Authorities(both.decode())
        return JoinAnswer(answers(asked).certificate, both.decode())

    for token in (new_token(ROOT), new_token(pem.split(new.root)[0])):
        with listener(new, tmp_path / f"cp-{token.id}", answer) as server:
            join(server.address, token, NODE, tmp_path / token.id)
        folder = Folder(tmp_path / token.id)
        assert folder.check() == [] and pem.digest(folder.roots()) == pem.digest(both)


def test_another_listener(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: the listener of agents demands a certificate: the words say which address is meant."""
    server = listener(OURS, tmp_path / "cp")
    server.tls = ServerTls(server.tls.folder, clients=True)
    server.tls.use(server.tls.load())
    with server, pytest.raises(IdentityError, match=r"no join listener.*join\.listen"):
        join(server.address, token, NODE, tmp_path / "id")


def test_nobody_there(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: an address where nothing listens, or something else does, is told from a refusal."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(*silent.getsockname())
        with pytest.raises(IdentityError, match=f"{address}: .*in time"):
            join(address, token, NODE, tmp_path / "id", limit=0.1)
    with pytest.raises(IdentityError, match=f"{address}: nothing listens there"):
        join(address, token, NODE, tmp_path / "id")
    assert not (tmp_path / "id").exists()


class Dripping(Listener):
    """Answers byte by byte, for as long as it is let."""

    def _exchange(self, secure: socket.socket) -> None:
        secure.recv(4096)
        pace = threading.Event()
        with contextlib.suppress(OSError):
            secure.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not pace.wait(0.02):
                secure.sendall(b"x")


def test_an_answer_that_never_ends(tmp_path: Path, token: JoinToken) -> None:
    """SEC-02: whoever sits in between can send a byte now and then: nobody waits for the last one."""
    began = time.monotonic()
    dripping = Dripping(OURS.folder(tmp_path / "cp", CONTROL_PLANE), signing(OURS))
    with dripping as server, pytest.raises(IdentityError, match="in time"):
        join(server.address, token, NODE, tmp_path / "id", limit=0.3)
    assert time.monotonic() - began < 10
