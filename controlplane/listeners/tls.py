"""TLS of a listener that can be reached from other machines (API-02).

The files are read again on SIGHUP; connections that are open keep what they began with.
"""

import os
import ssl
from pathlib import Path
from typing import Any

from gevent import ssl as gevent_ssl

from llmgw.runtime.files import open_regular
from llmgw.runtime.settings import Fault, SettingsError


class ServerTls:
    """A certificate and its key. ``name`` is the section of the settings that names them."""

    def __init__(self, certificate: Path, key: Path, name: str) -> None:
        self._certificate = certificate
        self._key = key
        self._name = name
        self._context = self.load()

    def load(self) -> Any:
        """A context with what the files hold now. Blocking. Raises ``SettingsError``."""
        faults = self._faults()
        if faults:
            raise SettingsError("llmgw server", faults)
        asked = False

        def passphrase() -> bytes:
            nonlocal asked
            asked = True
            return b""

        context = gevent_ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, password=passphrase)
        except ssl.SSLError as error:
            raise SettingsError("llmgw server", [self._fault(error, encrypted=asked)]) from error
        return context

    def use(self, context: Any) -> None:
        """Take ``context`` for the connections to come."""
        self._context = context

    @property
    def context(self) -> Any:
        """The one in force, for handshakes to come."""
        return self._context

    def _faults(self) -> list[Fault]:
        faults = []
        for place, file in (("certificate", self._certificate), ("key", self._key)):
            try:
                with open_regular(file) as stream:
                    mode = os.fstat(stream.fileno()).st_mode
                    if place == "key" and mode & 0o077:
                        words = f"{file} can be read by others: run chmod 600 {file}"
                        faults.append(Fault(f"{self._name}.{place}", words))
            except OSError as error:
                faults.append(Fault(f"{self._name}.{place}", f"{file} cannot be read: {error.strerror}"))
        return faults

    def _fault(self, error: ssl.SSLError, *, encrypted: bool) -> Fault:
        if error.reason == "KEY_VALUES_MISMATCH":
            return Fault(f"{self._name}.key", f"{self._key} is not the key of {self._certificate}: give the pair")
        if encrypted:
            return Fault(f"{self._name}.key", f"{self._key} is encrypted: write it without a passphrase, mode 0600")
        words = "must hold PEM: a certificate with those that signed it beneath, and a private key"
        return Fault(f"{self._name}.certificate", f"{self._certificate} and {self._key} {words}")
