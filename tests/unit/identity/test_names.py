"""Names of identities, and what a peer's certificate is taken for (SEC-01)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.identity.names import KINDS, IdentityError, identity, of_peer, parse_uri, valid_name

NAMES = st.text("abzAZ059._-", min_size=1, max_size=40).filter(lambda name: name[0] not in "._-")


@given(st.sampled_from(KINDS), NAMES)
def test_a_uri_is_its_identity(kind: str, name: str) -> None:
    """SEC-01: what is written into a certificate is what is read out of it."""
    assert parse_uri(identity(kind, name).uri) == identity(kind, name)


@given(st.text())
def test_no_other_text_is_an_identity(text: str) -> None:
    """SEC-01: a URI of others is refused in words, whatever it holds."""
    try:
        found = parse_uri(text)
    except IdentityError:
        return
    assert found.uri == text and valid_name(found.name)


@pytest.mark.parametrize(
    "uri",
    ["", "llmgw:", "llmgw:node:", "llmgw:node:-x", "llmgw:node:a/b", "llmgw:node:a\n", "llmgw:Node:a", "spiffe:node:a",
     "llmgw:node:a:b", "llmgw:node:" + "a" * 254, "LLMGW:node:a", "llmgw:root:a", "llmgw:node:*", "llmgw:node:ä"],
)  # fmt: skip
def test_what_will_not_do(uri: str) -> None:
    """SEC-01: names that could mean two things, or be another's, are no names."""
    with pytest.raises(IdentityError):
        parse_uri(uri)


@pytest.mark.parametrize(("kind", "name"), [("x" * 30_000, "a"), ("node", "x" * 30_000)])
def test_what_will_not_do_is_told_in_a_line(kind: str, name: str) -> None:
    """SEC-02: whoever asks to join chooses both, and neither fills the log."""
    with pytest.raises(IdentityError) as refused:
        identity(kind, name)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (None, "showed no certificate"),
        ({}, "showed no certificate"),
        ({"subjectAltName": (("DNS", "llmgw:node:a"),)}, "names 0"),
        ({"subjectAltName": (("URI", "https://example.org"),)}, "names 0"),
        ({"subjectAltName": (("URI", "llmgw:node:a"), ("URI", "llmgw:node:b"))}, "names 2"),
    ],
)
def test_a_certificate_names_one_identity(certificate: dict[str, object] | None, words: str) -> None:
    """SEC-01: neither a host name nor one of two identities is taken for who it is."""
    with pytest.raises(IdentityError, match=words):
        of_peer(certificate, lambda text: 0.0)
