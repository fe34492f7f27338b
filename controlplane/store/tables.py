"""The tables as the queries see them. ``migrations`` makes them; a test compares.

Text columns have a length that the queries enforce (``queries.sql``) before the database
does: SQLite would not, PostgreSQL would fail. Moments are Unix time in seconds. Few
indexes, so that a busy fleet's requests can be written as fast as they come.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    literal_column,
    or_,
)

metadata = MetaData()

NUMBERED = BigInteger().with_variant(Integer, "sqlite")
"""A key that counts up; on SQLite only INTEGER does."""


def _text(name: str, length: int = 200, **more: Any) -> Column[str]:
    return Column(name, String(length), nullable=False, **more)


def _maybe(name: str, length: int = 200) -> Column[str]:
    return Column(name, String(length), nullable=True)


def _moment(name: str) -> Column[float]:
    return Column(name, Float(53), nullable=False)


def _moment_or_never(name: str) -> Column[float]:
    return Column(name, Float(53), nullable=True)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _json(name: str) -> Column[Any]:
    return Column(name, JSON(none_as_null=True), nullable=True)


def _version() -> Column[int]:
    return Column("version", Integer, nullable=False, server_default="1")


api_keys = Table(
    "api_keys",
    metadata,
    _text("id", 64, primary_key=True),
    _text("name"),
    _text("shown", 32),
    _text("digest", 64, unique=True),
    _json("models"),
    _moment("created_at"),
    _text("created_by"),
    _moment_or_never("expires_at"),
    _moment_or_never("revoked_at"),
    _maybe("revoked_by"),
    _text("scope", server_default=""),
    _version(),
)

secrets = Table(
    "secrets",
    metadata,
    _text("name", 100, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text("mark", 16),
    Column("value", LargeBinary, nullable=False),
    _moment("created_at"),
    _text("created_by", 400),
)

node_intents = Table(
    "node_intents",
    metadata,
    _text("node_id", 253, primary_key=True),
    _maybe("cordon_reason", 1000),
    _maybe("cordon_actor"),
    _maybe("cordon_at", 40),
    _json("labels"),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    _text("owner", 64, server_default=""),
    Column("renewals", BigInteger, nullable=False, server_default="0"),
    Column("ttl", Float(53), nullable=False, server_default="0"),
    _json("holder"),
    _moment_or_never("renewed_at"),
    CheckConstraint("id = 1", name="leadership_single_row"),
)

holds = Table(
    "holds",
    metadata,
    _text("domain", 400, primary_key=True),
    _text("reason", 1000),
    _text("actor"),
    _text("at", 40),
)

scopes = Table(
    "scopes",
    metadata,
    _text("path", primary_key=True),
    _text("title"),
    _moment("created_at"),
    _text("created_by"),
    _version(),
)

users = Table(
    "users",
    metadata,
    _text("name", primary_key=True),
    _moment("created_at"),
    _text("created_by"),
    _moment_or_never("disabled_at"),
    _version(),
)

grants = Table(
    "grants",
    metadata,
    Column("user_name", String(200), ForeignKey("users.name", name="grants_user"), primary_key=True),
    _text("role", 32, primary_key=True),
    _text("scope", primary_key=True),
)

admin_tokens = Table(
    "admin_tokens",
    metadata,
    _text("id", 64, primary_key=True),
    Column("user_name", String(200), ForeignKey("users.name", name="admin_tokens_user"), nullable=False),
    _text("name"),
    _text("shown", 32),
    _text("digest", 64, unique=True),
    _moment("created_at"),
    _text("created_by"),
    _moment_or_never("expires_at"),
    _moment_or_never("revoked_at"),
    _maybe("revoked_by"),
)

identities = Table(
    "identities",
    metadata,
    _text("kind", 32, primary_key=True),
    _text("name", 253, primary_key=True),
    _moment("enrolled_at"),
    _text("enrolled_by", 400),
    _text("serial", 64, server_default=""),
    _moment_or_never("issued_at"),
    _moment_or_never("expires_at"),
    _moment_or_never("revoked_at"),
    _maybe("revoked_by", 400),
    _maybe("reason", 1000),
    _moment_or_never("removed_at"),
    _version(),
)

join_tokens = Table(
    "join_tokens",
    metadata,
    _text("id", 64, primary_key=True),
    _text("digest", 64, unique=True),
    _text("kind", 32),
    _text("name", 253),
    _moment("created_at"),
    _text("created_by", 400),
    _moment("expires_at"),
    _moment_or_never("used_at"),
    _maybe("used_from"),
)

models = Table(
    "models",
    metadata,
    _text("name", primary_key=True),
    _json("definition"),
    _moment("created_at"),
    _text("created_by"),
    _moment("updated_at"),
    _text("updated_by"),
    _version(),
)

settings = Table(
    "settings",
    metadata,
    _text("name", 100, primary_key=True),
    _json("value"),
    _moment("updated_at"),
    _text("updated_by"),
    _version(),
)

audit = Table(
    "audit",
    metadata,
    Column("id", NUMBERED, primary_key=True),
    _moment("at"),
    _text("actor", 400),
    _text("user_name"),
    _text("token", 64),
    _text("operation"),
    _text("kind", 64),
    _text("target", 400),
    _json("before"),
    _json("after"),
    _text("request_id"),
    Index("audit_by_at", "at"),
    sqlite_autoincrement=True,  # an id is not given out again after the newest entries were dropped
)

idempotency = Table(
    "idempotency",
    metadata,
    _text("user_name", primary_key=True),
    _text("key", 255, primary_key=True),
    _text("digest", 64),
    _text("target", 400),
    _moment("at"),
    Index("idempotency_by_at", "at"),
)

usage = Table(
    "usage",
    metadata,
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    _text("key_id", 64, primary_key=True),
    _text("scope", primary_key=True),
    _text("model", primary_key=True),
    _count("requests"),
    _count("failed"),
    _count("prompt_tokens"),
    _count("completion_tokens"),
    _count("cached_tokens"),
    _count("uncounted"),
)

usage_sources = Table(
    "usage_sources",
    metadata,
    _text("source", primary_key=True),
    _text("boot", 64, primary_key=True),
    _count("sequence"),
    _moment("at"),
    _json("gaps"),
)

requests = Table(
    "requests",
    metadata,
    Column("number", NUMBERED, primary_key=True),
    _moment("at"),
    _text("id"),
    _text("key_id", 64),
    _text("scope"),
    _text("model"),
    _text("asked"),
    Column("status", Integer, nullable=False),
    _text("code", 64),
    _text("router"),
    _text("replica"),
    Column("stream", Boolean, nullable=False),
    _moment_or_never("first_byte"),
    _moment_or_never("duration"),
    Column("prompt_tokens", BigInteger, nullable=True),
    Column("completion_tokens", BigInteger, nullable=True),
    Column("cached_tokens", BigInteger, nullable=True),
    _json("retried"),
    Index("requests_by_at", "at", "number"),
    Index("requests_by_id", "id"),
    Index("requests_by_key", "key_id", "at"),
    Index("requests_by_model", "model", "at"),
    Index("requests_by_scope", "scope", "at"),
)

FAILED = or_(requests.c.status >= literal_column("400"), requests.c.code != literal_column("''"))
"""Which requests failed. Without parameters: a query that has it can use the index below."""

Index("requests_failed", requests.c.at, sqlite_where=FAILED, postgresql_where=FAILED)

events = Table(
    "events",
    metadata,
    _text("id", primary_key=True),
    _moment("at"),
    _text("kind", 64),
    _text("reason", 4000),
    _count("epoch"),
    _maybe("model"),
    _maybe("replica"),
    _maybe("node", 253),
    _json("figures"),
    Index("events_by_at", "at", "id"),
)
