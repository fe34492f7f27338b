"""Clients' API keys: found by digest, so that no slow hash is on the path. PURE (RTR-12)."""

import hashlib
import hmac
from collections.abc import Iterable

from llmgw.wire.routing import RoutedKey

MAX_KEY = 512
"""Longest key looked at, in bytes."""


class KeyRing:
    """The keys of one route table.

    A key's SHA-256 is looked up, so the time taken says nothing about any other key;
    the digest found is compared once more in constant time.
    """

    def __init__(self, keys: Iterable[RoutedKey]) -> None:
        self._keys: dict[bytes, RoutedKey] = {}
        self.unusable: list[str] = []
        """Ids of keys whose digest is not a SHA-256 in hex; nobody can use them."""
        for key in keys:
            try:
                digest = bytes.fromhex(key.digest)
            except ValueError:
                digest = b""
            if len(digest) == 32:
                self._keys[digest] = key
            else:
                self.unusable.append(key.id)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, token: bytes, wall: float) -> RoutedKey | None:
        """The key that ``token`` is, or ``None``. ``wall`` is Unix time: an expired
        key is no key."""
        if not token or len(token) > MAX_KEY:
            return None
        digest = hashlib.sha256(token).digest()
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(digest, bytes.fromhex(key.digest)):
            return None
        if key.expires is not None and key.expires <= wall:
            return None
        return key


def bearer(value: bytes) -> bytes:
    """The token of an ``Authorization`` header, or ``b""`` if it holds none."""
    if value[:7].lower() != b"bearer ":
        return b""
    return value[7:].strip()
