"""An index for the request log of a scope: its owner's list must not read all others'."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this step."""
    op.create_index("requests_by_scope", "requests", ["scope", "at"])


def downgrade() -> None:
    """Back to lists that read the whole log."""
    op.drop_index("requests_by_scope", "requests")
