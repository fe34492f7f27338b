"""Scopes, people, stored models and settings, audit, usage, and history."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBERED = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _text(name: str, length: int = 200, **more: Any) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False, **more)


def _moment(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=nullable)


def _count(name: str, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=True)


def _version() -> sa.Column[int]:
    return sa.Column("version", sa.Integer(), nullable=False, server_default="1")


def upgrade() -> None:
    """To this step."""
    op.add_column("api_keys", _text("scope", server_default=""))
    op.add_column("api_keys", _version())
    op.add_column("node_intents", _json("labels"))
    with op.batch_alter_table("leadership") as leadership:
        leadership.alter_column("epoch", existing_type=sa.Integer(), type_=sa.BigInteger(), existing_nullable=False)
    op.create_table(
        "holds", _text("domain", 400, primary_key=True), _text("reason", 1000), _text("actor"), _text("at", 40)
    )
    op.create_table(
        "scopes",
        _text("path", primary_key=True),
        _text("title"),
        _moment("created_at"),
        _text("created_by"),
        _version(),
    )
    op.create_table(
        "users",
        _text("name", primary_key=True),
        _moment("created_at"),
        _text("created_by"),
        _moment("disabled_at", nullable=True),
        _version(),
    )
    op.create_table(
        "grants",
        sa.Column("user_name", sa.String(200), sa.ForeignKey("users.name", name="grants_user"), primary_key=True),
        _text("role", 32, primary_key=True),
        _text("scope", primary_key=True),
    )
    op.create_table(
        "admin_tokens",
        _text("id", 64, primary_key=True),
        sa.Column("user_name", sa.String(200), sa.ForeignKey("users.name", name="admin_tokens_user"), nullable=False),
        _text("name"),
        _text("shown", 32),
        _text("digest", 64, unique=True),
        _moment("created_at"),
        _text("created_by"),
        _moment("expires_at", nullable=True),
        _moment("revoked_at", nullable=True),
        sa.Column("revoked_by", sa.String(200), nullable=True),
    )
    op.create_table(
        "models",
        _text("name", primary_key=True),
        _json("definition"),
        _moment("created_at"),
        _text("created_by"),
        _moment("updated_at"),
        _text("updated_by"),
        _version(),
    )
    op.create_table(
        "settings",
        _text("name", 100, primary_key=True),
        _json("value"),
        _moment("updated_at"),
        _text("updated_by"),
        _version(),
    )
    _create_records()


def _create_records() -> None:
    op.create_table(
        "audit",
        sa.Column("id", NUMBERED, primary_key=True),
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
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_at", "audit", ["at"])
    op.create_table(
        "idempotency",
        _text("user_name", primary_key=True),
        _text("key", 255, primary_key=True),
        _text("digest", 64),
        _text("target", 400),
        _moment("at"),
    )
    op.create_index("idempotency_by_at", "idempotency", ["at"])
    op.create_table(
        "usage",
        sa.Column("start", sa.BigInteger(), primary_key=True, autoincrement=False),
        _text("key_id", 64, primary_key=True),
        _text("scope", primary_key=True),
        _text("model", primary_key=True),
        *(
            _count(name)
            for name in ("requests", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "uncounted")
        ),
    )
    op.create_table(
        "usage_sources",
        _text("source", primary_key=True),
        _text("boot", 64, primary_key=True),
        _count("sequence"),
        _moment("at"),
    )
    op.create_table(
        "requests",
        sa.Column("number", NUMBERED, primary_key=True),
        _moment("at"),
        _text("id"),
        _text("key_id", 64),
        _text("scope"),
        _text("model"),
        _text("asked"),
        sa.Column("status", sa.Integer(), nullable=False),
        _text("code", 64),
        _text("router"),
        _text("replica"),
        sa.Column("stream", sa.Boolean(), nullable=False),
        _moment("first_byte", nullable=True),
        _moment("duration", nullable=True),
        *(_count(name, nullable=True) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")),
        _json("retried"),
    )
    op.create_index("requests_by_at", "requests", ["at", "number"])
    op.create_index("requests_by_id", "requests", ["id"])
    op.create_index("requests_by_key", "requests", ["key_id", "at"])
    op.create_index("requests_by_model", "requests", ["model", "at"])
    failed = sa.text("status >= 400 OR code != ''")
    op.create_index("requests_failed", "requests", ["at"], sqlite_where=failed, postgresql_where=failed)
    op.create_table(
        "events",
        _text("id", primary_key=True),
        _moment("at"),
        _text("kind", 64),
        _text("reason", 4000),
        _count("epoch"),
        sa.Column("model", sa.String(200), nullable=True),
        sa.Column("replica", sa.String(200), nullable=True),
        sa.Column("node", sa.String(253), nullable=True),
        _json("figures"),
    )
    op.create_index("events_by_at", "events", ["at", "id"])


def downgrade() -> None:
    """Back to keys, secrets, cordons and the epoch; those are kept."""
    for table in (
        "events",
        "requests",
        "usage_sources",
        "usage",
        "idempotency",
        "audit",
        "settings",
        "models",
        "admin_tokens",
        "grants",
        "users",
        "scopes",
        "holds",
    ):
        op.drop_table(table)
    with op.batch_alter_table("leadership") as leadership:
        leadership.alter_column("epoch", existing_type=sa.BigInteger(), type_=sa.Integer(), existing_nullable=False)
    with op.batch_alter_table("node_intents") as node_intents:
        node_intents.drop_column("labels")
    with op.batch_alter_table("api_keys") as api_keys:
        api_keys.drop_column("version")
        api_keys.drop_column("scope")
