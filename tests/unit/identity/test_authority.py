"""What the authority signs, and what it refuses (SEC-01, SEC-08)."""

import contextlib
import shutil
import ssl
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.identity import authority, pem
from llmgw.identity.names import BACKDATED, IdentityError, identity
from tests.unit.identity.made import CONTROL_PLANE, NODE, NOW, OTHERS, OURS, Office

KEY = authority.new_key()


def own_request(key: object, digest: hashes.HashAlgorithm | None = None) -> bytes:
    """A request of a key of any kind."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    )
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def test_a_leaf_is_what_its_identity_may_be() -> None:
    """SEC-01: a node cannot pass for a control plane; a control plane is found by bare address too."""
    chain = authority.sign(
        authority.request(CONTROL_PLANE, KEY), CONTROL_PLANE, OURS.issuer, OURS.issuer_key, NOW,
        dns=["cp1.example.org"], ips=["192.0.2.7", "2001:db8::1"],
    )  # fmt: skip
    facts = authority.facts(chain)
    assert facts.identity == CONTROL_PLANE
    assert facts.dns == ("cp1.example.org",) and facts.ips == ("192.0.2.7", "2001:db8::1")
    assert facts.issued_at == NOW.timestamp()
    assert facts.expires_at == (NOW + timedelta(days=30)).timestamp()
    leaf, issuer = (x509.load_der_x509_certificate(der) for der in pem.split(chain))
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [purpose._name for purpose in usage] == ["serverAuth", "clientAuth"]
    assert issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    node = x509.load_pem_x509_certificate(OURS.chain(NODE, KEY))
    usage = node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [purpose._name for purpose in usage] == ["clientAuth"]


def test_the_request_says_nothing_but_its_key() -> None:
    """SEC-02: a node that asks under another's name gets the name it was allowed."""
    asked = authority.request(identity("controlplane", "evil"), KEY)
    facts = authority.facts(authority.sign(asked, NODE, OURS.issuer, OURS.issuer_key, NOW))
    assert facts.identity == NODE and facts.subject == "gpu-7"


@settings(max_examples=25, deadline=None)
@given(lifetime=st.integers(1, 10 * 365), age=st.integers(0, 729))
def test_a_leaf_never_outlives_its_signer(lifetime: int, age: int) -> None:
    """SEC-01: else it would be refused while it says that it is valid."""
    now = NOW + timedelta(days=age)
    chain = OURS.chain(NODE, KEY, now, timedelta(days=lifetime))
    facts, signer = authority.facts(chain), authority.facts(OURS.issuer)
    assert facts.expires_at == min((now + timedelta(days=lifetime)).timestamp(), signer.expires_at)
    assert facts.expires_at > now.timestamp()


@pytest.mark.parametrize("days", [731, -2])
def test_an_authority_signs_in_its_own_time_only(days: int) -> None:
    """SEC-01: expired or not begun, with what to look at."""
    with pytest.raises(IdentityError, match="expired at" if days > 0 else "clock"):
        OURS.chain(NODE, KEY, NOW + timedelta(days=days))


def test_who_may_not_sign() -> None:
    """SEC-01: neither a leaf nor the holder of another key."""
    asked = authority.request(NODE, KEY)
    with pytest.raises(IdentityError, match="no authority"):
        authority.sign(asked, NODE, OURS.chain(NODE, KEY), KEY, NOW)
    with pytest.raises(IdentityError, match="not that of"):
        authority.sign(asked, NODE, OURS.issuer, OTHERS.issuer_key, NOW)
    with pytest.raises(IdentityError, match="private key") as error:
        authority.sign(asked, NODE, OURS.issuer, b"-----BEGIN PRIVATE KEY-----\nsecret\n", NOW)
    assert "secret" not in str(error.value)


def odd_requests() -> dict[str, bytes]:
    """Requests that must not be signed."""
    good = authority.request(NODE, KEY)
    der = bytearray(pem_body(good))
    der[-3] ^= 1
    return {
        "rsa": own_request(rsa.generate_private_key(65537, 2048), hashes.SHA256()),
        "curve": own_request(ec.generate_private_key(ec.SECP224R1()), hashes.SHA256()),
        "ed25519": own_request(ed25519.Ed25519PrivateKey.generate()),
        "forged": x509_pem(bytes(der)),
        "empty": b"",
        "certificate": OURS.root,
        "cut": good[: len(good) // 2],
        "long": good + b" " * authority.MAX_REQUEST,
        "key": KEY,
    }


def pem_body(text: bytes) -> bytes:
    """DER of a request."""
    return x509.load_pem_x509_csr(text).public_bytes(serialization.Encoding.DER)


def x509_pem(der: bytes) -> bytes:
    """A request in PEM."""
    return ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode()


@pytest.mark.parametrize(
    ("case", "text"), odd_requests().items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_odd_requests_are_refused(case: str, text: bytes) -> None:
    """SEC-02: weak and unknown keys, keys that the asker does not have, and what is no request."""
    words = {"rsa": "P-256", "curve": "P-256", "ed25519": "P-256", "forged": "signature is wrong", "long": "KiB"}
    with pytest.raises(IdentityError, match=words.get(case, "cannot be read")):
        authority.sign(text, NODE, OURS.issuer, OURS.issuer_key, NOW)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_no_bytes_break_it(data: bytes) -> None:
    """SEC-02: what comes from outside ends in words."""
    for text in (data, x509_pem(data)):
        with pytest.raises(IdentityError):
            authority.check_request(text)
    for text in (data, ssl.DER_cert_to_PEM_cert(data).encode()):
        for read in (authority.facts, pem.presented):
            with pytest.raises(IdentityError):
                read(text)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10_000), value=st.integers(0, 255), length=st.integers(0, 10_000))
def test_no_damage_breaks_it(place: int, value: int, length: int) -> None:
    """SEC-02: a certificate that was changed or cut ends in words or says something else."""
    der = bytearray(pem.split(OURS.chain(NODE, KEY))[0])
    der[place % len(der)] = value
    text = ssl.DER_cert_to_PEM_cert(bytes(der[: 1 + length % len(der)])).encode()
    with contextlib.suppress(IdentityError):
        pem.presented(text)


@pytest.mark.parametrize("dns", ["", "a b", "a,b", "a" * 300, "ä.example", "-x\n"])
def test_names_that_no_certificate_can_hold(dns: str) -> None:
    """SEC-01: a name that would be written as another is refused."""
    asked = authority.request(CONTROL_PLANE, KEY)
    with pytest.raises(IdentityError, match="host name"):
        authority.sign(asked, CONTROL_PLANE, OURS.issuer, OURS.issuer_key, NOW, dns=[dns])
    with pytest.raises(IdentityError, match="IP address"):
        authority.sign(asked, CONTROL_PLANE, OURS.issuer, OURS.issuer_key, NOW, ips=["192.0.2"])


def test_long_names_fit() -> None:
    """SEC-01: the common name is for people and is cut; the identity is whole."""
    long = identity("node", "n" * 253)
    facts = authority.facts(OURS.chain(long, KEY))
    assert facts.identity == long and len(facts.subject) == 64


def test_the_small_reader_agrees() -> None:
    """What is read without a library is what the library reads."""
    for text in (OURS.chain(NODE, KEY), OTHERS.chain(CONTROL_PLANE, KEY)):
        facts, shown = authority.facts(text), pem.presented(text)
        assert (shown.identity, shown.serial, shown.issued_at, shown.expires_at) == (
            facts.identity, facts.serial, facts.issued_at, facts.expires_at,
        )  # fmt: skip
    late = authority.new_root("late", KEY, NOW.replace(year=2060))  # its dates are written in another way
    assert pem.expires_at(pem.split(late)[0]) == authority.facts(late).expires_at
    with pytest.raises(IdentityError, match="names 0"):
        pem.presented(OURS.root)


def test_digest_knows_no_order() -> None:
    """SEC-08: whom a node trusts is a set, however its file is written."""
    both, turned = pem.merge(OURS.root, OTHERS.root), b"# two\r\n" + OTHERS.root + b"\n\n" + OURS.root + OTHERS.root
    assert pem.digest(both) == pem.digest(turned)
    assert len({pem.digest(each) for each in (both, OURS.root, OTHERS.root)}) == 3


@pytest.mark.parametrize("end", [12, 26, 30, 300, -27, -20, -3])
def test_a_bundle_that_is_cut_off_is_none(end: int) -> None:
    """SEC-08: whom the missing part names would be refused, and nobody would know why."""
    cut = OTHERS.root.strip()[:end]
    for text in (OURS.root + cut, cut + b"\n" + OURS.root, OURS.root + OTHERS.root.replace(b"MII", b"M_I", 1)):
        with pytest.raises(IdentityError, match="cut off or damaged"):
            pem.split(text)


def test_keys_beside_certificates_are_nobodys_business() -> None:
    """SEC-01: people put them in one file."""
    assert pem.split(KEY + OURS.root + b"# ----- ours\n" + KEY) == pem.split(OURS.root)


def test_bundles_have_limits() -> None:
    """SEC-01: what a control plane sends is not read without end."""
    with pytest.raises(IdentityError, match="KiB"):
        pem.split(OURS.root * 1000)
    with pytest.raises(IdentityError, match="more than 32"):
        pem.split(OURS.root * 40)


def test_the_way_to_the_root() -> None:
    """SEC-01: a chain leads to a trusted root, or the words say where it ends."""
    chain = OURS.chain(NODE, KEY)
    assert pem.join([authority.anchor(chain, pem.merge(OTHERS.root, OURS.root), NOW)]) == OURS.root
    with pytest.raises(IdentityError, match="none of the authorities"):
        authority.anchor(chain, OTHERS.root, NOW)
    with pytest.raises(IdentityError, match="none of the authorities"):
        authority.anchor(pem.join(pem.split(chain)[:1]), OURS.root, NOW)
    with pytest.raises(IdentityError, match="expired"):
        authority.anchor(chain, OURS.root, NOW + timedelta(days=31))


def test_a_leaf_cannot_sign_leaves() -> None:
    """SEC-01: whoever stole a node's key signs nothing with it."""
    stolen = OURS.chain(NODE, KEY)
    fake = Office()
    fake.issuer, fake.issuer_key = stolen, KEY
    with pytest.raises(IdentityError, match="no authority"):
        fake.chain(CONTROL_PLANE, authority.new_key())


def test_a_bridge_joins_old_and_new(tmp_path: Path) -> None:
    """SEC-08: who trusts the old root alone, or the new one alone, believes what the new one signs."""
    new = Office("new")
    bridge = authority.bridge(new.root, OURS.root, OURS.root_key, NOW)
    key = authority.new_key()
    issuer = authority.new_issuer("issuer", key, new.root + bridge, new.root_key, NOW)
    chain = authority.sign(authority.request(CONTROL_PLANE, KEY), CONTROL_PLANE, issuer, key, NOW)
    assert len(pem.split(chain)) == 3
    for roots in (OURS.root, new.root, pem.merge(OURS.root, new.root)):
        authority.anchor(chain, roots, NOW)
        if shutil.which("openssl"):
            (tmp_path / "roots").write_bytes(roots)
            (tmp_path / "chain").write_bytes(chain)
            command = ["openssl", "verify", "-x509_strict", "-CAfile", "roots", "-untrusted", "chain", "chain"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
            assert done.returncode == 0, done.stderr
    with pytest.raises(IdentityError):
        authority.anchor(chain, OTHERS.root, NOW)


def test_backdated() -> None:
    """SEC-01: a peer whose clock is a little behind takes a new certificate."""
    leaf = x509.load_pem_x509_certificate(OURS.chain(NODE, KEY))
    assert leaf.not_valid_before_utc == NOW - timedelta(seconds=BACKDATED)


@pytest.mark.parametrize("what", ["root", "issuer", "leaf"])
def test_a_damaged_certificate_is_told_from_an_error_of_ours(what: str) -> None:
    """SEC-08: whatever byte of a file is wrong, it is a fault in words: who watches the files must outlive it."""
    leaf = OURS.chain(NODE, KEY)
    texts = {"root": OURS.root, "issuer": OURS.issuer, "leaf": leaf}
    first, *rest = pem.split(texts[what])
    for place in range(len(first)):
        damaged = bytearray(first)
        damaged[place] ^= 0x15
        text = pem.join([bytes(damaged), *rest])
        with contextlib.suppress(IdentityError):
            authority.facts(text)
        with contextlib.suppress(IdentityError):
            authority.same_key(text, KEY)
        with contextlib.suppress(IdentityError):
            authority.anchor(leaf if what == "root" else text, text if what == "root" else OURS.root, NOW)


def test_a_text_made_to_be_slow_is_read_at_once() -> None:
    """SEC-02: whoever answers a machine that joins chooses what is read as certificates, and must not hold it up."""
    slow = "from llmgw.identity import pem; pem.split(b'-----BEGIN CERTIFICATE-----' + b' ' * 60000 + b'!')"
    done = subprocess.run([sys.executable, "-c", slow], capture_output=True, text=True, timeout=20, check=False)
    assert "cut off or damaged" in done.stderr
