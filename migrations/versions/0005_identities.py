"""Nodes and routers that may speak to us, and tokens to become one."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _text(name: str, length: int = 200, **more: Any) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False, **more)


def _maybe(name: str, length: int = 200) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=True)


def _moment(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(53), nullable=nullable)


def upgrade() -> None:
    """To this step."""
    op.create_table(
        "identities",
        _text("kind", 32, primary_key=True),
        _text("name", 253, primary_key=True),
        _moment("enrolled_at"),
        _text("enrolled_by", 400),
        _text("serial", 64, server_default=""),
        _moment("issued_at", nullable=True),
        _moment("expires_at", nullable=True),
        _moment("revoked_at", nullable=True),
        _maybe("revoked_by", 400),
        _maybe("reason", 1000),
        _moment("removed_at", nullable=True),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
    )
    op.create_table(
        "join_tokens",
        _text("id", 64, primary_key=True),
        _text("digest", 64, unique=True),
        _text("kind", 32),
        _text("name", 253),
        _moment("created_at"),
        _text("created_by", 400),
        _moment("expires_at"),
        _moment("used_at", nullable=True),
        _maybe("used_from"),
    )


def downgrade() -> None:
    """Back to a store without identities."""
    op.drop_table("join_tokens")
    op.drop_table("identities")
