import os
import stat
import subprocess
import sys

import pytest

from router.spool import abandoned, open_spool

BOOT, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_what_is_appended_is_read_back(tmp_path):
    """STO-03: by its owner alone, batch by batch."""
    place = tmp_path / "usage"
    spool = open_spool(place, BOOT)
    spool.append(1, b"a\n")
    spool.append(1, b"b\n")
    spool.append(12, b"c\n")
    assert (spool.read(1), spool.read(12)) == (b"a\nb\n", b"c\n")
    assert spool.sequences() == [1, 12]
    assert {stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()} == {0o600}
    spool.remove(1)
    spool.remove(1)
    assert spool.sequences() == [12]
    spool.close()
    assert len(list(place.iterdir())) == 2  # the batch, and the lock that says whose it is


def test_nothing_is_left_of_an_empty_spool(tmp_path):
    """STO-03: a thousand restarts leave no thousand files."""
    open_spool(tmp_path / "usage", BOOT).close()
    assert list((tmp_path / "usage").iterdir()) == []


def test_a_full_disk_takes_all_or_nothing(tmp_path):
    """STO-03: half a line would spoil what comes after it."""
    code = (
        "import resource, sys, pathlib, signal\n"
        "from router.spool import open_spool\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"spool = open_spool(pathlib.Path(sys.argv[1]), '{BOOT}')\n"
        "spool.append(1, b'first\\n')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try:\n    spool.append(1, b'second line\\n')\n"
        "except OSError:\n    spool.append(1, b'3\\n')\n    print(spool.read(1))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "usage")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "b'first\\n3\\n'\n"


def test_only_what_the_dead_left_is_taken(tmp_path):
    """STO-03: never the batches of a process that lives, and each of a dead one's by one alone."""
    live, dead = open_spool(tmp_path, BOOT), open_spool(tmp_path, OTHER)
    live.append(1, b"live\n")
    dead.append(3, b"dead\n")
    assert abandoned(tmp_path) == []
    dead.close()  # its end lets go of the lock, as that of its process would
    (found,) = abandoned(tmp_path)
    assert (found.boot, found.sequences(), found.read(3)) == (OTHER, [3], b"dead\n")
    assert abandoned(tmp_path) == []
    found.remove(3)
    found.close()
    assert {file.name for file in tmp_path.iterdir()} == {f"{BOOT}.lock", f"{BOOT}-1.usage"}


def test_a_batch_whose_lock_was_lost(tmp_path):
    """STO-03: is found all the same; other files are nobody's business."""
    (tmp_path / f"{BOOT}-2.usage").write_bytes(b"x\n")
    (tmp_path / f"{OTHER}.lock").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"")
    (found,) = abandoned(tmp_path)
    assert (found.boot, found.sequences()) == (BOOT, [2])
    assert {file.name for file in tmp_path.iterdir()} == {f"{BOOT}-2.usage", f"{BOOT}.lock", "notes.txt"}


def test_a_directory_that_others_can_change(tmp_path):
    """STO-03: is not used: what is in it goes into people's accounts."""
    place = tmp_path / "usage"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        open_spool(place, BOOT)


def test_a_pipe_instead_of_a_batch(tmp_path):
    """STO-03: holds nobody up."""
    spool = open_spool(tmp_path, BOOT)
    os.mkfifo(tmp_path / f"{BOOT}-1.usage")
    with pytest.raises(OSError, match="no regular file"):
        spool.read(1)
