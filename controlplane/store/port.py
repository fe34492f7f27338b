"""What the control plane asks of its store: what people decided, never what runs.

The methods block and belong to the writer thread; callers reach them through
``writer.StoreWriter``. Moments are Unix time in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controlplane.events import Cordon


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


class StoreUnavailable(Exception):
    """The store did not answer in time, or refused. Nothing was changed, unless
    ``uncertain``: then the commit had begun and its outcome is not known."""

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client's API key: never the key itself, its SHA-256 in hex (SEC-03).

    ``shown`` is the beginning of the key, for people to recognise it by. ``models``
    is ``None`` for all models.
    """

    id: str
    name: str
    shown: str
    digest: str
    created_at: float
    created_by: str
    models: tuple[str, ...] | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str | None = None


class Store(Protocol):
    """The queries. Each is one transaction; a write is durable when it returns.

    ``before_commit`` is called between a transaction's last statement and its commit;
    what it raises rolls the transaction back.
    """

    before_commit: Callable[[], None] | None

    def take_epoch(self, floor: int = 0) -> int:
        """The next epoch, above every one taken before and above ``floor``, persisted
        (AGT-04)."""
        ...

    def raise_epoch(self, epoch: int) -> None:
        """Keep in mind that epochs up to this one are taken."""
        ...

    def secret(self, name: str, candidate: bytes, now: float) -> bytes:
        """The secret of that name; ``candidate`` becomes it if there is none yet (ENG-03)."""
        ...

    def api_keys(self) -> tuple[ApiKey, ...]:
        """Every key, revoked ones too, oldest first."""
        ...

    def add_key(self, key: ApiKey) -> None:
        """Keep a new key."""
        ...

    def revoke_key(self, key_id: str, now: float, actor: str) -> ApiKey | None:
        """Revoke a key and return it; ``None`` if there is no such key. Revoking a
        revoked key changes nothing."""
        ...

    def cordons(self) -> dict[str, Cordon]:
        """The cordoned nodes (PLC-03)."""
        ...

    def set_cordon(self, node_id: str, cordon: Cordon | None) -> None:
        """Cordon a node, or uncordon it (``None``)."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
