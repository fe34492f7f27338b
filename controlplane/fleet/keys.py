"""Engine keys: derived, never stored, the same after a restart (ENG-03)."""

import hashlib
import hmac


def engine_key(secret: bytes | None, replica_id: str) -> str:
    """The key that a replica's engine demands, or "" without a secret."""
    if secret is None:
        return ""
    return "ek-" + hmac.new(secret, replica_id.encode(), hashlib.sha256).hexdigest()
