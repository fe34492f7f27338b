"""Who led before us, and who bears our name (HA-01)."""

from dataclasses import replace

from controlplane.leadership.lease import Holder, Row
from controlplane.leadership.predecessor import Predecessor

OURS = Holder("cp-1", {"admin": "10.0.0.1:7400"})
OTHER = Holder("cp-2", {"admin": "10.0.0.2:7400"})
TWIN = Holder("cp-1", {"admin": "10.0.0.3:7400"})
ROW = Row("a", 7, 3, holder=OTHER)


def released(row: Row) -> Row:
    """As it is once its owner let go."""
    return replace(row, owner="", renewals=row.renewals + 1, holder=Holder())


def test_why_the_lease_was_to_be_had() -> None:
    """HA-01: from whom, and whether that one let go; of a term that we did not see nothing is claimed."""
    seen = Predecessor(OURS)
    seen.saw(None)
    assert (seen.holder, seen.words) == (None, "nobody ever had the lease")
    seen.saw(ROW)
    assert (seen.holder, seen.words) == (OTHER, "cp-2 no longer renewed its lease")
    seen.saw(released(ROW))
    assert (seen.holder, seen.words) == (OTHER, "cp-2 let go of its lease")
    ours = Row("b", 9, 4, holder=OURS)
    seen.won(ours)
    seen.saw(released(ours))
    assert (seen.holder, seen.words) == (OURS, "this one let go of its lease")
    seen.saw(released(replace(ROW, epoch=5)))
    assert (seen.holder, seen.words) == (None, "another let go of its lease")


def test_one_that_bears_our_name_and_lives() -> None:
    """HA-01: not our own term before a crash, whose addresses may have been others."""
    seen = Predecessor(OURS)
    row = replace(ROW, holder=TWIN)
    for same in (row, row):
        seen.saw(same)
        assert seen.namesake is None
    seen.saw(replace(row, renewals=8))
    assert seen.namesake == TWIN
    seen.won(Row("b", 9, 4, holder=OURS))
    assert seen.namesake == TWIN, "until somebody else is seen to lead"
    for count in (10, 11):
        seen.saw(replace(ROW, renewals=count))
    assert seen.namesake is None
    for count in (12, 13):
        seen.saw(replace(row, holder=OURS, renewals=count))
    assert seen.namesake is None, "the same addresses: it is this one"
