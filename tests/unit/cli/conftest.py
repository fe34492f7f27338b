"""The command in this process, as nobody in particular."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nobodys_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither tokens nor addresses of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("llmgw.cli.credentials.LOCAL", tmp_path / "none" / "admin.token")
    for name in ("LLMGW_TOKEN", "LLMGW_TOKEN_FILE", "LLMGW_API", "LLMGW_CA", "COLUMNS", "EDITOR", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
