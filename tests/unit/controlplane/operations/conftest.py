"""The same databases as the store's own tests have."""

from tests.unit.controlplane.store.conftest import (
    bare,
    place,
    postgresql_empty,
    postgresql_server,
    sqlite_template,
)

__all__ = ["bare", "place", "postgresql_empty", "postgresql_server", "sqlite_template"]
