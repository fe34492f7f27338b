"""Generations of a secret, so that it can be rotated while engines run with the one before."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this step. What there is becomes the first generation."""
    op.create_table(
        "secret_generations",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("mark", sa.String(16), nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("created_by", sa.String(400), nullable=False),
        sa.PrimaryKeyConstraint("name", "number"),
    )
    op.execute(
        sa.text(
            "INSERT INTO secret_generations (name, number, mark, value, created_at, created_by) "
            "SELECT name, 1, :mark, value, created_at, '' FROM secrets"
        ).bindparams(mark=secrets.token_hex(4))
    )
    op.drop_table("secrets")
    op.rename_table("secret_generations", "secrets")


def downgrade() -> None:
    """Back to one value of each secret, the newest: engines that run with an older one
    refuse requests until they are started again."""
    op.create_table(
        "secrets_alone",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
    )
    op.execute(
        "INSERT INTO secrets_alone (name, value, created_at) SELECT name, value, created_at FROM secrets AS one "
        "WHERE number = (SELECT max(number) FROM secrets AS other WHERE other.name = one.name)"
    )
    op.drop_table("secrets")
    op.rename_table("secrets_alone", "secrets")
