"""The audit of changes, through the process."""

import sqlite3

from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.controlplane.api.client import Client


def test_an_audit_that_cannot_be_written_is_in_the_log(own: ControlPlane) -> None:
    """API-05: through the process: the log level changes with the database locked, and the log says what is missing."""
    own.start()
    admin = Client(own.api, own.token)
    lock = sqlite3.connect(own.state / "llmgw.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    answer = admin.put("log-level", {"level": "debug"}, headers={"Llmgw-Actor": "cli:root"})
    lock.execute("ROLLBACK")
    lock.close()
    assert answer.status_code == 200 and admin.get("log-level").json() == {"level": "debug"}
    until(lambda: "a change is not in the audit" in own.log(), "the log entry")
    (line,) = [line for line in own.log().splitlines() if "a change is not in the audit" in line]
    assert "operation=log-level.set" in line and 'actor="local (cli:root)"' in line
    assert answer.headers["X-Request-Id"] in line
