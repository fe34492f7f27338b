"""Life of a process: signals, exit statuses, and no traceback before a user."""

import signal
import subprocess
import sys

import pytest

HEAD = """
from gevent import monkey
monkey.patch_all()
import sys, threading
import gevent
from llmgw.runtime.daemon import Stopper, run
from llmgw.runtime.faults import Fault, SettingsError
SECRET = "ek-" + "0123456789abcdef" * 4
"""
SECRET = "ek-" + "0123456789abcdef" * 4


def _run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HEAD + body], capture_output=True, text=True, timeout=60, check=False)


def test_a_settings_error_is_a_message() -> None:
    """Exit status 2, every fault, nothing else."""
    done = _run("""
def main():
    raise SettingsError("a.yaml", [Fault("x", "is wrong"), Fault("y", "too")])
sys.exit(run(main))
""")
    assert done.returncode == 2
    assert done.stderr == "a.yaml: 2 faults\n  x: is wrong\n  y: too\n"


def test_an_unexpected_failure_is_logged_masked() -> None:
    """Exit status 1; the traceback is in the log's form, the secret in neither."""
    done = _run("""
def main():
    raise RuntimeError(SECRET)
sys.exit(run(main))
""")
    assert done.returncode == 1
    assert SECRET not in done.stderr
    assert "unexpected failure" in done.stderr
    assert done.stderr.endswith("llmgw: an error of our own; the log above has the details\n")


@pytest.mark.parametrize(
    ("death", "words"),
    [
        ("gevent.spawn(die).join()", "a greenlet failed"),
        ("t = threading.Thread(target=die); t.start(); t.join()", "a thread failed"),
        ("gevent.get_hub().loop.run_callback(die); gevent.sleep(0.05)", "a callback failed"),
    ],
)
def test_what_greenlets_die_of_goes_to_the_log(death: str, words: str) -> None:
    """SEC-03: not to standard error as it is, with whatever secret the message holds."""
    done = _run(f"""
from llmgw.runtime import logs
logs.configure("info", "json")
def die():
    raise ValueError("it held " + SECRET)
def main():
    {death}
    return 0
sys.exit(run(main))
""")
    assert done.returncode == 0
    assert SECRET not in done.stderr
    assert words in done.stderr
    assert "it held ek-***" in done.stderr
    assert "\nTraceback" not in done.stderr


def test_a_failed_call_in_the_threadpool_is_its_callers() -> None:
    """It raises where it was called; as a line of its own it would be noise about what was dealt with."""
    done = _run("""
from llmgw.runtime import logs
logs.configure("info", "text")
def die():
    raise ValueError("the disk is full")
def main():
    try:
        gevent.get_hub().threadpool.apply(die)
    except ValueError as error:
        print("told:", error)
    gevent.sleep(0.05)
    logs.set_level("debug")
    gevent.get_hub().threadpool.spawn(die)
    gevent.sleep(0.05)
    return 0
sys.exit(run(main))
""")
    assert done.stdout == "told: the disk is full\n"
    (line,) = done.stderr.splitlines()
    assert "a call in the threadpool failed function=die" in line


STOPPER = """
def main():
    reloads = []
    def reload():
        reloads.append(1)
        print("reloaded", flush=True)
        if len(reloads) == 1:
            raise ValueError("a reload that fails")
    stopper = Stopper(reload)
    print("up", flush=True)
    stopper.wait()
    print("down", len(reloads), flush=True)
    return 0
sys.exit(run(main))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_and_reload_a_process(number: signal.Signals) -> None:
    """SIGHUP reloads, also after a reload that failed; SIGTERM and SIGINT end in order."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + STOPPER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "reloaded\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert (output, process.returncode) == ("down 2\n", 0)
    assert f"why={number.name}" in errors
    assert "a reload that fails" in errors
