"""Engine keys: derived, never stored, the same after a restart (ENG-03, SEC-08).

They are derived from a secret of the store, of which there may be several *generations*
while engines are moved from one to the next: an engine keeps the key it was started with
until its replica is replaced. So every shard says of which generation its key is. What
names a generation is its number and a random mark: after a restore of an older store the
same number may come again, with another secret.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.wire.messages import ShardSpec


def engine_key(secret: bytes | None, replica_id: str) -> str:
    """The key that a replica's engine demands, or "" without a secret."""
    if secret is None:
        return ""
    return "ek-" + hmac.new(secret, replica_id.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """The secrets of engines' keys by generation, oldest first. ``current`` is the one that
    starts get; empty: there is none, and engines start keyless."""

    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def current(self) -> str:
        """The newest generation."""
        return next(reversed(tuple(self.secrets)), "")

    def key(self, spec: ShardSpec) -> str:
        """The key that the engine of ``spec`` demands; "" if it was started without one,
        or with one of a generation that is not known."""
        if not spec.keyed:
            return ""
        return engine_key(self.secrets.get(spec.key_generation), spec.replica_id)

    def knows(self, spec: ShardSpec) -> bool:
        """Whether the key of ``spec`` can be told."""
        return not spec.keyed or spec.key_generation in self.secrets
