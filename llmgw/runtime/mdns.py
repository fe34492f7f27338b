"""Control planes on the local network: told and found by multicast DNS (AGT-03).

A control plane advertises ``_llmgw._tcp`` with the port of its agents listener; an agent
that was given no address asks for it. Whoever answers is believed nothing: the agent
demands a certificate of a control plane from it as from any other (SEC-01).

The work is done by a child process, ``python -m llmgw.runtime.mdns``, which is told what
to do in one line of JSON and answers in such lines: the library has threads and a loop of
its own, which do not get along with gevent, and reads packets from anyone. The child ends
with its parent, whose end it sees by its standard input.
"""

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from llmgw.runtime.kinds import Address
from llmgw.runtime.logs import Logger

log = Logger("llmgw.mdns")

SERVICE = "_llmgw._tcp.local."

MAX_FOUND = 64
MAX_ADDRESSES = 8
MAX_LINE = 64 * 1024
"""What an answer may hold: control planes, addresses of each, bytes of a line."""

AGAIN = 10.0
"""Seconds after which a child that ended is started anew."""

SLACK = 15.0
"""Seconds that a child may take beyond what it was asked to wait."""


class MdnsError(Exception):
    """Multicast DNS cannot be used here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """A control plane that answered, and where it says agents may connect."""

    name: str
    addresses: tuple[Address, ...]


def discover(seconds: float, *, interfaces: Sequence[str] = ()) -> tuple[Found, ...]:
    """Who answers within ``seconds``, by name. ``interfaces`` are addresses of this machine
    to ask from; none: all. Raises ``MdnsError``.

    Where gevent has patched ``subprocess``, other greenlets go on meanwhile.
    """
    order = json.dumps({"discover": seconds, "interfaces": list(interfaces)})
    try:
        done = subprocess.run(
            _COMMAND,
            input=order.encode() + b"\n",
            capture_output=True,
            timeout=seconds + SLACK,
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MdnsError(f"looking for control planes by mDNS took longer than {seconds + SLACK:.0f} s") from error
    except OSError as error:
        raise MdnsError(f"looking for control planes by mDNS failed: {error.strerror or error}") from error
    found: list[Found] = []
    for line in done.stdout.splitlines():
        answer = _read(line)
        if "error" in answer:
            raise MdnsError(str(answer["error"]))
        if "found" in answer and len(found) < MAX_FOUND:
            found.append(Found(answer["found"], tuple(Address(host, answer["port"]) for host in answer["addresses"])))
    if done.returncode != 0:
        raise MdnsError(f"looking for control planes by mDNS failed: {_last(done.stderr)}")
    return tuple(sorted(found, key=lambda one: one.name))


class Advertiser:
    """Tells the local network of one control plane until it is stopped. A child that ends
    is started anew; ``fault`` says in words why nothing is told, or is ""."""

    def __init__(self, name: str, listen: Address, *, interfaces: Sequence[str] = ()) -> None:
        self._order = {"advertise": name, "host": listen.host, "port": listen.port, "interfaces": list(interfaces)}
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mdns", daemon=True)
        self.fault = "not started yet"

    def start(self) -> "Advertiser":
        """Begin; does not wait for it."""
        self._thread.start()
        return self

    def stop(self, timeout: float = 2.0) -> None:
        """Take it back, within ``timeout`` seconds."""
        self._stopping.set()
        child = self._child
        if child is None:
            return
        with contextlib.suppress(OSError):
            if child.stdin is not None:
                child.stdin.close()  # it says goodbye and ends
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._advertise()
            except OSError as error:
                self.fault = error.strerror or str(error)
            if not self._stopping.is_set():
                log.warning("the control plane is not advertised by mDNS", why=self.fault, retry_in=AGAIN)
                self._stopping.wait(AGAIN)

    def _advertise(self) -> None:
        self._child = child = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        order, answers = cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout)
        with answers:
            order.write(json.dumps(self._order).encode() + b"\n")
            order.flush()
            self.fault = "its process ended"
            while line := answers.readline(MAX_LINE):
                answer = _read(line)
                if "advertised" in answer:
                    self.fault = ""
                    log.info("advertised by mDNS", name=answer["advertised"], addresses=answer["addresses"])
                elif "error" in answer:
                    self.fault = str(answer["error"])
        self.fault = self.fault or "its process ended"
        child.wait()


_COMMAND = [sys.executable, "-P", "-m", "llmgw.runtime.mdns"]


def _environment() -> dict[str, str]:
    """Nothing of ours: it reads what strangers send."""
    kept = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _read(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _last(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:500] if lines else "its process said nothing"


# ---------------------------------------------------------------- the child


def own_addresses(host: str) -> list[str]:
    """The addresses that others can reach ``host``, an address to listen on or a name, at:
    all of this machine's that are not for itself alone, if it is a wildcard."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        import socket  # noqa: PLC0415 - the parent resolves nothing

        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(row[4][0]) for row in found))[:MAX_ADDRESSES]
    if not address.is_unspecified:
        return [str(address)]
    import ifaddr  # noqa: PLC0415 - comes with zeroconf, for the child alone

    told = [ip.ip if isinstance(ip.ip, str) else ip.ip[0] for adapter in ifaddr.get_adapters() for ip in adapter.ips]
    return usable(told, four_only=address.version == 4)


def usable(addresses: Iterable[str], *, four_only: bool = False) -> list[str]:
    """Those that another machine can connect to as they are."""
    found = []
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            continue
        local = address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified
        if not local and not (four_only and address.version == 6):
            found.append(str(address))
    return list(dict.fromkeys(found))[:MAX_ADDRESSES]


def _say(**answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _open(interfaces: Sequence[str]) -> Any:
    from zeroconf import InterfaceChoice, IPVersion, Zeroconf  # noqa: PLC0415 - for the child alone

    if interfaces:
        return Zeroconf(interfaces=list(interfaces))
    try:
        return Zeroconf(interfaces=InterfaceChoice.All, ip_version=IPVersion.All)
    except OSError:  # IPv6 is switched off
        return Zeroconf(interfaces=InterfaceChoice.All, ip_version=IPVersion.V4Only)


def _serve(order: Mapping[str, Any]) -> None:
    from zeroconf import ServiceInfo  # noqa: PLC0415 - for the child alone

    addresses = own_addresses(order["host"])
    if not addresses:
        raise OSError(f"this machine has no address that others can reach (agents.listen is on {order['host']})")
    label = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in order["advertise"])[:50]
    info = ServiceInfo(
        SERVICE,
        f"{label}.{SERVICE}",
        port=order["port"],
        parsed_addresses=addresses,
        properties={"protocol": "llmgw-agent"},
        server=f"{label}.local.",
    )
    # What only this machine can reach, only this machine is told of.
    own = [address for address in addresses if ipaddress.ip_address(address).is_loopback]
    zeroconf = _open(order["interfaces"] or (own if own == addresses else []))
    try:
        zeroconf.register_service(info, allow_name_change=True)
        _say(advertised=info.name, addresses=addresses)
        sys.stdin.read()  # until the parent goes
        zeroconf.unregister_service(info)
    finally:
        zeroconf.close()


def _ask(order: Mapping[str, Any]) -> None:
    from zeroconf import ServiceBrowser, ServiceListener  # noqa: PLC0415 - for the child alone

    names: dict[str, None] = {}

    class Listener(ServiceListener):
        def add_service(self, zc: Any, type_: str, name: str) -> None:  # noqa: ARG002 - the library's signature
            if len(names) < MAX_FOUND:
                names[name] = None

        def remove_service(self, zc: Any, type_: str, name: str) -> None:  # noqa: ARG002
            names.pop(name, None)

        def update_service(self, zc: Any, type_: str, name: str) -> None:
            self.add_service(zc, type_, name)

    zeroconf = _open(order["interfaces"])
    try:
        browser = ServiceBrowser(zeroconf, SERVICE, Listener())
        threading.Event().wait(order["discover"])
        browser.cancel()
        for name in list(names):
            info = zeroconf.get_service_info(SERVICE, name, timeout=1000)
            addresses = [] if info is None else info.parsed_addresses()[:MAX_ADDRESSES]
            if addresses and info.port:
                _say(found=name.removesuffix(f".{SERVICE}")[:253], addresses=addresses, port=info.port)
    finally:
        zeroconf.close()


def main() -> int:
    """The child: one order on standard input, answers on standard output."""
    order = _read(sys.stdin.buffer.readline(MAX_LINE))
    try:
        if "advertise" in order:
            _serve(order)
        elif "discover" in order:
            _ask(order)
        else:
            _say(error="no order was given")
            return 2
    except ImportError:
        _say(error="mDNS needs the package zeroconf: run pip install 'llmgw[agent]' or 'llmgw[controlplane]'")
        return 1
    except Exception as error:  # noqa: BLE001 - the library raises what it likes; the parent must learn of it
        _say(error=f"mDNS cannot be used: {str(error) or type(error).__name__}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
