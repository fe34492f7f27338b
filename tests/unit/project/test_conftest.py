"""The guard around all tests is there (tests/conftest.py)."""

import socket

import pytest


def test_connections_to_elsewhere_are_refused() -> None:
    """Before anything leaves the machine. (192.0.2.0/24 is nobody's.)"""
    with socket.socket() as sock, pytest.raises(RuntimeError, match="this machine only"):
        sock.connect(("192.0.2.1", 9))


def test_loopback_is_allowed() -> None:
    """By address, on a port the system picks."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
