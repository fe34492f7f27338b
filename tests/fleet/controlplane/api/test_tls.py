"""The admin API for other machines: over TLS or not at all (API-02)."""

import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import requests

from controlplane.settings import load
from llmgw.runtime.settings import SettingsError
from tests.fakes.controlplane import ControlPlane, until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, for 127.0.0.1, and its key."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True, timeout=30)
    key.chmod(0o600)
    return made, key


def settings(folder: Path, **admin: str) -> Path:
    lines = "".join(f"  {name}: '{value}'\n" for name, value in admin.items())
    file = folder / "settings.yaml"
    file.write_text(f"admin:\n{lines}")
    return file


@pytest.mark.parametrize("address", ["0.0.0.0:7000", "[::]:7000", "192.0.2.1:7000"])
def test_an_address_for_others_needs_a_certificate(tmp_path: Path, address: str) -> None:
    """API-02: a token must not cross a network in the clear."""
    with pytest.raises(SettingsError, match=r"admin\.certificate and admin\.key"):
        load(settings(tmp_path, listen=address))
    load(settings(tmp_path, listen=address, certificate="c.pem", key="k.pem"))


def test_half_a_pair_is_refused(tmp_path: Path) -> None:
    """API-02: whatever the address."""
    with pytest.raises(SettingsError, match=r"admin\.key: is missing: admin\.certificate needs it"):
        load(settings(tmp_path, certificate="c.pem"))
    with pytest.raises(SettingsError, match=r"admin\.certificate: is missing"):
        load(settings(tmp_path, listen="0.0.0.0:7000", key="k.pem"))


def test_over_tls(tmp_path: Path) -> None:
    """API-02: TLS 1.2 or newer, a token, no plain HTTP, any name; a new certificate on SIGHUP."""
    first, key = certificate(tmp_path, "first")
    plane = ControlPlane(
        tmp_path, admin__listen="0.0.0.0:0", admin__certificate=str(first), admin__key=str(key)
    ).start()
    port = plane.addresses["admin.listen"].port
    url = f"https://127.0.0.1:{port}/api/v1/whoami"
    assert requests.get(url, headers=plane.auth, verify=str(first), timeout=10).json()["user"] == "local"
    assert requests.get(url, verify=str(first), timeout=10).status_code == 401
    named = {**plane.auth, "Host": "llmgw.example"}
    assert requests.get(url, headers=named, verify=str(first), timeout=10).status_code == 200
    plain = requests.get(f"http://127.0.0.1:{port}/healthz", timeout=10)
    assert plain.status_code == 400 and "connect with https" in plain.json()["message"]
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, pytest.raises((ssl.SSLError, OSError)):
        old.wrap_socket(sock)

    for name in ("certificate", "key"):
        assert f"admin.{name}" in plane.config.read_text() or name in plane.config.read_text()
    second, new_key = certificate(tmp_path, "second")
    trusted = second.read_bytes()
    second.replace(first)
    plane.tell(signal.SIGHUP)  # a certificate with the key of another
    until(lambda: "the certificate of the admin API was refused" in plane.log(), "the refusal")
    assert "is not the key of" in plane.log()
    new_key.replace(key)
    plane.tell(signal.SIGHUP)
    bundle = tmp_path / "trusted.pem"
    bundle.write_bytes(trusted)

    def renewed() -> bool:
        try:
            return requests.get(url, headers=plane.auth, verify=str(bundle), timeout=10).status_code == 200
        except requests.exceptions.SSLError:
            return False

    until(renewed, "the new certificate")
    assert "Traceback" not in plane.log()
    assert plane.stop() == 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda made, key: key.chmod(0o644), "run chmod 600"),
        (lambda made, key: key.unlink(), "cannot be read: No such file"),
        (lambda made, key: made.write_text("nothing"), "must hold PEM"),
        (lambda made, key: key.write_text(encrypted(key)), "is encrypted: write it without a passphrase"),
    ],
)
def test_files_that_are_no_pair(tmp_path: Path, spoil, words: str) -> None:
    """API-02, DEP-03: the start ends with status 2, the file and the remedy."""
    made, key = certificate(tmp_path, "made")
    spoil(made, key)
    plane = ControlPlane(tmp_path, admin__certificate=str(made), admin__key=str(key))
    with pytest.raises(AssertionError, match="did not start"):
        plane.start()
    assert plane.stop() == 2
    assert words in plane.log() and "Traceback" not in plane.log()


def encrypted(key: Path) -> str:
    command = ["openssl", "pkcs8", "-topk8", "-in", str(key), "-passout", "pass:secret"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
