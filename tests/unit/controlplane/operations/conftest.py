"""The same store as the store's own tests have."""

from tests.unit.controlplane.store.conftest import place, sqlite_template

__all__ = ["place", "sqlite_template"]
