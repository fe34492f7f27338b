"""Fixtures of the catalog's tests."""

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.controlplane.catalog.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without TLS."""
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for files.test that nobody but its holder trusts, with its key."""
    directory = tmp_path_factory.mktemp("ca")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem"), "-days", "2"]
    command += ["-subj", "/CN=files.test", "-addext", "subjectAltName=DNS:files.test"]
    subprocess.run(command, check=True, capture_output=True)
    return directory / "cert.pem"


@pytest.fixture
def secure(certificate: Path) -> Iterator[Server]:
    """A server that is files.test."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    made = Server(context)
    yield made
    made.close()
