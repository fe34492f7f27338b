"""Two control planes of different releases on one store: who may change its schema (HA-01, STO-01)."""

import signal
from collections.abc import Callable
from typing import TypeVar

import pytest
from alembic import command
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from controlplane.store.schema import configuration, current, head
from tests.fakes.controlplane import until
from tests.fleet.leadership.pair import Pair

OLDER = f"{int(head()) - 1:04}"
"""What the release before knows."""

T = TypeVar("T")


@pytest.fixture
def on_store(url: str) -> Callable[[Callable[[Connection], T]], T]:
    """Does something to the store that both use, past them."""
    driver = url.replace("sqlite:///", "sqlite:////").replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(driver, poolclass=NullPool)

    def run(work: Callable[[Connection], T]) -> T:
        with engine.begin() as connection:
            return work(connection)

    return run


def downgrade(connection: Connection) -> None:
    """As if the release before had made it."""
    command.downgrade(configuration(connection), OLDER)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "killed"])
def test_a_newer_one_leaves_the_schema_to_who_leads_and_upgrades_it_once_it_leads_itself(
    pair: Pair, on_store: Callable[[Callable[[Connection], T]], T], crash: bool
) -> None:
    """HA-01: it stands by meanwhile, and keeps a copy of the store as it was."""
    first, second = pair.first, pair.second
    assert second.stop() == 0
    on_store(downgrade)
    second.start()
    assert first.leads() and second.told()["leader"] == str(first.addresses["agents.listen"])
    assert on_store(current) == OLDER and "stays as it is, for whoever leads" in second.log()
    if crash:
        first.stop(signal.SIGKILL)
    else:
        assert first.stop() == 0
    until(second.serves, "the takeover")
    assert on_store(current) == head()
    copies = [*second.state.glob("backups/*"), *second.state.parent.parent.glob("store/*.before-*")]
    assert [copy.name for copy in copies if OLDER in copy.name]
    assert "Traceback" not in second.log()


def test_an_older_one_that_would_lead_says_that_it_cannot(
    pair: Pair, on_store: Callable[[Callable[[Connection], T]], T]
) -> None:
    """STO-01, HA-01: it stands by, and leaves the lease to the newer ones."""
    first, second = pair.first, pair.second

    def write(schema: str) -> None:
        text_of_it = text("UPDATE alembic_version SET version_num = :schema")
        on_store(lambda connection: connection.execute(text_of_it, {"schema": schema}))

    def lease() -> tuple[str, int]:
        return on_store(lambda connection: tuple(connection.execute(text("SELECT owner, epoch FROM leadership")).one()))

    write("9999")
    second.tell(signal.SIGHUP)
    until(lambda: second.metric("llmgw_able_to_lead ") == 0, "it knows")
    assert first.stop() == 0
    until(lambda: "none leads yet" in second.told()["message"], "nobody leads")
    assert f"its schema (9999) is newer than this program's ({head()})" in second.ask("status").json()["message"]
    assert lease() == ("", 1)
    write(head())
    until(second.serves, "it leads once it can")
    assert lease()[1] == 2 and "Traceback" not in second.log()
