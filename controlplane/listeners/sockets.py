"""The sockets that this process listens on. They are bound once and stay, whoever serves
behind them: a control plane that leads, or one that stands by (HA-01). Who comes while one
takes over from the other waits for a moment, and is not turned away.
"""

from collections.abc import Iterable
from typing import Any

from gevent import socket

from llmgw.runtime.settings import Address, Fault, Loaded, SettingsError

BACKLOG = 4096
"""Connections that may wait to be accepted: a fleet returns in one instant."""


class Sockets:
    """A listening socket for each of ``names``, settings that hold an address."""

    def __init__(self, settings: Loaded, names: Iterable[str]) -> None:
        """Bind them all. Raises ``SettingsError`` naming each whose address cannot be had."""
        self._sockets: dict[str, Any] = {}
        faults = []
        for name in names:
            try:
                self._sockets[name] = _listen(settings[name])
            except OSError as error:
                faults.append(Fault(name, f"cannot listen on {settings[name]}: {error.strerror or error}"))
        if faults:
            self.close()
            raise SettingsError("llmgw server", faults)

    def __getitem__(self, name: str) -> Any:
        """A socket of its own for whoever serves: closing it leaves ours open."""
        return self._sockets[name].dup()

    def address(self, name: str) -> Address:
        """The address listened on, with the port that was chosen for port 0."""
        host, port, *_ = self._sockets[name].getsockname()
        return Address(host, port)

    def close(self) -> None:
        """Listen no more."""
        for each in self._sockets.values():
            each.close()
        self._sockets = {}


def at(where: Any) -> Any:
    """What gevent's servers take: a listening socket as it is, an ``Address`` as a pair."""
    return (where.host, where.port) if isinstance(where, Address) else where


def _listen(address: Address) -> Any:
    sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
