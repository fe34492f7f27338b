"""What may be asked on behalf of people, and how a hostile answer is taken (SEC-04)."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.catalog.web import MAX_HOPS, Answer, Forbidden, WebError, WebOptions, ask, forbidden
from tests.unit.controlplane.catalog.server import Names, Server, answer, redirect

HERE = {"hub.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}


def options(names: dict[str, Any] | Names = HERE, **given: Any) -> WebOptions:
    """hub.test is this machine and trusted; nothing else inside the site may be asked."""
    resolve = names if isinstance(names, Names) else Names(names)
    return WebOptions(**{"trusted": frozenset({"hub.test"}), "timeout": 5.0, "resolve": resolve, **given})


def get(server: Server, path: str = "/", given: WebOptions | None = None, **more: Any) -> Answer:
    """Ask hub.test."""
    return ask(f"http://hub.test:{server.port}{path}", given or options(), **more)


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "127.0.0.1",
        "127.8.8.8",
        "100.64.0.1",
        "198.18.0.1",
        "::1",
        "fc00::1",
        "fd12::1",
        "fec0::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:0a00:0001::1",
        "::10.0.0.1",
    ],
)
def test_addresses_inside_the_site_only_if_allowed(address: str) -> None:
    """SEC-04: private, loopback, carrier-grade NAT, and IPv6 addresses that lead to such."""
    assert "sources.private" in (forbidden(address, private=False) or "")
    assert forbidden(address, private=True) is None


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "240.0.0.1",
        "255.255.255.255",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "not an address",
        "",
    ],
)
def test_addresses_that_are_never_asked(address: str) -> None:
    """SEC-04: metadata, link-local, multicast; no setting allows them."""
    assert forbidden(address, private=False)
    assert forbidden(address, private=True)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "64:ff9b::1.1.1.1", "2002:0101:0101::1"])
def test_addresses_of_the_internet(address: str) -> None:
    """The rules do not refuse everything."""
    assert forbidden(address, private=False) is None


def test_one_forbidden_address_among_many_is_enough(server: Server) -> None:
    """A name that is both outside and inside is a trick."""
    with pytest.raises(Forbidden, match=r"is 10\.0\.0\.5, which is inside the site"):
        get(server, given=options({"hub.test": ["1.1.1.1", "10.0.0.5"]}, trusted=frozenset()))
    assert server.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "localhost", "[::1]", "0"])
def test_every_way_to_write_this_machine_is_judged_by_its_address(server: Server, host: str) -> None:
    """With the system's own resolver: what counts is where it leads."""
    server.routes["*"] = answer()
    with pytest.raises(WebError):
        ask(f"http://{host}:{server.port}/", WebOptions(timeout=5))
    assert server.requests == []


def test_a_name_is_looked_up_once_and_the_connection_goes_there(server: Server) -> None:
    """SEC-04: a second lookup could answer with an address inside (DNS rebinding). The
    name exists for our resolver alone: whoever asked the system's would get nowhere."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    asked = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    server.routes["/"] = answer(body=b"here")
    assert get(server, given=options(resolve=rebinding), max_bytes=10).body == b"here"
    assert asked == ["hub.test"]
    assert server.requests[0].headers["host"] == f"hub.test:{server.port}"


def test_an_address_that_does_not_take_connections_is_passed_over(server: Server) -> None:
    """The next one is tried, the one that was judged."""
    server.routes["/"] = answer()
    assert get(server, given=options({"hub.test": ["::1", "127.0.0.1"]})).status == 200


# ---------------------------------------------------------------- redirects


def test_redirects_are_followed_and_judged(server: Server) -> None:
    """To a path, to a whole URL, with every status that redirects."""
    server.routes |= {
        "/1": redirect("/2", 301),
        "/2": redirect("3", 307),
        "/3": redirect(f"http://hub.test:{server.port}/4#part", 308),
        "/4": answer(body=b"there"),
    }
    found = get(server, "/1", max_bytes=100)
    assert (found.status, found.body, found.url) == (200, b"there", f"http://hub.test:{server.port}/4")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("http://inside.test/", r"is 10\.0\.0\.5, which is inside the site"),
        ("http://metadata.test/latest/meta-data", "is one that no source may have"),
        ("http://127.0.0.1:{port}/secret", r"is 127\.0\.0\.1, which is inside the site"),
        ("//other.test:{port}/secret", r"is 127\.0\.0\.1, which is inside the site"),
        ("file:///etc/passwd", "no usable URL"),
        ("gopher://hub.test/", "no usable URL"),
        ("http://user:pw@hub.test:{port}/secret", "no usable URL"),
        ("http://hub.test:99999/", "no usable URL"),
        ("http://nowhere.test/", "has no address"),
    ],
)
def test_a_redirect_that_leads_astray_is_not_followed(server: Server, target: str, words: str) -> None:
    """SEC-04: each hop is judged as the first was."""
    names = {**HERE, "inside.test": ["10.0.0.5"], "metadata.test": ["169.254.169.254"], "127.0.0.1": ["127.0.0.1"]}
    server.routes |= {"/": redirect(target.format(port=server.port)), "/secret": answer(body=b"secret")}
    with pytest.raises(WebError, match=words):
        get(server, given=options(names))
    assert [request.path for request in server.requests] == ["/"]


def test_redirects_end(server: Server) -> None:
    """In a circle, and endlessly on."""
    server.routes |= {"/a": redirect("/b"), "/b": redirect("/a")}
    with pytest.raises(WebError, match="in a circle"):
        get(server, "/a")
    server.routes |= {f"/{step}": redirect(f"/{step + 1}") for step in range(20)}
    server.requests.clear()
    with pytest.raises(WebError, match="more than 5 times"):
        get(server, "/0")
    assert len(server.requests) == MAX_HOPS + 1


def test_credentials_stay_with_their_host(server: Server) -> None:
    """SEC-03: a token for the hub is not sent to where the hub redirects, nor to another port."""
    other = Server()
    try:
        server.routes |= {"/": redirect("/again"), "/again": redirect(f"http://hub.test:{other.port}/cdn")}
        other.routes["/cdn"] = answer()
        get(server, secrets={"Authorization": "Bearer hf-secret"})
        assert [request.headers.get("authorization") for request in server.requests] == ["Bearer hf-secret"] * 2
        assert "authorization" not in other.requests[0].headers
    finally:
        other.close()


def test_encryption_is_not_given_up_on_the_way(server: Server, secure: Server, certificate: Path) -> None:
    """From https to http: never."""
    secure.routes["/"] = redirect(f"http://files.test:{server.port}/")
    with pytest.raises(Forbidden, match="without encryption"):
        ask(
            f"https://files.test:{secure.port}/",
            options({"files.test": ["127.0.0.1"]}, private=True, ca_file=certificate),
        )
    assert server.requests == []


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would look names up itself and reach what we may not."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    server.routes["/"] = answer()
    assert get(server).status == 200


# ---------------------------------------------------------------- TLS


def test_a_certificate_must_be_for_the_name(secure: Server, certificate: Path) -> None:
    """The connection goes to an address, the certificate is checked against the name."""
    names = {"files.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}
    secure.routes["/"] = answer()
    given = options(names, private=True, ca_file=certificate)
    assert ask(f"https://files.test:{secure.port}/", given).status == 200
    with pytest.raises(WebError, match="has a certificate that is not valid"):
        ask(f"https://other.test:{secure.port}/", given)
    with pytest.raises(WebError, match="has a certificate that is not valid"):
        ask(f"https://files.test:{secure.port}/", options(names, private=True))
    assert len(secure.requests) == 1


def test_a_server_without_tls_and_a_missing_ca_are_told(server: Server, secure: Server, tmp_path: Path) -> None:
    """In words, no traceback."""
    names = {"files.test": ["127.0.0.1"]}
    server.routes["*"] = answer()
    with pytest.raises(WebError, match=r"TLS|answer"):
        ask(f"https://files.test:{server.port}/", options(names, private=True, timeout=1.0))
    with pytest.raises(WebError, match="cannot be read as certificates"):
        ask(f"https://files.test:{secure.port}/", options(names, private=True, ca_file=tmp_path / "none"))


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"", "closed the connection without an answer"),
        (b"garbage\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 two hundred\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "broke off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", "not HTTP|broke off"),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(500)) + b"\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000, "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000, "more than 1000 bytes"),
    ],
)
def test_a_hostile_answer_is_a_sentence(server: Server, given: bytes, words: str) -> None:
    """Bounded, and never a traceback."""
    server.routes["/"] = given
    with pytest.raises(WebError, match=words):
        get(server, max_bytes=1000)


def test_an_endless_answer_is_left(server: Server) -> None:
    """A server that never stops sending costs the limit, not all there is."""
    sent = []

    def endless(_request: object) -> Any:
        yield b"HTTP/1.1 200 OK\r\n\r\n"
        while True:
            sent.append(1)
            yield b"x" * 65536

    server.routes["/"] = endless
    with pytest.raises(WebError, match="more than 100000 bytes"):
        get(server, max_bytes=100_000)
    assert len(sent) < 1000


def test_time_is_bounded_as_a_whole(server: Server) -> None:
    """Silence, a byte at a time in the head, in the body, and redirects that add up."""
    slow = options(timeout=0.3)
    long = b"HTTP/1.1 200 OK\r\nA: " + b"b" * 5000 + b"\r\n\r\n"
    server.routes |= {
        "/silent": lambda request: server.hold(),
        "/head": lambda request: server.drip(long),
        "/body": lambda request: server.drip(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000),
        "/continue": lambda request: server.drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    }
    for path in ("/silent", "/head", "/body", "/continue"):
        with pytest.raises(WebError, match=r"did not answer within 0\.3 s"):
            get(server, path, slow, max_bytes=100_000)


def test_nobody_listens(server: Server) -> None:
    """A closed port is told as what it is."""
    server.close()
    with pytest.raises(WebError, match=r"could not be reached \(Connection refused\)"):
        get(server)
