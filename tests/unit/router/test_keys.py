import hashlib

import pytest

from llmgw.wire.routing import RoutedKey
from router.keys import MAX_KEY, KeyRing, bearer


def key(token, name="k", **fields):
    return RoutedKey(id=name, digest=hashlib.sha256(token).hexdigest(), **fields)


def test_found_by_digest():
    """RTR-12: a key is found by its digest only."""
    ring = KeyRing([key(b"sk-a", "a"), key(b"sk-b", "b")])
    assert ring.find(b"sk-b", 0.0).id == "b"
    digest = hashlib.sha256(b"sk-a").hexdigest().encode()
    for wrong in (b"sk-c", b"", b"sk-a ", digest, bytes.fromhex(digest.decode()), b"s" * (MAX_KEY + 1)):
        assert ring.find(wrong, 0.0) is None


def test_expiry():
    """RTR-12: an expired key is no key, from that second on."""
    ring = KeyRing([key(b"sk-a", expires=100.0)])
    assert ring.find(b"sk-a", 99.9)
    assert ring.find(b"sk-a", 100.0) is None


def test_unusable_digests_are_told_and_match_nothing():
    """RTR-12: a damaged row in the table is neither a crash nor a way in."""
    ring = KeyRing([RoutedKey(id="a", digest=""), RoutedKey(id="b", digest="zz"), RoutedKey(id="c", digest="ab")])
    assert ring.unusable == ["a", "b", "c"]
    assert len(ring) == 0


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"Bearer sk-a", b"sk-a"),
        (b"bearer  sk-a ", b"sk-a"),
        (b"BEARER sk-a", b"sk-a"),
        (b"Bearer", b""),
        (b"Bearersk-a", b""),
        (b"Basic sk-a", b""),
        (b"sk-a", b""),
        (b"", b""),
    ],
)
def test_bearer(value, token):
    """RTR-12: the scheme is compared without case, nothing else is taken for a token."""
    assert bearer(value) == token
