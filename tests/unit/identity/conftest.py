"""Files without a disk: nothing here is about losing power."""

import os

import pytest


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk at every small file."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
