"""Files and directories as others may have left them."""

import os
from pathlib import Path

import pytest

from llmgw.runtime.files import note_holder, open_regular, private_directory
from llmgw.runtime.settings import Fault, SettingsError, read_secret, read_yaml


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """CAT-06: a reader of a pipe without a writer would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for read in (open_regular, read_yaml, read_secret):
        with pytest.raises((OSError, SettingsError), match="no regular file"):
            read(pipe)
    with pytest.raises(OSError, match="no regular file"):
        open_regular(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_links_are_followed(tmp_path: Path) -> None:
    """CAT-01: configuration is often linked to where it is kept."""
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"content"


def test_a_directory_of_our_own(tmp_path: Path) -> None:
    """SEC-03: made with 0700; what others can write to is not believed."""
    fresh = tmp_path / "a" / "b"
    private_directory(fresh)
    assert fresh.stat().st_mode & 0o777 == 0o700
    fresh.chmod(0o755)
    private_directory(fresh)
    for mode in (0o775, 0o757, 0o1777):
        fresh.chmod(mode)
        with pytest.raises(PermissionError, match="run chmod 700"):
            private_directory(fresh)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user(tmp_path: Path) -> None:
    """SEC-03: its owner decides what is in it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_directory(theirs)


def test_a_full_disk_does_not_keep_a_lock_from_being_taken(tmp_path: Path) -> None:
    """AGT-07: on a full disk an agent must be able to come back to its engines."""
    with Path("/dev/full").open("r+b", buffering=0) as full:
        note_holder(full.fileno())
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    note_holder(descriptor)
    os.close(descriptor)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_faults_do_not_steer_the_terminal() -> None:
    """CLI-04: a catalog that somebody sent is checked on somebody's terminal."""
    shown = str(SettingsError("file", [Fault("models.\x1b[31m\u202ex", "is\nnot \u009b31m")]))
    assert shown == "file: 1 fault\n  models.\\x1b[31m\\u202ex: is\\nnot \\x9b31m"
