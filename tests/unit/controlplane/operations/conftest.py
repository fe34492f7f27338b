"""The same store as the store's own tests have, asked again soon where it does not answer."""

import pytest

from tests.unit.controlplane.store.conftest import place, sqlite_template

__all__ = ["place", "sqlite_template"]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after a failure are long for the sake of a store that is away for hours."""
    for module in ("controlplane.store.feed", "controlplane.journal"):
        monkeypatch.setattr(f"{module}._FIRST_WAIT", 0.02)
