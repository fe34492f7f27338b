"""A node or a router as the holder of its identity."""

from datetime import UTC, datetime, timedelta

import pytest

from llmgw.identity import pem
from llmgw.identity.holder import Holder
from llmgw.identity.names import Identity, IdentityError
from llmgw.runtime.faults import SettingsError
from tests.harness import identities

WHO = Identity("node", "gpu-7")


@pytest.fixture
def folder(tmp_path):
    return identities.ours().node(tmp_path / "identity", "gpu-7")


@pytest.fixture
def holder(folder):
    made = Holder(folder, WHO)
    assert made.refresh()
    return made


def words(faults):
    return " ".join(map(str, faults))


def test_what_cannot_be_used_is_told_with_the_command_that_helps(tmp_path, folder):
    """SEC-01: all at once, with the names filled in."""
    assert Holder(folder, WHO).faults() == []
    nowhere = tmp_path / "nowhere"
    assert f"llmgw join node CONTROL-PLANE:7003 gpu-7 --identity {nowhere}" in words(Holder(nowhere, WHO).faults())
    other = words(Holder(folder, Identity("router", "r1")).faults())
    assert "node gpu-7, not of router r1" in other and "llmgw join router" in other
    (folder / "authorities.pem").unlink()
    (folder / "key.pem").chmod(0o644)
    told = words(Holder(folder, WHO).faults())
    assert "authorities.pem" in told and "chmod 600" in told


def test_an_expired_certificate_is_no_fault_but_a_warning(tmp_path):
    """SEC-01: what serves goes on; a person is told. Before the end, only if it was not renewed."""
    late = Holder(identities.ours().expired(tmp_path / "late", "node", "gpu-7"), WHO)
    assert late.faults() == []
    late.refresh()
    assert "expired at" in late.warning() and "llmgw join node" in late.warning()
    made = datetime.now(UTC) - timedelta(days=1)
    soon = identities.ours().folder(tmp_path / "soon", "node", "gpu-7", now=made, lifetime=timedelta(days=1.2))
    near = Holder(soon, WHO)
    near.refresh()
    assert "was not renewed yet" in near.warning()


def test_a_fresh_one(holder, folder):
    """SEC-01: due after half of its life, and the same moment at every look."""
    assert holder.warning() == ""
    assert holder.authorities == pem.digest(identities.ours().root)
    life = holder.presented.expires_at - holder.presented.issued_at
    assert 0.5 <= (holder.due - holder.presented.issued_at) / life <= 0.6
    due = holder.due
    assert not holder.refresh()
    (folder / "authorities.pem").write_bytes(identities.ours().root + b"\n")
    assert holder.refresh()
    assert holder.due == due


def test_before_anything_was_loaded(tmp_path):
    """SEC-01: an error that says so, no crash."""
    blank = Holder(tmp_path / "nowhere", WHO)
    assert not blank.loaded
    with pytest.raises(SettingsError):
        blank.presented  # noqa: B018
    with pytest.raises(SettingsError):
        blank.refresh()


def test_renewal(holder, folder):
    """SEC-01: a new key, kept with mode 0600, that counts with its certificate."""
    key, serial = (folder / "key.pem").read_bytes(), holder.presented.serial
    request = holder.request()
    assert (folder / "key.pem").read_bytes() == key
    holder.install(identities.ours().sign(request, "node", "gpu-7"), "")
    assert (folder / "key.pem").read_bytes() != key
    assert (folder / "key.pem").stat().st_mode & 0o777 == 0o600
    assert holder.refresh()
    assert holder.presented.serial != serial


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        (lambda request: identities.ours().sign(request, "node", "gpu-8"), "node gpu-8, not of node gpu-7"),
        (lambda request: identities.ours().sign(request, "router", "gpu-7"), "router gpu-7, not of"),
        (lambda request: identities.strangers().sign(request, "node", "gpu-7"), "none of the authorities"),
        (lambda request: identities.ours().root.decode(), "that of None"),
        (lambda request: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be read"),
        (lambda request: "\ud800", "no certificate"),
        (lambda request: "x" * 10**6, "more than"),
    ],
    ids=["another's", "another kind", "strangers'", "a root", "damaged", "no text", "huge"],
)
def test_a_certificate_that_would_not_work_is_refused(holder, folder, certificate, why):
    """SEC-01: the one in use stays."""
    before = {file: (folder / file).read_bytes() for file in ("key.pem", "certificate.pem", "authorities.pem")}
    request = holder.request()
    with pytest.raises(IdentityError, match=why):
        holder.install(certificate(request), "")
    assert {file: (folder / file).read_bytes() for file in before} == before


def test_a_certificate_for_no_request_of_ours(holder):
    """SEC-01: one made for an earlier key would only seem to be new."""
    old = holder.request()
    holder.request()
    for certificate in (identities.ours().sign(old, "node", "gpu-7"), holder.folder.certificate.read_text()):
        with pytest.raises(IdentityError, match="not for the key of our request"):
            holder.install(certificate, "")


def test_authorities(holder, folder):
    """SEC-08: others are taken if our own certificate is trusted by them, also an expired one."""
    ours, strangers = identities.ours(), identities.strangers()
    with pytest.raises(IdentityError, match="none of the authorities"):
        holder.install("", strangers.root.decode())
    both = ours.root + strangers.root
    holder.install("", both.decode())
    assert holder.refresh() and holder.authorities == pem.digest(both)
    ours.expired(folder, "node", "gpu-7")
    holder.install("", both.decode())
    assert pem.digest((folder / "authorities.pem").read_bytes()) == pem.digest(both)


def test_a_certificate_of_a_new_authority_comes_with_it(holder):
    """SEC-08: both at once, while the root changes."""
    ours, strangers = identities.ours(), identities.strangers()
    request = holder.request()
    holder.install(strangers.sign(request, "node", "gpu-7"), (ours.root + strangers.root).decode())
    assert holder.refresh()
    assert holder.authorities == pem.digest(ours.root + strangers.root)


def test_words_hold_no_key(holder, folder):
    """SEC-03."""
    assert (folder / "key.pem").read_text().splitlines()[1] not in repr(holder) + holder.request()
