"""Who owns a directory cannot lead a writer elsewhere, and who was ended leaves nothing (SEC-02, SEC-03)."""

import contextlib
import os
from pathlib import Path

import pytest

from llmgw.identity import authority, directory, pair
from llmgw.identity.folder import Folder
from llmgw.runtime.faults import SettingsError
from tests.unit.identity.made import NODE, OTHERS, OURS
from tests.unit.identity.test_folder import Crash, serial


@pytest.mark.parametrize("make", [True, False])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be led somewhere by another user")
def test_root_follows_no_link_in_anothers_directory(tmp_path: Path, make: bool) -> None:
    """SEC-02: whoever owns the directory chooses where it leads: what is there stays as it is."""
    home, victim = tmp_path / "state", tmp_path / "victim"
    for each in (home, victim):
        each.mkdir()
    os.chown(home, 12345, 12346)
    (home / "identity").symlink_to(victim)
    folder = Folder(home / "identity")
    with pytest.raises(OSError, match="identity"):
        OURS.folder(folder.path, NODE) if make else folder.abandon()
    assert victim.stat().st_uid == 0 and list(victim.iterdir()) == []
    os.chown(home, 0, 0)
    assert OURS.folder(folder.path, NODE).check() == [], "an administrator's link is one"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
@pytest.mark.parametrize("other", ["link", "full"])
def test_another_that_is_put_in_the_place_of_the_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """SEC-02: between the moment it is made and that at which it is given to the service."""
    home, victim = tmp_path / "state", tmp_path / "state" / "victim"
    victim.mkdir(parents=True)
    (victim / "secret").write_text("of root")
    os.chown(home, 12345, 12346)
    make = directory._made

    def swapped(name: str, around: int) -> bool:
        made = make(name, around)
        os.rmdir(name, dir_fd=around)
        if other == "link":
            os.symlink(victim, name, dir_fd=around)
        else:
            victim.rename(home / name)
        return made

    monkeypatch.setattr(directory, "_made", swapped)
    with pytest.raises(OSError, match="identity"):
        Folder(home / "identity").prepare(authority.new_key())
    found = victim if other == "link" else home / "identity"
    assert (found.stat().st_uid, [file.name for file in found.iterdir()]) == (0, ["secret"])


def test_it_is_written_to_the_directory_that_was_opened(tmp_path: Path) -> None:
    """SEC-02: whoever puts another in its place meanwhile leads nobody there; errors name the place as people do."""
    folder, victim = OURS.folder(tmp_path / "id", NODE), tmp_path / "victim"
    victim.mkdir()
    with folder.locked() as inside:
        folder.path.rename(tmp_path / "moved")
        folder.path.symlink_to(victim)
        pair.put(inside.path / "new.pem", b"x", 0o600)
    assert list(victim.iterdir()) == [] and (tmp_path / "moved" / "new.pem").exists()
    with pytest.raises(FileNotFoundError) as raised, folder.locked() as inside:
        pair.read_limited(inside.path / "none.pem")
    assert raised.value.filename == str(folder.path / "none.pem")


@pytest.mark.parametrize("key", [True, False])
def test_a_link_to_what_root_can_read_is_not_copied(tmp_path: Path, key: bool) -> None:
    """SEC-02: root finishes what a service began, in a directory of the service's."""
    folder, secret = OURS.folder(tmp_path / "id", NODE), tmp_path / "shadow"
    before = serial(folder)
    secret.write_text("root:$6$secret")
    (folder.path / "next-certificate.pem").symlink_to(secret)
    if key:
        (folder.path / "next-key.pem").write_bytes(authority.new_key())
    folder.prepare(authority.new_key())
    assert serial(folder) == before
    assert all(b"secret" not in file.read_bytes() for file in folder.path.iterdir())


def test_nothing_is_put_where_others_can_write(tmp_path: Path) -> None:
    """SEC-03: they could put something else in its place."""
    folder = OURS.folder(tmp_path / "id", NODE)
    folder.path.chmod(0o775)
    before = folder.signature()
    with pytest.raises(SettingsError, match="chmod 700"):
        folder.prepare(authority.new_key())
    with pytest.raises(SettingsError, match="chmod 700"):
        folder.write(authorities=OTHERS.root)
    assert folder.signature() == before


def test_what_ended_writers_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-03: no key stays for good because of a full disk or a kill -9 in the middle of it; the rest does."""
    folder = OURS.folder(tmp_path / "id", NODE)
    kept = {*(file.name for file in folder.path.iterdir()), "renewal.lock", ".note.pem"}
    for name in ("renewal.lock", ".note.pem"):
        (folder.path / name).touch()

    def dies(*_: object) -> None:
        raise Crash

    for file in (folder.key, folder.authorities):
        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            patch.setattr(Path, "replace", dies)
            patch.setattr(Path, "unlink", dies)
            pair.put(file, b"half", 0o600)
    assert len(list(folder.path.iterdir())) == len(kept) + 2
    folder.tidy()
    assert {file.name for file in folder.path.iterdir()} == kept
    Folder(tmp_path / "nowhere").tidy()


def test_no_certificate_is_tried_out_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-03: whatever ends us there would leave it for good, and a full disk would be in the way."""
    folder, judge, seen = OURS.folder(tmp_path / "id", NODE), pair._paired, []

    def judged(certificate: Path, key: Path) -> bool:
        seen.append(sorted(file.name for file in folder.path.iterdir()))
        return judge(certificate, key)

    monkeypatch.setattr(pair, "_paired", judged)
    folder.write(certificate=OURS.chain(NODE, folder.key.read_bytes()))
    assert {*map(tuple, seen)} == {("authorities.pem", "certificate.pem", "key.pem")}
