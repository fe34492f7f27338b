"""The hub-stall detector sees a held hub and says what held it (OBS, architecture)."""

import json
import subprocess
import sys

# A process of its own: the detector belongs to a patched program, and patching cannot be undone.
PROGRAM = """
from gevent import monkey
monkey.patch_all()
import io, json, sys
import gevent
from llmgw.runtime import logs
from llmgw.runtime.stall import StallDetector

hold = monkey.get_original("time", "sleep")
stream = io.StringIO()
logs.configure("info", "json", stream)
detector = StallDetector(threshold=0.3, interval=0.01).start()

def hold_the_hub(seconds):
    hold(seconds)

gevent.sleep(0.3)
calm = (detector.count, detector.longest)
hold_the_hub(1.0)
gevent.sleep(0.05)
held = (detector.count, detector.longest, detector.total)
detector.stop()
gevent.sleep(0.05)
hold_the_hub(0.6)
gevent.sleep(0.05)
print(json.dumps({"calm": calm, "held": held, "stopped": detector.count, "log": stream.getvalue()}))
"""


def test_a_held_hub_is_seen_and_named() -> None:
    """Counted once, as long as it was, with the stack of the holder in the log."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    seen = json.loads(done.stdout)
    assert seen["calm"][0] == 0
    count, longest, total = seen["held"]
    assert count == 1
    assert 0.8 <= longest < 5
    assert total == longest
    assert seen["stopped"] == 1
    (line,) = [json.loads(line) for line in seen["log"].splitlines()]
    assert line["message"] == "the event loop was held"
    assert "hold_the_hub" in line["stack"]
    assert line["seconds"] > 0.8 and line["cpu_seconds"] < 0.5  # it slept: that was no work
