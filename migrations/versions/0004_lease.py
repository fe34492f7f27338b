"""The lease: who leads, and until when the others wait."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_CHECK = sa.CheckConstraint("id = 1", name="leadership_single_row")


def upgrade() -> None:
    """To this step. Nobody holds the lease; the epoch goes on."""
    op.add_column("leadership", sa.Column("owner", sa.String(64), nullable=False, server_default=""))
    op.add_column("leadership", sa.Column("renewals", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("leadership", sa.Column("ttl", sa.Float(53), nullable=False, server_default="0"))
    op.add_column("leadership", sa.Column("holder", sa.JSON(), nullable=True))
    op.add_column("leadership", sa.Column("renewed_at", sa.Float(53), nullable=True))


def downgrade() -> None:
    """Back to an epoch alone."""
    with op.batch_alter_table("leadership", table_args=(_CHECK,)) as leadership:
        for column in ("renewed_at", "holder", "ttl", "renewals", "owner"):
            leadership.drop_column(column)
