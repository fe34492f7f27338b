"""Batches of a router that were skipped, so that they count when they come late."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this step. What was skipped until now stays skipped: it is not known."""
    op.add_column("usage_sources", sa.Column("gaps", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Back to the highest number alone: what comes late is not counted."""
    with op.batch_alter_table("usage_sources") as sources:
        sources.drop_column("gaps")
