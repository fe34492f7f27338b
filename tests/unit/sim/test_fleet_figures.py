"""What ``llmgw sim-fleet`` tells of a fleet over time."""

import json

from llmgw.sim.fleet_figures import MAX_REASONS, OTHER, Cost, Figures, picture

NOTHING = Cost(0.0, 0, 0)


def through_a_restart() -> Figures:
    """Ten nodes: all in after two seconds, then the control plane goes and comes back."""
    figures = Figures(10)
    figures.look(1.0)
    for _ in range(10):
        figures.shook_hands(0.02)
        figures.entered()
    figures.look(2.0)
    for _ in range(20):
        figures.beat()
    figures.look(3.0)
    for _ in range(10):
        figures.left("goodbye")
    figures.turned_away("not_leader")
    figures.look(4.0)
    for _ in range(10):
        figures.entered()
    figures.look(6.0)
    return figures


def test_it_tells_when_all_were_in_session_after_each_outage():
    """HA-01: the storm after a start and after a restart, with reasons."""
    told = json.loads(json.dumps(through_a_restart().plain(Cost(1.5, 30 * 1024, 20 * 1024))))
    assert [(each["since"], each["least_in_session"], each["seconds"]) for each in told["outages"]] == [
        (0.0, 0, 2.0),
        (4.0, 0, 2.0),
    ]
    assert told["turned_away"] == {"not_leader": 1} and told["ended"] == {"goodbye": 10}
    assert (told["nodes"], told["in_session"], told["sessions"], told["heartbeats"]) == (10, 10, 20, 20)
    assert told["timeline"][2] == {
        "at": 3.0, "in_session": 10, "heartbeats": 20, "entered": 0, "turned_away": 0, "ended": 0,
    }  # fmt: skip
    assert told["memory_bytes_per_node"] == 2048
    assert told["connect_seconds"] == {"median": 0.02, "p99": 0.02}


def test_the_picture_shows_one_node_that_lacks():
    """A bar is full only if all are there, and empty only if none is."""
    figures = Figures(5000)
    for _ in range(4999):
        figures.entered()
    figures.look(1.0)
    lines = list(picture(figures, NOTHING, blocks="#."))
    assert "#." in lines[1] and "4999" in lines[1]
    assert "not until the end" in "\n".join(lines)
    figures.entered()
    figures.look(2.0)
    assert "All 5000 in session since the start: after 2.0 s" in picture(figures, NOTHING)


def test_a_long_run_fits_on_a_terminal():
    """Stretches are joined; nothing is lost of the counts."""
    figures = Figures(1)
    for second in range(1, 1001):
        figures.beat()
        figures.look(float(second))
    lines = list(picture(figures, NOTHING))
    assert len(lines) < 30
    assert all(len(line) <= 80 for line in lines)


def test_reasons_without_end_are_counted_together():
    """What a peer says cannot fill the memory."""
    figures = Figures(1)
    for number in range(1000):
        figures.turned_away(f"reason {number}")
    assert len(figures.away) == MAX_REASONS + 1 and figures.away.total() == 1000
    assert figures.away[OTHER] == 1000 - MAX_REASONS
