"""The tables as the queries see them. ``migrations`` makes them; a test compares."""

from sqlalchemy import JSON, CheckConstraint, Column, Float, Integer, LargeBinary, MetaData, String, Table

metadata = MetaData()

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("shown", String(32), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("models", JSON(none_as_null=True), nullable=True),
    Column("created_at", Float(53), nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("expires_at", Float(53), nullable=True),
    Column("revoked_at", Float(53), nullable=True),
    Column("revoked_by", String(200), nullable=True),
)

secrets = Table(
    "secrets",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("created_at", Float(53), nullable=False),
)

node_intents = Table(
    "node_intents",
    metadata,
    Column("node_id", String(253), primary_key=True),
    Column("cordon_reason", String(1000), nullable=True),
    Column("cordon_actor", String(200), nullable=True),
    Column("cordon_at", String(40), nullable=True),
)

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    CheckConstraint("id = 1", name="leadership_single_row"),
)
