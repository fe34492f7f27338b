"""A certificate authority of a test's own, made by the ``openssl`` command."""

import ssl
import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """Issues certificates into ``directory``; ``certificate`` is what clients have to trust."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = directory / "authority.key"
        self.certificate = directory / "authority.pem"
        _openssl(
            "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate
        )

    def server(self, *names: str) -> ssl.SSLContext:
        """What a server needs that is called ``names`` (``DNS:...`` or ``IP:...``)."""
        key, request, certificate, extensions = (
            self._directory / f"server.{end}" for end in ("key", "csr", "pem", "ext")
        )
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        _openssl("req", "-new", *_KEY, "-subj", "/CN=server", "-keyout", key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"),
            *("-days", "2", "-extfile", extensions, "-out", certificate),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
