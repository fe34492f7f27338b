"""The folder of an identity: whole after every crash, closed to others, all faults in words (SEC-01, SEC-03)."""

import contextlib
import os
import ssl
import stat
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from llmgw.identity import authority, pair
from llmgw.identity.folder import Folder
from llmgw.identity.names import BACKDATED, Identity, identity
from llmgw.runtime.faults import SettingsError
from tests.unit.identity.made import CONTROL_PLANE, NODE, NOW, OTHERS, OURS

BEGUN = NOW.timestamp()


class Crash(BaseException):
    """The process ends here."""


def serial(folder: Folder) -> str:
    """Of a pair that TLS takes."""
    folder.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return folder.presented().serial


def crash_before(patch: pytest.MonkeyPatch, step: int) -> None:
    """End the process before its ``step``-th change of the disk."""
    left = step

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def step_and_change(*arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            return change(*arguments)

        return step_and_change

    for owner, name in ((pair, "write_atomic"), (pair, "sync_directory"), (Path, "replace")):
        patch.setattr(owner, name, counted(getattr(owner, name)))


def test_written_closed_and_read(tmp_path: Path) -> None:
    """SEC-03: keys are for their owner's eyes, from the first byte; what is written is what is read."""
    old = os.umask(0)
    try:
        folder = OURS.folder(tmp_path / "id", CONTROL_PLANE, issuer=True)
    finally:
        os.umask(old)
    assert folder.check(kind="controlplane", name="cp1", needs_issuer=True) == []
    assert folder.presented().identity == CONTROL_PLANE
    assert folder.signer() == (OURS.issuer, OURS.issuer_key)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "id").iterdir()}
    assert modes == {
        **dict.fromkeys(("certificate.pem", "authorities.pem", "issuer.pem"), 0o644),
        **dict.fromkeys(("key.pem", "issuer-key.pem"), 0o600),
    }
    assert stat.S_IMODE((tmp_path / "id").stat().st_mode) == 0o700
    assert "PRIVATE" not in folder.certificate.read_text() + repr(folder)


@pytest.mark.parametrize("prepared", [False, True])
def test_a_crash_between_key_and_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: bool) -> None:
    """SEC-01: wherever the process ends, a reader finds a key with its own certificate, old or
    new, and the next writer goes on from there."""
    seen = set()
    for step in range(40):
        folder = OURS.folder(tmp_path / f"{step}", NODE)
        before = serial(folder)
        key = authority.new_key()
        chain = OURS.chain(NODE, key)
        after = authority.facts(chain).serial
        ended = False
        with monkeypatch.context() as patch:
            crash_before(patch, step)
            try:
                if prepared:
                    folder.prepare(key)
                    folder.write(certificate=chain, authorities=OURS.root)
                else:
                    folder.write(certificate=chain, key=key, authorities=OURS.root)
            except Crash:
                ended = True
        found = serial(Folder(folder.path))
        seen.add((ended, found == after))
        assert found in (before, after)
        assert ended or found == after
        last = authority.new_key()
        chain = OURS.chain(NODE, last)
        Folder(folder.path).write(certificate=chain, key=last)
        assert serial(Folder(folder.path)) == authority.facts(chain).serial
        assert Folder(folder.path).check() == []
        if not ended:
            break
    else:
        pytest.fail("it never ended")
    assert seen == {(True, False), (True, True), (False, True)}


def test_a_crash_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-01: also where the next process ends in the middle, which began with what the first one left."""
    for first in range(2, 8):
        for second in range(6):
            folder = OURS.folder(tmp_path / f"{first}-{second}", NODE)
            good = {serial(folder)}
            for step in (first, second):
                key = authority.new_key()
                chain = OURS.chain(NODE, key)
                good.add(authority.facts(chain).serial)
                with monkeypatch.context() as patch, contextlib.suppress(Crash):
                    crash_before(patch, step)
                    Folder(folder.path).write(certificate=chain, key=key)
            assert serial(Folder(folder.path)) in good


@pytest.mark.parametrize("step", range(2, 8))
def test_a_pair_that_was_put_there_by_hand_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """SEC-01: what a renewal left that ended in the middle is in nobody's way: neither for readers nor for the next
    writer, who would move it over the pair that a person restored."""
    folder = OURS.folder(tmp_path / "id", NODE)
    key = authority.new_key()
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        crash_before(patch, step)
        folder.write(certificate=OURS.chain(NODE, key), key=key)
    restored = OURS.folder(tmp_path / "copy", NODE)
    for name in ("key.pem", "certificate.pem"):
        (folder.path / name).write_bytes((restored.path / name).read_bytes())
    assert serial(Folder(folder.path)) == serial(restored)
    Folder(folder.path).prepare(authority.new_key())
    assert serial(Folder(folder.path)) == serial(restored)
    assert folder.key.read_bytes() == restored.key.read_bytes()
    Folder(folder.path).abandon()
    assert sorted(file.name for file in folder.path.iterdir() if file.name.startswith("next-")) == []


@pytest.mark.parametrize("step", range(2, 8))
def test_the_pair_from_before_can_be_put_back_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """SEC-01: with the certificate as it was the new one may count, but never with the old key."""
    folder = OURS.folder(tmp_path / "id", NODE)
    before = {file: file.read_bytes() for file in (folder.key, folder.certificate)}
    old, key = serial(folder), authority.new_key()
    chain = OURS.chain(NODE, key)
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        crash_before(patch, step)
        folder.write(certificate=chain, key=key)
    for file, data in before.items():
        file.write_bytes(data)
    good = (old, authority.facts(chain).serial)
    assert serial(Folder(folder.path)) in good
    Folder(folder.path).prepare(authority.new_key())
    assert serial(Folder(folder.path)) in good


def test_readers_see_whole_pairs(tmp_path: Path) -> None:
    """SEC-08: a worker that reloads while another process renews never fails."""
    folder = OURS.folder(tmp_path / "id", NODE)
    done = threading.Event()

    def renew() -> None:
        for _ in range(25):
            key = authority.new_key()
            Folder(folder.path).write(certificate=OURS.chain(NODE, key), key=key)
        done.set()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        found = {serial(folder)}
        while not done.is_set():
            found.add(serial(folder))
    finally:
        thread.join()
    assert len(found) > 2


def test_what_does_not_belong_together_is_not_written(tmp_path: Path) -> None:
    """SEC-01: a certificate for another key, or no certificate, leaves the folder as it is."""
    folder = OURS.folder(tmp_path / "id", NODE)
    before = folder.signature()
    alien = OURS.chain(NODE, authority.new_key())
    for certificate, key in ((alien, None), (alien, authority.new_key()), (b"nothing", None)):
        with pytest.raises(SettingsError, match=r"not for the key|no certificate"):
            folder.write(certificate=certificate, key=key)
    assert folder.signature() == before and folder.check() == []


def test_a_certificate_for_the_key_that_is_there(tmp_path: Path) -> None:
    """SEC-01: keys that are made elsewhere, in a device, stay when the certificate is renewed."""
    folder = OURS.folder(tmp_path / "id", NODE)
    folder.prepare(authority.new_key())  # asked once, never answered
    chain = OURS.chain(NODE, folder.key.read_bytes())
    folder.write(certificate=chain)
    assert serial(folder) == authority.facts(chain).serial


def test_the_signature_tells_every_change(tmp_path: Path) -> None:
    """SEC-08: a hot reload misses nothing, and has nothing to do otherwise."""
    folder = OURS.folder(tmp_path / "id", NODE)
    seen = {folder.signature()}
    assert folder.signature() in seen
    key = authority.new_key()
    for change in (
        lambda: folder.write(certificate=OURS.chain(NODE, key), key=key),
        lambda: folder.write(authorities=OURS.root + OTHERS.root),
        lambda: folder.key.chmod(0o400),  # or given to us, who could not read it
        folder.authorities.unlink,
    ):
        change()
        assert folder.signature() not in seen
        seen.add(folder.signature())


def damage(name: str, content: str | None = None, mode: int | None = None) -> Callable[[Folder], None]:
    """Do something to a file."""

    def do(folder: Folder) -> None:
        file = folder.path / name
        if content == "":
            file.unlink()
        elif content is not None:
            file.write_text(content)
        if mode is not None:
            file.chmod(mode)

    return do


@pytest.mark.parametrize(
    ("do", "place", "words"),
    [
        (damage("key.pem", ""), "key.pem", "does not exist"),
        (damage("certificate.pem", ""), "certificate.pem", "does not exist"),
        (damage("authorities.pem", ""), "authorities.pem", "does not exist"),
        (damage("key.pem", mode=0o640), "key.pem", "chmod 600"),
        (damage("issuer-key.pem", mode=0o604), "issuer-key.pem", "chmod 600"),
        (damage(".", mode=0o770), "id", "chmod 700"),
        (damage("key.pem", "nonsense"), "key.pem", "private key in PEM"),
        (damage("certificate.pem", "nonsense"), "certificate.pem", "no certificate in PEM"),
        (damage("authorities.pem", "nonsense"), "authorities.pem", "no certificate in PEM"),
        (damage("key.pem", authority.new_key().decode()), "key.pem", "not the key of"),
        (damage("issuer-key.pem", authority.new_key().decode()), "issuer.pem", "not that of issuer-key.pem"),
        (damage("issuer.pem", ""), "issuer.pem", "cannot sign"),
        (damage("issuer.pem", OTHERS.issuer.decode()), "issuer.pem", "not that of issuer-key.pem"),
        (damage("authorities.pem", OTHERS.root.decode()), "certificate.pem", "none of the authorities"),
    ],
)
def test_faults_name_place_and_remedy(tmp_path: Path, do: Callable[[Folder], None], place: str, words: str) -> None:
    """SEC-01: whatever is wrong with the folder is found at the start, in words."""
    folder = OURS.folder(tmp_path / "id", CONTROL_PLANE, issuer=True)
    do(folder)
    faults = folder.check(needs_issuer=True)
    assert any(Path(fault.path).name == place and words in fault.message for fault in faults), faults


def test_all_faults_at_once(tmp_path: Path) -> None:
    """SEC-01: one look tells everything."""
    folder = OURS.folder(tmp_path / "id", CONTROL_PLANE)
    folder.key.chmod(0o644)
    folder.authorities.unlink()
    assert {Path(fault.path).name for fault in folder.check(kind="node")} == {
        "key.pem", "authorities.pem", "certificate.pem",
    }  # fmt: skip
    assert "is no directory" in Folder(tmp_path / "none").check()[0].message


@pytest.mark.parametrize(
    ("who", "days", "words"),
    [
        (identity("router", "gpu-7"), 0, "is that of node gpu-7, not of router gpu-7"),
        (identity("node", "gpu-8"), 0, "is that of node gpu-7, not of node gpu-8"),
        (NODE, 30, "expired at"),
        (NODE, -1, "is the clock right"),
        (NODE, 4000, "a new root is needed"),
    ],
)
def test_the_wrong_one_or_the_wrong_time(tmp_path: Path, who: Identity, days: int, words: str) -> None:
    """SEC-01: another's folder, and one that is out of date, are told at the start."""
    folder = OURS.folder(tmp_path / "id", NODE)
    faults = folder.check(kind=who.kind, name=who.name, now=BEGUN + timedelta(days=days).total_seconds())
    assert any(words in fault.message for fault in faults), faults
    assert folder.check(kind="node", name="gpu-7", now=BEGUN - BACKDATED + 1) == []


def test_a_key_with_a_password_asks_nobody(tmp_path: Path) -> None:
    """SEC-03: a service must not wait at a terminal."""
    from cryptography.hazmat.primitives import serialization

    folder = OURS.folder(tmp_path / "id", NODE)
    key = serialization.load_pem_private_key(folder.key.read_bytes(), None)
    closed = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    folder.key.write_bytes(closed)
    assert "without a password" in folder.check()[0].message


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """SEC-01: a pipe or a device would hold its reader for ever."""
    folder = OURS.folder(tmp_path / "id", NODE)
    folder.authorities.unlink()
    os.mkfifo(folder.authorities)
    assert "no regular file" in folder.check()[0].message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_writes_is_the_services(tmp_path: Path) -> None:
    """SEC-02: ``sudo llmgw join`` in a directory of the service's user leaves what it can read."""
    home = tmp_path / "state"
    home.mkdir()
    os.chown(home, 12345, 12346)
    folder = OURS.folder(home / "identity", NODE)
    for file in (folder.path, folder.key, folder.certificate, folder.authorities):
        assert (file.stat().st_uid, file.stat().st_gid) == (12345, 12346)
