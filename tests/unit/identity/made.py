"""An authority and identities of it, made quickly."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from llmgw.identity import authority
from llmgw.identity.folder import Folder
from llmgw.identity.names import Identity, identity

NOW = datetime.now(UTC).replace(microsecond=0)
CONTROL_PLANE = identity("controlplane", "cp1")
NODE = identity("node", "gpu-7")


class Office:
    """A root, and an issuer under it. ``at``: when both were made."""

    def __init__(self, name: str = "test", at: datetime = NOW) -> None:
        self.root_key = authority.new_key()
        self.root = authority.new_root(name, self.root_key, at)
        self.issuer_key = authority.new_key()
        self.issuer = authority.new_issuer("issuer", self.issuer_key, self.root, self.root_key, at)

    def chain(self, who: Identity, key: bytes, at: datetime = NOW, lifetime: timedelta = authority.LIFETIME) -> bytes:
        """A certificate by the issuer."""
        return authority.sign(
            authority.request(who, key), who, self.issuer, self.issuer_key, at, lifetime=lifetime, dns=["localhost"]
        )

    def folder(
        self, path: Path, who: Identity, at: datetime = NOW, *, roots: bytes | None = None, issuer: bool = False
    ) -> Folder:
        """An identity on disk that trusts ``roots``, else ours."""
        folder, key = Folder(path), authority.new_key()
        folder.write(
            certificate=self.chain(who, key, at),
            key=key,
            authorities=roots or self.root,
            issuer=self.issuer if issuer else None,
            issuer_key=self.issuer_key if issuer else None,
        )
        return folder


OURS = Office()
OTHERS = Office("others")
