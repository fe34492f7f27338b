"""A careful HTTP client for addresses that people hand in (SEC-04).

A name is looked up once, every address it has is judged, and the connection goes to the
address that was judged: no second lookup that could answer differently. Redirects are
followed by hand and judged the same. Everything is bounded: time as a whole, sizes, hops.
Proxies of the environment are not used, ``.netrc`` is not read, and credentials stay with
the host they were meant for.
"""

import http.client
import io
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from llmgw.runtime.clock import Clock, SystemClock

MAX_HOPS = 5
MAX_ADDRESSES = 16
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 65536

Resolver = Callable[[str, int], Sequence[str]]
"""Addresses of a host, as text. Raises ``OSError`` if it has none."""

_NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local, and where most clouds keep a machine's credentials
        "fe80::/10",
        "100.100.100.200/32",  # the same in clouds that use other addresses
        "168.63.129.16/32",
        "192.0.0.192/32",
        "fd00:ec2::/32",
        "fd20:ce::/32",
        "0.0.0.0/8",
        "::/128",
        "224.0.0.0/4",
        "ff00::/8",
        "240.0.0.0/4",
    )
)
_PRIVATE = tuple(ipaddress.ip_network(network) for network in ("100.64.0.0/10", "fec0::/10", "fc00::/7"))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class WebError(Exception):
    """An answer could not be had; the text says why, fit to follow the URL's host."""


class Forbidden(WebError):
    """The address is one that may not be asked."""


@dataclass(frozen=True)
class WebOptions:
    """``private``: addresses inside the site may be asked (loopback, private ranges);
    link-local, metadata and multicast addresses never. ``trusted`` are hosts, in small
    letters, that the operator named and that may be inside the site anyhow. ``timeout`` bounds one request with
    all its redirects, in seconds. ``ca_file`` holds certificates that are trusted beside
    the system's."""

    private: bool = False
    trusted: frozenset[str] = frozenset()
    timeout: float = 20.0
    ca_file: Path | None = None
    resolve: Resolver | None = None
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True)
class Answer:
    """``headers`` have lower-case names. ``url`` is where it came from, after redirects."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body as JSON. Raises ``WebError``."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise WebError("answered with something that is not JSON") from None


def forbidden(address: str, private: bool) -> str | None:
    """Why an address may not be asked, or ``None`` if it may."""
    try:
        ip: _Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "is not an address"
    for inner in (ip, *_embedded(ip)):
        if any(inner.version == network.version and inner in network for network in _NEVER):
            return "is one that no source may have (link-local, metadata, multicast or reserved)"
        inside = any(inner.version == network.version and inner in network for network in _PRIVATE)
        if (inside or not inner.is_global) and not private and inner not in _NAT64:
            return "is inside the site: an admin can permit that with the setting sources.private"
    return None


def _embedded(ip: _Address) -> tuple[_Address, ...]:
    """The IPv4 addresses that an IPv6 address leads to."""
    if not isinstance(ip, ipaddress.IPv6Address):
        return ()
    found: list[_Address | None] = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if ip in _NAT64 or ip in _NAT64_LOCAL or (int(ip) >> 32 == 0 and int(ip) > 1):
        found.append(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    return tuple(inner for inner in found if inner is not None)


def ask(
    url: str,
    options: WebOptions,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    max_bytes: int = 0,
    follow: bool = True,
) -> Answer:
    """The answer to a request, after redirects unless ``follow`` is false. Blocking.

    ``secrets`` are headers that go to the host of ``url`` alone, never to one that a
    redirect names. The body is read up to ``max_bytes`` (0: not at all); a longer one is a
    ``WebError``, as is everything that keeps an answer from coming.
    """
    deadline = options.clock.monotonic() + options.timeout
    home = _origin(urlsplit(url))
    seen: set[str] = set()
    for _ in range(MAX_HOPS + 1):
        parts = urlsplit(url)
        if url in seen:
            raise WebError("sends from one address to another in a circle")
        seen.add(url)
        sent = {**(headers or {}), **((secrets or {}) if _origin(parts) == home else {})}
        answer = _once(parts, options, deadline, method=method, headers=sent, max_bytes=max_bytes)
        if not follow or answer.status not in _REDIRECTS or "location" not in answer.headers:
            return answer
        target = urljoin(url, answer.headers["location"])
        aim = _checked(target)
        if parts.scheme == "https" and aim.scheme != "https":
            raise Forbidden(f"sends on to {(aim.hostname or '')[:100]!a} without encryption")
        url = target.partition("#")[0]
    raise WebError(f"sends on more than {MAX_HOPS} times")


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, (parts.hostname or "").lower(), _port(parts)


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _checked(url: str) -> SplitResult:
    """Raises ``WebError`` unless it is an http or https URL without a user."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and _port(parts) > 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or any(ord(character) < 33 for character in url):
        raise WebError("sends on to something that is no usable URL")
    return parts


def _once(
    parts: SplitResult,
    options: WebOptions,
    deadline: float,
    *,
    method: str,
    headers: Mapping[str, str],
    max_bytes: int,
) -> Answer:
    host, port = parts.hostname or "", _port(parts)
    addresses = _addresses(host, port, options)
    try:
        with closing(_connect(addresses, parts, options, deadline)) as sock:
            stream = _Bounded(sock, deadline, options.clock)
            stream.send(_request(parts, method, headers))
            response = http.client.HTTPResponse(cast(socket.socket, stream), method=method)
            with closing(response):
                response.begin()
                body = _body(response, max_bytes) if max_bytes and method != "HEAD" else b""
                lower = {name.lower(): value for name, value in response.getheaders()}
                return Answer(parts.geturl(), response.status, lower, body)
    except ssl.SSLCertVerificationError as error:
        raise WebError(f"has a certificate that is not valid ({error.verify_message or 'not verified'})") from None
    except TimeoutError:
        raise WebError(f"did not answer within {options.timeout:g} s") from None
    except http.client.IncompleteRead:
        raise WebError("broke off in the middle of its answer") from None
    except http.client.RemoteDisconnected:
        raise WebError("closed the connection without an answer") from None
    except (http.client.HTTPException, ValueError) as error:
        raise WebError(f"answered with something that is not HTTP ({type(error).__name__})") from None
    except ssl.SSLError as error:
        raise WebError(f"could not agree on TLS ({error.reason or 'no reason given'})") from None
    except OSError as error:
        raise WebError(f"could not be reached ({error.strerror or type(error).__name__})") from None


def _addresses(host: str, port: int, options: WebOptions) -> list[str]:
    try:
        found = list((options.resolve or _resolve)(host, port))[:MAX_ADDRESSES]
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise WebError("has no address: is the name right, and does this machine have a name server?")
    for address in found:
        why = forbidden(address, options.private or host.lower() in options.trusted)
        if why:
            raise Forbidden(f"is {address}, which {why}")
    return found


def _resolve(host: str, port: int) -> Sequence[str]:
    rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def _connect(addresses: Sequence[str], parts: SplitResult, options: WebOptions, deadline: float) -> socket.socket:
    """A connection to the first address that takes one; TLS is verified for the name."""
    problem: OSError = OSError("no address")
    for index, address in enumerate(addresses):
        # One that swallows packets must leave time for the others.
        share = _left(deadline, options.clock) / (len(addresses) - index)
        try:
            sock = socket.create_connection((address, _port(parts)), timeout=share)
        except OSError as error:
            problem = error
            continue
        if parts.scheme != "https":
            return sock
        try:
            sock.settimeout(_left(deadline, options.clock))
            return _trust(options.ca_file).wrap_socket(sock, server_hostname=parts.hostname)
        except BaseException:
            sock.close()
            raise
    raise problem


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError:
            raise WebError(f"cannot be verified: {ca_file} cannot be read as certificates") from None
    return context


def _left(deadline: float, clock: Clock) -> float:
    left = deadline - clock.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _request(parts: SplitResult, method: str, headers: Mapping[str, str]) -> bytes:
    host = parts.hostname or ""
    name = f"[{host}]" if ":" in host else host
    if parts.port:
        name += f":{parts.port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {path} HTTP/1.1", f"Host: {name}", "Connection: close", "Accept-Encoding: identity"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a line break in a request")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class _Bounded(io.RawIOBase):
    """A socket each of whose reads has only what is left of the time: a server that sends
    a byte a minute is given up in time. Stands in for the socket of ``HTTPResponse``."""

    def __init__(self, sock: socket.socket, deadline: float, clock: Clock) -> None:
        self._sock = sock
        self._deadline = deadline
        self._clock = clock

    def send(self, data: bytes) -> None:
        """Write everything."""
        self._sock.settimeout(_left(self._deadline, self._clock))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002 - as of a socket
        """What ``HTTPResponse`` reads from."""
        return io.BufferedReader(self, _CHUNK)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``; 0 at the end. Raises ``TimeoutError``."""
        self._sock.settimeout(_left(self._deadline, self._clock))
        return self._sock.recv_into(buffer)


def _body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := response.read(min(_CHUNK, max_bytes + 1 - size)):
        chunks.append(chunk)
        size += len(chunk)
        if size > max_bytes:
            raise WebError(f"answered with more than {max_bytes} bytes")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(chunks)
