"""The authority's own folder (SEC-01, SEC-08)."""

import fcntl
import json
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llmgw.identity import authority, pair, pem, root_folder
from llmgw.identity.folder import Folder
from llmgw.identity.names import IdentityError
from llmgw.identity.root_folder import RootFolder
from tests.unit.identity.made import CONTROL_PLANE, NODE, OURS
from tests.unit.identity.test_tls import meet


@pytest.fixture
def office(tmp_path: Path) -> RootFolder:
    """One with a root."""
    office = RootFolder(tmp_path / "authority")
    office.init("test")
    return office


def test_issued_whole_and_written_down(office: RootFolder, tmp_path: Path) -> None:
    """SEC-01, SEC-03: folders that work as they are; what was issued can be looked up; keys are closed."""
    control = office.issue(CONTROL_PLANE, tmp_path / "cp", dns=["cp1.example.org"], ips=["192.0.2.7"])
    node = office.issue(NODE, tmp_path / "node")
    assert control.dns == ("cp1.example.org", "localhost") and control.ips == ("192.0.2.7", "127.0.0.1", "::1")
    assert Folder(tmp_path / "cp").check(kind="controlplane", name="cp1", needs_issuer=True) == []
    assert Folder(tmp_path / "node").check(kind="node", name="gpu-7") == []
    assert not Folder(tmp_path / "node").issuer.exists()
    seen, _ = meet(Folder(tmp_path / "cp"), Folder(tmp_path / "node"))
    assert seen == Folder(tmp_path / "node").presented()
    noted = [json.loads(line) for line in office.issued.read_text().splitlines()]
    assert [(entry["identity"], entry["what"]) for entry in noted] == [
        ("llmgw:controlplane:cp1", "issuer"), ("llmgw:controlplane:cp1", "certificate"),
        ("llmgw:node:gpu-7", "certificate"),
    ]  # fmt: skip
    assert [entry["serial"] for entry in noted[1:]] == [control.serial, node.serial]
    for file in (office.key, office.issued):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(office.path.stat().st_mode) == 0o700


def test_what_an_ended_command_left_is_removed(office: RootFolder) -> None:
    """SEC-03: a root's key in it would stay for good."""
    left = office.path / ".root-key.pem.0a_b1c2d"
    left.write_text("half a key")
    office.rotate("next")
    assert not left.exists() and office.key.exists()


def test_nothing_is_replaced_unasked(office: RootFolder, tmp_path: Path) -> None:
    """SEC-01: a root or an identity that is there stays."""
    office.issue(NODE, tmp_path / "node")
    before = office.root.read_bytes(), Folder(tmp_path / "node").signature()
    with pytest.raises(IdentityError, match="--rotate"):
        office.init("again")
    with pytest.raises(IdentityError, match="--force"):
        office.issue(NODE, tmp_path / "node")
    assert before == (office.root.read_bytes(), Folder(tmp_path / "node").signature())
    office.issue(NODE, tmp_path / "node", replace=True)
    office.init("again", replace=True)
    assert before[0] != office.root.read_bytes()


def test_rotation_without_downtime(office: RootFolder, tmp_path: Path) -> None:
    """SEC-08: at every step, in whatever order parts are renewed, each control plane and each
    node that has not been left behind believe each other."""
    control, node = Folder(tmp_path / "cp"), Folder(tmp_path / "node")
    other, late = Folder(tmp_path / "cp2"), Folder(tmp_path / "late")
    for folder, who in ((control, CONTROL_PLANE), (other, CONTROL_PLANE), (node, NODE), (late, NODE)):
        office.issue(who, folder.path)

    def all_meet(*nodes: Folder) -> None:
        for each in (control, other):
            for one in nodes:
                seen = meet(each, one)
                assert seen == (one.presented(), each.presented()), seen

    all_meet(node, late)
    office.rotate("new")
    with pytest.raises(IdentityError, match="under way"):
        office.rotate("newer")
    office.renew(control.path)
    assert control.check(needs_issuer=True) == []
    all_meet(node, late)  # one control plane knows both roots, everybody else the old one alone
    office.renew(node.path)  # by the new root, for a control plane that knows only the old one
    all_meet(node, late)
    office.renew(other.path)
    all_meet(node, late)
    assert office.retire().dropped == 1
    office.renew(control.path)
    assert len(pem.split(control.roots())) == 1
    seen = meet(control, node)
    assert seen == (node.presented(), control.presented())
    refused = meet(control, late)  # it was not renewed in time
    assert all("trust" in str(words) for words in refused), refused
    with pytest.raises(IdentityError, match="not of this authority"):
        office.renew(late.path)
    office.renew(late.path, replace=True)
    assert meet(control, late)[0] == late.presented()
    with pytest.raises(IdentityError, match="no older root"):
        office.retire()


def test_renewed_after_the_end(office: RootFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-01: what has expired can be renewed, with a new key and the same addresses."""
    office.issue(CONTROL_PLANE, tmp_path / "cp", ips=["192.0.2.7"])
    folder = Folder(tmp_path / "cp")
    before, key = folder.presented(), folder.key.read_bytes()
    later = datetime.now(UTC) + timedelta(days=100)
    monkeypatch.setattr(root_folder, "_now", lambda: later)
    facts = office.renew(folder.path)
    assert facts.identity == before.identity and facts.serial != before.serial
    assert facts.expires_at > before.expires_at and "192.0.2.7" in facts.ips
    assert folder.key.read_bytes() != key
    assert folder.check(needs_issuer=True, now=later.timestamp()) == []


def test_signed_elsewhere(office: RootFolder) -> None:
    """SEC-01: only the key of the request counts."""
    key = authority.new_key()
    chain, facts = office.sign(authority.request(CONTROL_PLANE, key), NODE)
    assert facts.identity == NODE and authority.same_key(chain, key)
    assert facts.dns == ()


@pytest.mark.parametrize("what", ["init", "rotate"])
def test_a_crash_leaves_an_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """SEC-08: wherever a rotation ends, there is a root with its key, and parts are told of it."""

    class Crash(BaseException):
        pass

    for step in range(20):
        office = RootFolder(tmp_path / f"{step}")
        if what == "rotate":
            office.init("test")
        left = step

        def counted(change: object) -> object:
            def step_and_change(*arguments: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Crash
                return change(*arguments)  # type: ignore[operator]

            return step_and_change

        ended = False
        with monkeypatch.context() as patch:
            for owner in (pair, root_folder):
                patch.setattr(owner, "write_atomic", counted(owner.write_atomic))
            patch.setattr(Path, "replace", counted(Path.replace))
            try:
                getattr(office, what)("test")
            except Crash:
                ended = True
        if what == "init" and not (office.path / "root.pem").exists():
            office.init("test", replace=True)
        facts = office.issue(NODE, tmp_path / f"node-{step}")
        folder = Folder(tmp_path / f"node-{step}")
        assert facts.identity == NODE and folder.check(needs_issuer=False) == []
        authority.anchor(folder.chain(), folder.roots(), datetime.now(UTC))
        if not ended:
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("root-key.pem", authority.new_key(), "not the key of root.pem"),
        ("root-key.pem", b"nonsense", "no private key in PEM"),
        ("root.pem", OURS.root, "not the key of root.pem"),
        ("root.pem", b"nonsense", "no certificate in PEM"),
        ("authorities.pem", b"nonsense", "no certificate in PEM"),
        ("root-key.pem", None, "no authority in"),
        ("authorities.pem", None, "no authority in"),
    ],
)
def test_a_damaged_authority_signs_nothing(
    office: RootFolder, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    """SEC-01: what is wrong with the folder, and where."""
    file = office.path / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(IdentityError, match=words):
        office.issue(NODE, tmp_path / "node")
    assert not Folder(tmp_path / "node").exists()


def test_an_open_key_is_not_used(office: RootFolder, tmp_path: Path) -> None:
    """SEC-03: a root key that others can read is no secret."""
    office.key.chmod(0o640)
    with pytest.raises(IdentityError, match="chmod 600"):
        office.issue(NODE, tmp_path / "node")


def test_no_authority(tmp_path: Path) -> None:
    """SEC-01: what to do first."""
    with pytest.raises(IdentityError, match="llmgw ctl cert init"):
        RootFolder(tmp_path / "none").issue(NODE, tmp_path / "node")


def test_one_change_at_a_time(office: RootFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-08: two commands do not make two roots."""
    monkeypatch.setattr(root_folder, "PATIENCE", 0.1)
    descriptor = os.open(office.path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(IdentityError, match="another command is changing"):
            office.issue(NODE, tmp_path / "node")
    finally:
        os.close(descriptor)
    office.issue(NODE, tmp_path / "node")
