"""What holds for every test: loopback only, Ctrl-C, bytecode that is kept, and property tests that a busy machine
cannot fail."""

import ipaddress
import os
import signal
import socket
import sys
from typing import Any

from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


# A shell starts what runs in the background with SIGINT ignored; what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Containers often ask for no bytecode. Compiling the product anew is a quarter of the start of each process of it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _loopback_only(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse connections to anywhere else, whatever library makes them."""
    if event not in ("socket.connect", "socket.sendto"):
        return
    sock, address = arguments[0], arguments[1]
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return
    host = str(address[0]).partition("%")[0]
    if host in ("", "localhost"):
        return
    try:
        allowed = ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        allowed = False
    if not allowed:
        raise RuntimeError(f"a test wanted to connect to {host}: tests talk to this machine only")


sys.addaudithook(_loopback_only)
