"""Who leads: the one row that control planes take and renew (HA-01)."""

from typing import Any

from sqlalchemy import ColumnElement, Float, and_, case, cast, extract, func, or_, select

from controlplane.leadership.lease import Claim, Holder, Row
from controlplane.store.errors import NotLeading, StoreUnavailable
from controlplane.store.queries.sql import Sql, whole
from controlplane.store.tables import leadership

UNIX_EPOCH = 2440587.5
"""As a Julian day, which SQLite counts in."""

STANDSTILL = 2.0
"""Seconds that a control plane may stand still between the statement that takes the lease and
its commit."""

SPENT = 2**63 - 2**20
"""An epoch or a count from here on is none that any lease comes to, and nothing could follow
it: the columns end at 2**63 - 1."""


class LeadershipQueries:
    """See ``port.Leadership``."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def read(self) -> Row | None:
        """See the port."""
        row = self._sql.row(select(leadership))
        if row is None:
            return None
        for name in ("epoch", "renewals"):
            if getattr(row, name) >= SPENT:
                raise StoreUnavailable(
                    f"the lease cannot be taken nor renewed: {name} of the row in table leadership is "
                    f"{getattr(row, name)}, which no control plane wrote and nothing can follow: stop all of them, "
                    "set it to 0 in the database, and start them again"
                )
        return Row(
            owner=row.owner,
            renewals=row.renewals,
            epoch=row.epoch,
            ttl=row.ttl,
            holder=_holder(row.holder),
            renewed_at=row.renewed_at,
        )

    def claim(self, owner: str, claim: Claim, *, ttl: float, holder: Holder) -> Row:
        """See the port."""
        table = leadership.c
        ours = table.owner == owner
        seen = and_(
            table.owner == claim.owner,
            table.renewals == claim.renewals,
            table.renewed_at.is_not_distinct_from(claim.renewed_at),
        )
        above = case((table.epoch < claim.floor, claim.floor), else_=table.epoch)
        given = whole(leadership, {"owner": owner}) | {
            "ttl": ttl,
            "holder": {"name": holder.name, "addresses": dict(holder.addresses)},
            "renewed_at": self._clock(),
        }
        statement = (
            self._sql.insert(leadership)
            .values(given | {"id": 1, "epoch": claim.floor + 1, "renewals": 1})
            .on_conflict_do_update(
                index_elements=["id"],
                set_=given | {"epoch": case((ours, above), else_=above + 1), "renewals": table.renewals + 1},
                where=and_(_goes_on(), or_(and_(ours, table.renewals >= claim.renewals), seen)),
            )
        )
        self._brief()
        self._sql.connection.execute(statement)
        row = self.read()
        if row is None:
            raise LookupError("the row of the lease is gone")
        return row

    def release(self, owner: str) -> None:
        """See the port."""
        values = {"owner": "", "renewals": leadership.c.renewals + 1, "holder": None, "renewed_at": self._clock()}
        self._sql.connection.execute(leadership.update().where(leadership.c.owner == owner, _goes_on()).values(values))

    def require(self, owner: str) -> None:
        """See the port."""
        row = self._sql.row(select(leadership.c.owner, leadership.c.holder))
        if row is None or row.owner != owner:
            by = (row and _holder(row.holder).name) or "another control plane"
            raise NotLeading(f"this control plane leads no more ({by} took over): nothing was changed")

    def probe(self) -> None:
        """See the port."""
        self._sql.connection.execute(leadership.update().where(leadership.c.id == 0).values(ttl=leadership.c.ttl))

    def _brief(self) -> None:
        """Have the server end this transaction if we stand still in the middle of it: the row
        stays locked until then, and nobody else could take the lease (HA-02)."""
        if self._sql.connection.dialect.name == "postgresql":
            self._sql.connection.execute(
                select(func.set_config("idle_in_transaction_session_timeout", f"{STANDSTILL:g}s", True))
            )

    def _clock(self) -> ColumnElement[Any]:
        """The database's clock now, not when the transaction began: Unix time in seconds."""
        if self._sql.connection.dialect.name == "postgresql":
            return cast(extract("epoch", func.clock_timestamp()), Float(53))
        return (func.julianday("now") - UNIX_EPOCH) * 86400.0


def _goes_on() -> ColumnElement[bool]:
    """Whether something can follow the row."""
    return and_(leadership.c.epoch < SPENT, leadership.c.renewals < SPENT)


def _holder(value: Any) -> Holder:
    """What was written; whatever else stands there is nobody."""
    if not isinstance(value, dict):
        return Holder()
    name, addresses = value.get("name"), value.get("addresses")
    return Holder(
        name if isinstance(name, str) else "",
        {str(key): str(address) for key, address in addresses.items()} if isinstance(addresses, dict) else {},
    )
