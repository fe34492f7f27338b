"""API keys, secrets, intents for nodes, and the epoch."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this step."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("shown", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("created_by", sa.String(200), nullable=False),
        sa.Column("expires_at", sa.Float(53), nullable=True),
        sa.Column("revoked_at", sa.Float(53), nullable=True),
        sa.Column("revoked_by", sa.String(200), nullable=True),
    )
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
    )
    op.create_table(
        "node_intents",
        sa.Column("node_id", sa.String(253), primary_key=True),
        sa.Column("cordon_reason", sa.String(1000), nullable=True),
        sa.Column("cordon_actor", sa.String(200), nullable=True),
        sa.Column("cordon_at", sa.String(40), nullable=True),
    )
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.CheckConstraint("id = 1", name="leadership_single_row"),
    )


def downgrade() -> None:
    """Back to an empty store."""
    for table in ("leadership", "node_intents", "secrets", "api_keys"):
        op.drop_table(table)
