"""Runs a ``Program`` (see ``tests.fakes.supervisor``) as a real process."""

import sys

from agent.engines.base import Command

SOURCE = """
import json, os, signal, sys, time
program = json.loads(sys.argv[1])
terms = 0
def on_term(*_):
    global terms
    terms += 1
    if program["on_term"] == "second" and terms == 2:
        os._exit(1)
if program["on_term"] != "exit":
    signal.signal(signal.SIGTERM, on_term)
if program["sidecar"] and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if program["sidecar"] == "setsid":
        os.setsid()
    while True:
        time.sleep(60)
for line in program["lines"]:
    print(line, flush=True)
if program["exits"] is not None:
    os._exit(program["exits"])
while True:
    time.sleep(60)
"""


def command(program):
    return Command((sys.executable, "-S", "-c", SOURCE, program.to_json()))
