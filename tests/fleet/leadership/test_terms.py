"""Many terms of one process: nothing of one outlives it (HA-01, HA-02)."""

import json
import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import requests

from llmgw.wire.messages import Goodbye, Welcome
from tests.fakes.controlplane import until
from tests.fleet.leadership.pair import Member, session

WARM, TERMS = 3, 9
"""Terms before it is counted for the first time, and in all."""


def counted(member: Member) -> dict[str, dict[str, int]]:
    """What the process holds now."""
    before = member.log().count("\nheld ")
    member.tell(signal.SIGUSR1)
    until(lambda: member.log().count("\nheld ") > before, "the counts")
    line = [line for line in member.log().splitlines() if line.startswith("held ")][-1]
    found: dict[str, dict[str, int]] = json.loads(line.removeprefix("held "))
    return found


def lose(store: Path) -> None:
    """Take the lease away from whoever has it, and leave it free."""
    connection = sqlite3.connect(store, timeout=10)
    with connection:
        connection.execute("UPDATE leadership SET owner = '', renewals = renewals + 1")
    connection.close()


def a_term(member: Member, store: Path, highest: int) -> int:
    """An agent in session, a router that waits and somebody who watches events, until the lease is
    lost and won again; the epoch."""
    until(member.serves, "a term")
    agent = session(member, highest_epoch=highest)
    epoch = agent.expect(Welcome).epoch
    watching = requests.get(f"{member.api}/api/v1/events?watch=true", headers=member.auth, stream=True, timeout=30)
    assert watching.status_code == 200
    routers = member.router()
    table = routers.get(f"{member.routers}/router/v1/table", params={"wait": "5"}, timeout=30)
    assert table.status_code == 200
    lose(store)
    assert agent.expect(Goodbye).reason == "another control plane leads"
    agent.close()
    watching.close()
    routers.close()
    return int(epoch)


def more(before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """What there is more of."""
    return {name: (before.get(name, 0), count) for name, count in after.items() if count > before.get(name, 0)}


def test_nothing_outlives_its_term(tmp_path: Path) -> None:
    """HA-02: no greenlet, thread, file or connection of a lost term is left, nor what it knew of the fleet."""
    (tmp_path / "store").mkdir()
    store = tmp_path / "store" / "llmgw.db"
    member = Member(tmp_path / "member", "cp-1", f"sqlite://{store}")
    member.program = [str(Path(__file__).with_name("counting.py"))]
    member.start()
    try:
        epoch = 0
        for _ in range(WARM):
            epoch = a_term(member, store, epoch)
        before = settled(member)
        for _ in range(WARM, TERMS):
            following = a_term(member, store, epoch)
            assert following == epoch + 1
            epoch = following
        until(lambda: not grown(before, settled(member)), f"what is held: {grown(before, settled(member))}")
    finally:
        assert member.stop() == 0
    assert re.findall(r"^\S+ error .*", member.log(), re.MULTILINE) == [] and "Traceback" not in member.log()


def settled(member: Member) -> dict[str, dict[str, int]]:
    """What it holds while a term goes on and nobody is connected."""
    until(member.serves, "a term")
    until(lambda: member.metric("llmgw_agent_sessions ") == 0, "no session")
    return counted(member)


def grown(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> dict[str, Any]:
    """What there is more of than after the first terms. Threads of the pool come and go."""
    found = {part: more(before[part], after[part]) for part in ("greenlets", "files", "objects")}
    if after["threads"]["all"] > before["threads"]["all"] + 4:
        found["threads"] = more(before["threads"], after["threads"])
    return {part: names for part, names in found.items() if names}
