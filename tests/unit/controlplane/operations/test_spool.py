"""The log on disk: what was acknowledged stays, whatever happens to the process or the disk."""

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.store.spool import DAMAGED, Position, Spool, SpoolFull, waiting


def opened(directory: Path, **options: int) -> Spool:
    return Spool(directory, **{"max_bytes": 1_000_000, **options}).open()


def everything(spool: Spool) -> list[bytes]:
    records: list[bytes] = []
    while chunk := spool.read(3, 1000):
        records += chunk.records
        spool.drop(chunk.end)
    return records


def record(number: int) -> bytes:
    return b"record %d %s" % (number, b"x" * 20)


def test_records_come_back_in_order_over_segments_and_processes(tmp_path: Path) -> None:
    """STO-03: what one process appended the next one reads, once, in order; files go as they are read."""
    spool = opened(tmp_path / "s", segment_bytes=200)
    for number in range(20):
        spool.append([record(number)])
    assert len(list((tmp_path / "s").glob("*.spool"))) > 2
    first = spool.read(3, 10_000)
    assert first is not None and first.records == (record(0), record(1), record(2))
    spool.drop(first.end)
    spool.close()
    again = opened(tmp_path / "s", segment_bytes=200)
    assert everything(again) == [record(number) for number in range(3, 20)]
    assert again.bytes_waiting == 0 and again.damaged == 0
    again.append([record(99)])
    assert everything(again) == [record(99)]
    assert len(list((tmp_path / "s").glob("*.spool"))) == 1
    again.close()


def test_what_was_read_but_not_dropped_is_read_again(tmp_path: Path) -> None:
    """STO-03: a crash between the store's commit and the drop hands a record over twice, never not at all."""
    spool = opened(tmp_path)
    spool.append([record(1), record(2)])
    assert spool.read(10, 1000) == spool.read(10, 1000)
    spool.close()
    assert everything(opened(tmp_path)) == [record(1), record(2)]


def test_who_comes_late_changes_nothing_for_the_next(tmp_path: Path) -> None:
    """STO-03: a thread of a term that ended takes nothing from the one that has the directory now."""
    old = opened(tmp_path, segment_bytes=64)
    for number in range(4):
        old.append([record(number)])
    chunk = old.read(2, 10_000)
    assert chunk is not None
    old.close()
    now = opened(tmp_path, segment_bytes=64)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    old.drop(chunk.end)
    with pytest.raises(SpoolFull, match="was closed"):
        old.append([record(9)])
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert everything(now) == [record(number) for number in range(4)]


def test_the_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """SEC-03: names of keys are nobody else's business."""
    spool = opened(tmp_path / "s")
    spool.append([record(1)])
    for file in (tmp_path / "s").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_a_full_spool_refuses_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    """STO-03: bounded; nothing of what is refused is kept."""
    spool = opened(tmp_path, max_bytes=200)
    kept = 0
    with pytest.raises(SpoolFull, match="bytes wait"):
        for number in range(100):
            spool.append([record(number)])
            kept += 1
    assert 2 < kept < 6
    chunk = spool.read(1, 1000)
    assert chunk is not None
    spool.drop(chunk.end)
    spool.append([record(100)])
    assert everything(spool) == [*(record(number) for number in range(1, kept)), record(100)]


def test_a_line_that_a_crash_cut_short_is_cut_off(tmp_path: Path) -> None:
    """STO-03: it was never acknowledged; what comes next is not glued to it."""
    spool = opened(tmp_path)
    spool.append([record(1)])
    spool.close()
    (file,) = tmp_path.glob("*.spool")
    whole = file.read_bytes()
    for end in range(1, len(whole)):
        file.write_bytes(whole + whole[:end])
        again = opened(tmp_path)
        again.append([record(2)])
        assert everything(again) == [record(1), record(2)], end
        assert again.damaged == 0
        again.close()
        for left in tmp_path.iterdir():
            left.unlink()
        file.write_bytes(whole)


def test_damage_costs_the_records_it_hit_and_no_other(tmp_path: Path) -> None:
    """STO-03: a flipped byte, and a block of zeros as after a power cut, are left out, counted and kept aside."""
    spool = opened(tmp_path)
    spool.append([record(number) for number in range(6)])
    spool.close()
    (file,) = tmp_path.glob("*.spool")
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"record", b"rekord")
    lines[3] = b"\0" * (len(lines[3]) - 1) + b"\n"
    lines[4] = lines[4][:5] + b"\n"
    file.write_bytes(b"".join(lines))
    again = opened(tmp_path)
    assert everything(again) == [record(0), record(2), record(5)]
    assert again.damaged == 3
    assert b"rekord 1" in (tmp_path / DAMAGED).read_bytes()


@pytest.mark.parametrize("text", [b"", b"rubbish", b"0000000009 00000000000000000005 00000000\n", b"\xff" * 60])
def test_a_lost_position_means_from_the_beginning(tmp_path: Path, text: bytes) -> None:
    """STO-03: rather twice than never."""
    spool = opened(tmp_path)
    spool.append([record(1), record(2)])
    chunk = spool.read(1, 1000)
    assert chunk is not None
    spool.drop(chunk.end)
    spool.close()
    (tmp_path / "position").write_bytes(text)
    assert everything(opened(tmp_path)) == [record(1), record(2)]


def test_a_position_inside_a_line_is_not_believed(tmp_path: Path) -> None:
    """STO-03: a position of another time must not cut a record in two."""
    spool = opened(tmp_path)
    spool.append([record(1), record(2)])
    spool.drop(Position(1, 7))
    spool.close()
    assert everything(opened(tmp_path)) == [record(1), record(2)]


def test_a_segment_that_somebody_removed_is_begun_anew(tmp_path: Path) -> None:
    """STO-03: what comes after the removal is kept."""
    spool = opened(tmp_path)
    spool.append([record(1)])
    for file in tmp_path.glob("*.spool"):
        file.unlink()
    spool.append([record(2)])
    assert everything(spool) == [record(2)]


def test_looking_in_changes_nothing(tmp_path: Path) -> None:
    """CLI-04: ``llmgw store check`` counts what waits while another process owns the spool."""
    assert waiting(tmp_path / "none") == (0, 0)
    spool = opened(tmp_path)
    spool.append([record(1), record(2), record(3)])
    chunk = spool.read(1, 1000)
    assert chunk is not None
    spool.drop(chunk.end)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert waiting(tmp_path)[0] == 2
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


# ---------------------------------------------------------------- the process, the disk

CHILD = """
import resource, signal, sys
from pathlib import Path
from controlplane.store.spool import Spool
spool = Spool(Path(sys.argv[1]), 10**9, segment_bytes=20_000).open()
for number in range(int(sys.argv[2]), 10**9):
    spool.append([b"%d " % number + b"x" * 3000, b"%d more" % number])
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def test_kills_in_the_middle_of_appending_lose_nothing(tmp_path: Path) -> None:
    """STO-03: kill -9 at any moment, five times in a row: each acknowledged record is there once."""
    acknowledged: list[int] = []
    for _ in range(5):
        start = acknowledged[-1] + 1000 if acknowledged else 0
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(start)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        acknowledged += [int(child.stdout.readline()) for _ in range(20)]
        os.kill(child.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in child.stdout.read().splitlines()]
        child.wait()
        child.stdout.close()
    found = [int(entry.split()[0]) for entry in everything(opened(tmp_path, max_bytes=10**9))]
    assert len(acknowledged) >= 100
    for number in acknowledged:
        assert found.count(number) == 2, number
    assert found == sorted(found)


LIMITED = """
import resource, sys
from pathlib import Path
from controlplane.store.spool import Spool
spool = Spool(Path(sys.argv[1]), 10**9).open()
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
spool.append([b"first " + b"x" * 3000])
for attempt in range(50):
    try:
        spool.append([b"refused " + b"x" * 3000])
    except OSError as error:
        print(type(error).__name__, error.errno)
    if attempt == 2:
        for _ in range(3):
            try:
                spool.append([b"too large for any file " + b"x" * 5000])
            except OSError as error:
                print("large", error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append([b"last"])
"""


def test_a_disk_that_refuses_is_refused_cleanly_and_recovers(tmp_path: Path) -> None:
    """STO-03: half a write leaves nothing behind, and the next that fits is kept."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("large 27") == 3, "EFBIG, three times"
    refused = done.stdout.count("OSError 27")
    spool = opened(tmp_path)
    kept = [entry.split()[0] for entry in everything(spool)]
    assert refused >= 1 and kept == [b"first", *[b"refused"] * (50 - refused), b"last"]
    assert spool.damaged == 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY, "ours is as it was"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_full_disk_is_refused_cleanly_and_recovers(tmp_path: Path) -> None:
    """STO-03: a real full disk (tmpfs of 256 KiB); space that is freed is used again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        ballast = disk / "ballast"
        spool = opened(disk / "s", max_bytes=10**9, segment_bytes=50_000)
        spool.append([record(0)])
        ballast.write_bytes(b"x" * 150_000)
        kept = [record(0)]
        with pytest.raises(OSError, match="No space left"):
            for number in range(1, 100):
                entry = record(number) + b"y" * 8000
                spool.append([entry])
                kept.append(entry)
        for _ in range(20):
            with pytest.raises(OSError, match="No space left"):
                spool.append([b"z" * 90_000])
        assert len(list((disk / "s").glob("*.spool"))) < 8, "refusals leave no files behind"
        ballast.unlink()
        spool.append([b"after"])
        assert everything(spool) == [*kept, b"after"]
        spool.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
