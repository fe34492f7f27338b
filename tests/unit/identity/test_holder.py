"""A node or a router as the holder of its identity."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from llmgw.identity import pem
from llmgw.identity.holder import Holder
from llmgw.identity.names import Identity, IdentityError
from llmgw.runtime.faults import Fault, SettingsError
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


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("key.pem", "chmod 600"),
        ("key.pem", "llmgw join node CONTROL-PLANE:7003 gpu-7 --identity"),
        ("certificate.pem", "llmgw join node CONTROL-PLANE:7003 gpu-7 --identity"),
        ("authorities.pem", "llmgw join node CONTROL-PLANE:7003 gpu-7 --identity"),
        ("", "llmgw join node CONTROL-PLANE:7003 gpu-7 --identity"),
    ],
)
def test_one_thing_wrong_is_one_fault_with_its_remedy(folder, name, remedy):
    """SEC-01: who only has to change a mode is not told to join anew."""
    for file in list(folder.iterdir()) if name == "" else [folder / name]:
        if remedy.startswith("chmod"):
            file.chmod(0o644)
        else:
            file.unlink()
    (fault,) = Holder(folder, WHO).faults()
    assert Path(fault.path) == folder / name and remedy in fault.message
    assert ("join" in fault.message) == ("join" in remedy)


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


def test_what_cannot_be_used_changes_nothing_and_is_told_once(holder, folder):
    """SEC-08: a damaged file is no reason to stop; the next one that is good is taken."""
    before = holder.presented, holder.tls.context
    good = (folder / "certificate.pem").read_bytes()
    for damage in ("nonsense", "more nonsense"):
        (folder / "certificate.pem").write_text(damage)
        with pytest.raises(SettingsError, match="no certificate in PEM"):
            holder.refresh()
        assert not holder.refresh()
    assert (holder.presented, holder.tls.context) == before
    (folder / "certificate.pem").write_bytes(good)
    assert holder.refresh() and not holder.refresh()


@pytest.mark.parametrize("what", ["load_into", "presented", "roots"])
def test_files_that_could_not_be_read_for_a_moment_are_read_again(holder, folder, monkeypatch, what):
    """SEC-08: what failed without a fault of the files, such as for want of descriptors, leaves no mark on them."""
    identities.ours().node(folder, "gpu-7")
    (folder / "authorities.pem").write_bytes(identities.ours().root + identities.strangers().root)
    with monkeypatch.context() as patch:
        patch.setattr(holder.folder, what, Mock(side_effect=SettingsError("x", [Fault("x", "Too many open files")])))
        with pytest.raises(SettingsError, match="Too many open files"):
            holder.refresh()
        assert not holder.refresh(), "it is told once"
    assert holder.refresh()
    assert holder.presented == holder.folder.presented()
    assert holder.authorities == pem.digest(holder.folder.roots())


def in_20_days(folder):
    """A pair dated by a clock that is ahead."""
    later = datetime.now(UTC) + timedelta(days=20)
    identities.replaced(folder, identities.ours().folder(folder.parent / "x", "node", "gpu-7", now=later))


def strangers(folder):
    """A pair of an authority that the bundle does not hold."""
    identities.replaced(folder, identities.strangers().node(folder.parent / "x", "gpu-7"))


def trusting_others(folder):
    """A bundle in which our own authority is missing."""
    (folder / "authorities.pem").write_bytes(identities.strangers().root)


def half_written(folder):
    """A bundle whose second certificate is cut off."""
    (folder / "authorities.pem").write_bytes(identities.strangers().root + identities.ours().root[:400])


UNFIT = [
    (in_20_days, "is valid only from"),
    (lambda folder: identities.ours().expired(folder, "node", "gpu-7"), "expired at"),
    (strangers, "is not taken by one who trusts authorities.pem"),
    (trusting_others, "is not taken by one who trusts authorities.pem"),
    (half_written, "cut off"),
    (lambda folder: identities.ours().node(folder, "gpu-8"), "is that of node gpu-8"),
    (lambda folder: (folder / "key.pem").chmod(0o640), "can be read by others"),
    (lambda folder: folder.chmod(0o777), "can be written to by others"),
    (lambda folder: (folder / "authorities.pem").chmod(0o666), "can be written to by others"),
]


@pytest.mark.parametrize(("do", "why"), UNFIT)
def test_what_would_leave_us_without_a_connection_or_is_open_to_others_is_not_used(holder, folder, do, why):
    """SEC-03, SEC-08: the one in use stays, and it is told; what is good again is used."""
    before = holder.presented, holder.authorities, holder.tls.context
    do(folder)
    with pytest.raises(SettingsError, match=why):
        holder.refresh()
    assert not holder.refresh(), "it is told once"
    assert (holder.presented, holder.authorities, holder.tls.context) == before
    folder.chmod(0o700)
    (folder / "authorities.pem").chmod(0o600)
    identities.ours().node(folder, "gpu-7")
    (folder / "key.pem").chmod(0o600)
    assert holder.refresh()
    assert holder.presented != before[0] and holder.presented == holder.folder.presented()


def test_what_expired_in_use_is_still_looked_after(tmp_path):
    """SEC-08: other authorities are taken by who has an expired certificate, or a clock that is wrong."""
    folder = identities.ours().expired(tmp_path / "late", "node", "gpu-7")
    late = Holder(folder, WHO)
    assert late.refresh()
    both = identities.ours().root + identities.strangers().root
    late.install("", both.decode())
    assert late.refresh() and late.authorities == pem.digest(both)


def test_one_that_is_not_valid_yet_is_used_at_the_start_and_told(folder):
    """SEC-01: after a power cut the clock may be years behind until it is set."""
    in_20_days(folder)
    early = Holder(folder, WHO)
    assert early.faults() == [] and early.refresh()
    assert "is valid only from" in early.warning() and "clock" in early.warning()


def test_nothing_new_is_asked_for_while_others_can_read_it(holder, folder):
    """SEC-03: it would not be used, and asked for again and again."""
    (folder / "key.pem").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        holder.request()
    assert not (folder / "next-key.pem").exists()


def test_files_that_are_replaced_while_they_are_read_are_read_anew(holder, folder, monkeypatch):
    """SEC-08: what was judged is what is used."""
    identities.ours().node(folder, "gpu-7")
    before, load = holder.presented, holder.tls.load

    def replaced():
        strangers(folder)
        return load()

    monkeypatch.setattr(holder.tls, "load", replaced)
    assert not holder.refresh() and holder.presented == before
    with pytest.raises(SettingsError, match="not taken"):
        holder.refresh()


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
