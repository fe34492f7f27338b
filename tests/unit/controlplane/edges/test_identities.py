"""Who may speak: certificates, first contact, revocation, renewal (SEC-01, SEC-02, REC-13)."""

import dataclasses
import os
import time
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gevent
import msgspec
import pytest

from controlplane.events import EnrolmentChanged, NodesEnrolled, SessionClosed, SessionOpened
from controlplane.identities import Credentials, concerns
from controlplane.inbox import Inbox
from controlplane.listeners.agents import RENEW_PAUSE, AgentListener
from controlplane.listeners.handshake import Handshakes
from controlplane.listeners.http import PEER
from controlplane.listeners.routers import RouterApplication
from controlplane.services.changes import Asked, Principal
from controlplane.services.identities import Identities, NotAdmitted
from controlplane.store.errors import StoreUnavailable
from controlplane.store.values import Enrolled, Grant
from llmgw.identity import authority, pem
from llmgw.identity.names import Identity, IdentityError, Presented
from llmgw.identity.root_folder import RootFolder
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.faults import SettingsError
from llmgw.runtime.settings import Address
from llmgw.wire.frames import encode
from llmgw.wire.messages import Credential, Heartbeat, Refuse, Renew, Welcome
from llmgw.wire.routing import IDENTITY_PATH, Renewal, Renewed
from llmgw.wire.routing import encode as encode_json
from tests.harness import identities as made
from tests.unit.controlplane.edges.peers import Peer, credentials, known, take, until

NODE = Identity("node", "node-1")
NOW = 1_800_000_000.0


def shown(identity: Identity = NODE, issued_at: float = NOW, serial: str = "0A") -> Presented:
    return Presented(identity, serial, issued_at, issued_at + 1000)


def row(name: str = "node-1", kind: str = "node", **more: Any) -> Enrolled:
    return Enrolled(kind, name, 1.0, "tests", **more)


class Store:
    """A store whose identities are a dict; away if told so."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Enrolled] = {}
        self.audit: list[Any] = []
        self.away = False

    def write(self, work: Any, timeout: float | None = None) -> Any:
        if self.away:
            raise StoreUnavailable("away")
        tx = MagicMock()
        tx.identities.one = lambda kind, name: self.rows.get((kind, name))
        tx.identities.named = lambda kind, names: [self.rows[kind, name] for name in names if (kind, name) in self.rows]
        tx.identities.put = lambda *enrolled: self.rows.update({(each.kind, each.name): each for each in enrolled})
        tx.audit.add = lambda *entries: self.audit.extend(entries)
        return work(tx)

    read = write


# ---------------------------------------------------------------- admission


@pytest.mark.parametrize(
    ("presented", "code"),
    [
        (shown(Identity("node", "node-2")), "unauthorised"),
        (shown(Identity("router", "node-1")), "unauthorised"),
        (shown(Identity("controlplane", "node-1")), "unauthorised"),
    ],
)
def test_a_certificate_is_good_for_its_own_identity(presented: Presented, code: str) -> None:
    """SEC-01: neither another node's nor another kind's; both sides are told whose it is."""
    with pytest.raises(NotAdmitted, match=f"that of {presented.identity}, not of node node-1") as refused:
        known(Inbox(), row()).admit(presented, "node", "node-1")
    assert refused.value.code == code


def test_what_was_issued_until_the_revocation_is_refused_for_ever() -> None:
    """SEC-02: a later certificate is good, an older one never again, to the second."""
    identities = known(Inbox(), row(revoked_at=NOW, reason="stolen"))
    for issued in (NOW - 100, NOW):
        with pytest.raises(NotAdmitted, match=r"were revoked at .*\(stolen\): join it anew") as refused:
            identities.admit(shown(issued_at=issued), "node", "node-1")
        assert refused.value.code == "revoked"
    identities.admit(shown(issued_at=NOW + 1), "node", "node-1")
    with pytest.raises(NotAdmitted):
        identities.admit(shown(issued_at=NOW), "node", "node-1")


def test_a_removed_node_comes_back_with_a_new_certificate_alone() -> None:
    """REC-13: refused until it joined anew, and then it belongs to the fleet again."""
    inbox = Inbox()
    identities = known(inbox, row(revoked_at=NOW, removed_at=NOW), row("node-2"))
    assert identities.nodes() == {"node-2"}
    with pytest.raises(NotAdmitted, match="was removed from the fleet"):
        identities.admit(shown(), "node", "node-1")
    identities.admit(shown(issued_at=NOW + 5), "node", "node-1")
    assert take(inbox, NodesEnrolled).node_ids == {"node-1"}
    assert identities.nodes() == {"node-1", "node-2"}


def test_first_contacts_are_told_at_once_and_together() -> None:
    """SEC-02: the writer knows of a node before its session, and of a thousand by few events."""
    inbox, store = Inbox(), Store()
    identities = known(inbox, store=store)
    names = [f"node-{number}" for number in range(1000)]

    def come(name: str) -> int:
        identities.admit(shown(Identity("node", name)), "node", name)
        return len(inbox)

    heard = [each.value for each in gevent.joinall([gevent.spawn(come, name) for name in names])]
    assert min(heard) >= 1 and len(inbox) < 20
    assert identities.nodes() == set(names)


def test_what_certificates_tell_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """STO-03, SEC-02: a node is let in while the store is away, and written once it is back."""
    monkeypatch.setattr("controlplane.services.identities.WRITE_AFTER", 0.01)
    monkeypatch.setattr("controlplane.services.identities.RETRY", 0.01)
    store = Store()
    store.away = True
    identities = known(Inbox(), store=store)
    identities.admit(shown(), "node", "node-1")
    gevent.sleep(0.05)
    assert identities.unwritten == 1 and not store.rows
    store.away = False
    until(lambda: identities.unwritten == 0)
    assert store.rows["node", "node-1"].serial == "0A"
    (entry,) = store.audit
    assert (entry.actor, entry.operation, entry.target) == ("certificate", "identities.enrol", "node/node-1")


def test_a_revocation_is_not_overwritten_by_what_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-02: of a first contact and a revocation the revocation stays, whatever is written last."""
    monkeypatch.setattr("controlplane.services.identities.WRITE_AFTER", 0.2)
    store = Store()
    identities = known(Inbox(), store=store)
    identities.admit(shown(), "node", "node-1")
    assert identities.unwritten == 1 and not store.rows
    revoked = row(revoked_at=NOW + 1, removed_at=NOW + 1)
    store.rows["node", "node-1"] = revoked
    until(lambda: identities.unwritten == 0)
    assert store.rows["node", "node-1"] == revoked


# ---------------------------------------------------------------- revoking


class Changes:
    """``services.changes.Changes`` over ``Store``, without its audit."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def make(self, asked: Asked, work: Any) -> Any:
        return self._store.write(work).result


def asked(**more: Any) -> Asked:
    return Asked(Principal("ada", "t", (Grant("admin"),)), "test", **more)


def registry(store: Store, inbox: Inbox, ended: list[Any], *rows: Enrolled) -> Identities:
    store.rows = {(each.kind, each.name): each for each in rows}
    return Identities(
        store,  # type: ignore[arg-type]
        Changes(store),  # type: ignore[arg-type]
        SystemClock(),
        inbox=inbox,
        end=lambda *told: ended.append(told),
        enrolled=rows,
    )


def test_a_revocation_ends_sessions_and_leaves_the_node_in_the_fleet() -> None:
    """SEC-02: live; its replicas go on serving, and it may join anew."""
    ended: list[Any] = []
    inbox = Inbox()
    identities = registry(Store(), inbox, ended, row())
    after, _ = identities.revoke(asked(), NODE, "stolen")
    assert after.version == 2 and after.reason == "stolen" and after.removed_at is None
    assert ended[0][:2] == (NODE, "revoked") and len(inbox) == 0
    assert identities.nodes() == {"node-1"}
    assert identities.revoked_until(NODE) == after.revoked_at


def test_nothing_is_renewed_while_a_revocation_is_on_its_way() -> None:
    """SEC-02: a slow store is no gap in which the thief gets a certificate that is newer than the revocation."""
    store = Store()
    identities = registry(store, Inbox(), [], row())
    refused: list[NotAdmitted] = []

    def slow(work: Any) -> Any:
        with pytest.raises(NotAdmitted) as raised:
            identities.admit(shown(), "node", "node-1")
        refused.append(raised.value)
        return Store.write(store, work)

    store.write = slow  # type: ignore[method-assign]
    identities.revoke(asked(), NODE, "stolen")
    assert [error.code for error in refused] == ["revoked"] and "at this moment" in str(refused[0])


def test_a_certificate_dated_ahead_of_our_clock_is_revoked_too() -> None:
    """SEC-02: the machine that signed it may have another idea of the time."""
    ahead = SystemClock().now().timestamp() + 200
    identities = registry(Store(), Inbox(), [], row(issued_at=ahead))
    assert identities.revoke(asked(), NODE, "stolen")[0].revoked_at == ahead
    with pytest.raises(NotAdmitted, match="stolen"):
        identities.admit(Presented(NODE, "0A", ahead, ahead + 100), "node", "node-1")


def test_revoked_while_it_waits_to_be_let_in() -> None:
    """SEC-02: whoever is told to the writer with others has no session yet that a revocation could end."""
    ended: list[Any] = []
    identities = registry(Store(), Inbox(), ended, row(issued_at=NOW))
    gevent.spawn(identities.admit, shown(Identity("node", "new")), "node", "new")
    coming = gevent.spawn(identities.admit, shown(), "node", "node-1")
    gevent.sleep(0)
    assert not coming.ready()
    identities.revoke(asked(), NODE, "stolen")
    with pytest.raises(NotAdmitted, match="stolen"):
        coming.get(timeout=20)


def test_whoever_leads_next_revokes_what_was_dated_ahead() -> None:
    """SEC-02: a certificate is written down before it is handed over, and the latest date of all that were made
    counts: neither the death of the leader that made it nor a later one with an earlier date lets it get away."""
    now = SystemClock().now().timestamp()
    first, ahead, later = (shown(issued_at=now + age, serial=str(age)) for age in (-1000, 200, 10))
    store = Store()
    before = registry(store, Inbox(), [], row(issued_at=first.issued_at, serial=first.serial))
    for made_now in (ahead, later):
        before.record(first, made_now)
        assert store.rows["node", "node-1"].serial == made_now.serial and before.newest(made_now)
    after = registry(store, Inbox(), [], *store.rows.values())
    after.revoke(asked(), NODE, "stolen")
    for presented in (first, ahead, later):
        with pytest.raises(NotAdmitted, match="stolen"):
            after.admit(presented, "node", "node-1")


def test_nothing_is_handed_over_that_is_not_written_down() -> None:
    """SEC-02: while the store is away, or for who was revoked since, there is none, and no trace of one."""
    store = Store()
    identities = registry(store, Inbox(), [], row(issued_at=NOW, serial="0A"))
    store.away = True
    with pytest.raises(NotAdmitted, match="the store does not take the new certificate") as refused:
        identities.record(shown(), shown(issued_at=NOW + 5, serial="0B"))
    assert refused.value.code == "overloaded" and identities.newest(shown()) and identities.unwritten == 0
    store.away = False
    identities.keep(row(issued_at=NOW, revoked_at=NOW + 1))
    with pytest.raises(NotAdmitted, match="join it anew"):
        identities.record(shown(), shown(issued_at=NOW + 5, serial="0B"))
    assert store.rows["node", "node-1"].serial == "0A"


def test_a_removal_takes_the_node_out_of_the_fleet() -> None:
    """REC-13: what ran there is placed elsewhere."""
    ended: list[Any] = []
    inbox = Inbox()
    identities = registry(Store(), inbox, ended, row())
    identities.remove(asked(), NODE)
    assert identities.one(NODE).removed_at is not None
    assert take(inbox, EnrolmentChanged).node_ids == frozenset() and len(ended) == 1


def test_who_never_came_can_be_revoked_on_purpose_only() -> None:
    """SEC-02: a typing error revokes nobody; a stolen certificate that was never used can be."""
    identities = registry(Store(), Inbox(), [], row())
    with pytest.raises(Exception, match=r"there is no node 'node-11'; did you mean node-1\?"):
        identities.revoke(asked(), Identity("node", "node-11"), "")
    gone, _ = identities.revoke(asked(), Identity("node", "node-11"), "stolen", unseen=True)
    assert gone.removed_at is not None and identities.nodes() == {"node-1"}
    with pytest.raises(NotAdmitted):
        identities.admit(shown(Identity("node", "node-11"), issued_at=1.0), "node", "node-11")


# ---------------------------------------------------------------- what we show and sign with


def test_a_certificate_is_signed_after_the_revocation(tmp_path: Path) -> None:
    """SEC-02: joining anew within the second of a revocation, or with a clock behind, is good."""
    ours = credentials(tmp_path)
    until_then = datetime.now(UTC).timestamp() + 90
    key = authority.new_key()
    chain = ours.sign(NODE, authority.request(NODE, key), until_then)
    identities = known(Inbox(), row(revoked_at=until_then))
    identities.admit(pem.presented(chain), "node", "node-1")


def test_a_revocation_by_a_clock_that_was_ahead_is_told(tmp_path: Path) -> None:
    """SEC-02: no certificate that is good in three days alone; revoked once more, now, the node can join."""
    clock = MagicMock(wraps=SystemClock())
    clock.now.side_effect = lambda: datetime.now(UTC) + timedelta(days=3)
    identities = registry(Store(), Inbox(), [], row())
    identities._clock = clock
    identities.revoke(asked(), NODE, "stolen")
    ours, request = credentials(tmp_path), authority.request(NODE, authority.new_key())
    with pytest.raises(IdentityError, match="if it was ahead then, revoke them once more"):
        ours.sign(NODE, request, identities.revoked_until(NODE))
    clock.now.side_effect = lambda: datetime.now(UTC)
    identities.revoke(asked(), NODE, "stolen")
    chain = ours.sign(NODE, request, identities.revoked_until(NODE))
    authority.anchor(chain, ours.authorities, datetime.now(UTC))
    identities.admit(pem.presented(chain), "node", "node-1")


def test_without_an_issuer_it_says_so(tmp_path: Path) -> None:
    """SEC-01: a control plane that cannot sign serves, and tells what to do."""
    folder = made.ours().folder(tmp_path, "controlplane", "cp")
    ours = Credentials(folder, SystemClock()).load()
    assert "llmgw ctl cert issue" in ours.no_issuer
    with pytest.raises(IdentityError, match="cannot sign"):
        ours.sign(NODE, authority.request(NODE, authority.new_key()))
    assert not ours.outdated(shown(issued_at=0.0))


def test_every_fault_of_the_folder_names_the_setting(tmp_path: Path) -> None:
    """DOC-01: what is missing or open to others, at the start."""
    folder = made.ours().controlplane(tmp_path / "identity")
    (folder / "key.pem").chmod(0o644)
    with pytest.raises(SettingsError) as raised:
        Credentials(folder, SystemClock()).load()
    assert raised.value.source == "identity"
    (fault,) = raised.value.faults
    assert fault.path == str(folder / "key.pem") and "chmod 600" in fault.message
    with pytest.raises(SettingsError, match="identity"):
        Credentials(made.ours().node(tmp_path / "node", "n"), SystemClock()).load()


def test_files_that_are_replaced_count_at_once(tmp_path: Path) -> None:
    """SEC-08: a new certificate is shown without a restart; a damaged one leaves the old."""
    ours = credentials(tmp_path)
    told: list[int] = []
    ours.on_change(lambda: told.append(1))
    before = ours.presented.serial
    made.ours().controlplane(tmp_path)
    ours.refresh()
    assert ours.presented.serial != before and not ours.failing
    serial = ours.presented.serial
    (tmp_path / "certificate.pem").write_text("no certificate\n")
    ours.refresh()
    assert ours.presented.serial == serial and ours.failing
    made.ours().folder(
        tmp_path, "controlplane", "controlplane", issuer=True, trusts=[made.ours().root, made.strangers().root]
    )
    ours.refresh()
    assert not ours.failing and len(pem.split(ours.authorities)) == 2 and told


def in_20_days(folder: Path) -> None:
    later = datetime.now(UTC) + timedelta(days=20)
    made.replaced(folder, made.ours().folder(folder.parent / "x", "controlplane", "controlplane", now=later))


UNFIT = {
    "is valid only from": in_20_days,
    "is not taken by one who trusts": lambda folder: made.replaced(
        folder, made.strangers().controlplane(folder.parent / "x")
    ),
    "cut off": lambda folder: (folder / "authorities.pem").write_bytes(made.ours().root + made.strangers().root[:400]),
    "issuer-key.pem: can be read by others": lambda folder: (folder / "issuer-key.pem").chmod(0o666),
    "key.pem: can be read by others": lambda folder: (folder / "key.pem").chmod(0o644),
    "can be written to by others": lambda folder: folder.chmod(0o777),
    "is that of node": lambda folder: made.ours().node(folder, "node-1"),
    "issuer.pem: is not that of issuer-key.pem": lambda folder: (folder / "issuer-key.pem").write_bytes(
        authority.new_key()
    ),
}


@pytest.mark.parametrize("why", UNFIT)
def test_what_nobody_could_connect_to_or_is_open_to_others_is_not_used(tmp_path: Path, why: str) -> None:
    """SEC-03, SEC-08: the one in use stays and signs, it is told, and our own is not renewed again and again."""
    folder = tmp_path / "identity"
    ours = credentials(folder)
    before = ours.presented, ours.authorities, ours.mutual.context, ours.plain.context, ours._issuer
    ours._due = 0.0
    UNFIT[why](folder)
    for _ in range(2):
        ours.refresh()
        assert why in ours.failing and ours._until_due() > 1
    assert (ours.presented, ours.authorities, ours.mutual.context, ours.plain.context, ours._issuer) == before
    for place, mode in ((folder, 0o700), (folder / "key.pem", 0o600), (folder / "issuer-key.pem", 0o600)):
        place.chmod(mode)
    made.ours().controlplane(folder)
    ours.refresh()
    assert not ours.failing and ours.presented == ours.folder.presented() != before[0]


def test_what_an_ended_writer_left_is_removed(tmp_path: Path) -> None:
    """SEC-03: a key in it would stay for good."""
    ours = credentials(tmp_path / "identity")
    left = ours.folder.path / ".key.pem.0a_b1c2d"
    left.write_text("half a key")
    ours.start()
    try:
        until(lambda: not left.exists())
    finally:
        ours.stop()


def test_files_that_are_replaced_while_they_are_read_are_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-08: what was judged is what is used."""
    ours = credentials(tmp_path / "identity")
    before, load = ours.presented, ours.plain.load
    made.ours().controlplane(ours.folder.path)

    def replaced() -> Any:
        made.replaced(ours.folder.path, made.strangers().controlplane(tmp_path / "x"))
        return load()

    monkeypatch.setattr(ours.plain, "load", replaced)
    ours.refresh()
    assert ours.presented == before
    ours.refresh()
    assert ours.presented == before and "not taken" in ours.failing


def test_a_folder_that_is_closed_again_is_no_concern(tmp_path: Path) -> None:
    """SEC-03: nothing else of it changed."""
    ours = credentials(tmp_path / "identity")
    for mode, failing in ((0o777, True), (0o700, False)):
        ours.folder.path.chmod(mode)
        ours.refresh()
        assert bool(ours.failing) is failing


def test_nothing_is_renewed_where_others_can_read_it(tmp_path: Path) -> None:
    """SEC-03: it would not be used."""
    ours = credentials(tmp_path / "identity")
    before = ours.folder.certificate.read_bytes()
    ours.folder.key.chmod(0o644)
    ours._renew()
    assert ours.folder.certificate.read_bytes() == before


def test_one_that_is_not_valid_yet_is_used_at_the_start_and_told(tmp_path: Path) -> None:
    """SEC-01: after a power cut the clock may be years behind until it is set."""
    folder = made.ours().controlplane(tmp_path / "identity")
    in_20_days(folder)
    ours = Credentials(folder, SystemClock()).load()
    told = dict(concerns(ours.expiries(), SystemClock().now().timestamp()))
    assert "is valid only from" in told["server"] and set(told) == {"server"}


def test_files_are_read_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-08: SIGHUP may come while they are looked at; the slower of two would put the older ones back."""
    ours = credentials(tmp_path)
    running: list[int] = []
    most: list[int] = []

    def refresh() -> bool:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return False

    monkeypatch.setattr(ours, "_refresh", refresh)
    gevent.joinall([gevent.spawn(ours.refresh) for _ in range(5)], raise_error=True)
    assert most == [1] * 5


def test_while_a_root_is_rotated_it_counts_who_signed(tmp_path: Path) -> None:
    """SEC-08: what the issuer before signed after the new one was made would outlast it, and be refused when the
    old root goes; what the new issuer or the new root signed is left alone."""
    later = SystemClock().now().timestamp() + 3600
    ours = credentials(tmp_path)
    before = dataclasses.replace(shown(issued_at=later), issuer="the issuer before")
    assert not ours.outdated(before), "only one root"
    office = RootFolder(made.ours().authority_folder(tmp_path / "authority"))
    office.rotate("second")
    office.renew(tmp_path)
    ours.refresh()
    assert ours.outdated(before)
    signed = pem.presented(ours.sign(NODE, authority.request(NODE, authority.new_key())))
    chain, _ = office.sign(authority.request(NODE, authority.new_key()), NODE)
    for good in (signed, pem.presented(chain)):
        assert good.issuer and not ours.outdated(dataclasses.replace(good, issued_at=later))


def test_our_own_certificate_is_renewed(tmp_path: Path) -> None:
    """SEC-01: by our own issuer, with its names and addresses, before it is late."""
    then, life = datetime.now(UTC) - timedelta(hours=20), timedelta(hours=30)
    folder = made.ours().controlplane(tmp_path)
    made.replaced(folder, made.ours().folder(tmp_path / "old", "controlplane", "controlplane", now=then, lifetime=life))
    ours = Credentials(folder, SystemClock()).load()
    before = authority.facts(ours.folder.chain())
    ours._renew()
    after = authority.facts(ours.folder.chain())
    assert after.expires_at > before.expires_at and after.serial == ours.presented.serial
    assert (after.dns, after.ips) == (before.dns, before.ips) and after.ips


def test_expiry_is_read_from_disk(tmp_path: Path) -> None:
    """SEC-01, OBS-01: also of what was replaced and is not in use yet."""
    ours = credentials(tmp_path)
    before = {life.what: life.expires_at for life in ours.expiries()}
    assert set(before) == {"server", "issuer", "authority"}
    made.ours().folder(tmp_path, "controlplane", "controlplane", lifetime=timedelta(days=1))
    after = {life.what: life for life in ours.expiries()}
    assert after["server"].expires_at < before["server"]
    (tmp_path / "certificate.pem").unlink()
    assert "server" not in {life.what for life in ours.expiries()}, "absent is unknown"
    for file in (tmp_path / "authorities.pem", tmp_path / "issuer.pem"):
        file.unlink()
        os.mkfifo(file)
    assert ours.expiries() == (), "what is no file is not waited for"
    late = dataclasses.replace(after["server"], issued_at=NOW - 80_000, expires_at=NOW + 8_640)
    assert dict(concerns([late], NOW))["server"].startswith("expires in 0.1 days")
    assert dict(concerns([late], NOW + 9_000))["server"].startswith("has expired")
    assert not dict(concerns([late], NOW - 70_000))


# ---------------------------------------------------------------- over real sockets


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.ours().node(tmp_path / "node-1", "node-1")


@pytest.fixture
def ours(tmp_path: Path) -> Credentials:
    return credentials(tmp_path / "controlplane")


@pytest.fixture
def identities(inbox: Inbox) -> Identities:
    return registry(Store(), inbox, [], row())


@pytest.fixture
def listener(inbox: Inbox, ours: Credentials, identities: Identities):
    made_one = AgentListener(
        Address("127.0.0.1", 0), inbox, ours, identities, SystemClock(), silence=5.0, hello=2.0, renew_spread=0.0
    ).start()
    identities._end = made_one.end
    yield made_one
    made_one.stop(0.1)


def test_a_session_gets_a_new_certificate(listener: AgentListener, inbox: Inbox, folder: Path) -> None:
    """SEC-01: over the session, while frames go on; what it was signed for is its own identity."""
    peer = Peer(listener.address, folder).upgrade().hello()
    take(inbox, SessionOpened)
    key = authority.new_key()
    peer.sock.sendall(encode(Renew(request=authority.request(Identity("node", "another"), key).decode())))
    peer.sock.sendall(encode(Heartbeat(sequence=1)))
    answer = peer.expect(Credential)
    given = pem.presented(answer.certificate.encode())
    assert given.identity == NODE and not answer.fault
    assert authority.same_key(answer.certificate.encode(), key)
    until(lambda: listener._identities.one(NODE).serial == given.serial)
    peer.sock.sendall(encode(Renew(request="no request")))
    assert "cannot be read" in peer.expect(Credential).fault


WELCOME = Welcome(
    session_id="s", protocol=1, version="t", epoch=1, leader="l", heartbeat_seconds=1.0, silence_seconds=5.0
)


def test_a_session_hears_of_other_authorities_and_of_an_older_certificate(
    listener: AgentListener, inbox: Inbox, ours: Credentials, tmp_path: Path
) -> None:
    """SEC-08: whoever trusts another bundle is told ours; what an earlier issuer signed is renewed. Not before the
    session is welcomed: an agent takes nothing before that, and would stay out for ever."""
    long_ago = made.ours().made_at - timedelta(days=1)
    old = made.ours().folder(tmp_path / "old", "node", "node-1")
    peer = Peer(listener.address, old).upgrade().hello(authorities="0" * 64)
    session = take(inbox, SessionOpened).session
    for call in ours._changed:
        call()
    listener.send(session, WELCOME)
    frames: list[Any] = []
    while len(frames) < 2:
        frames += peer.decoder.feed(peer.sock.recv(65536))
    assert isinstance(frames[0], Welcome) and frames[1].authorities.encode() == ours.authorities
    assert ours._issuer is not None
    facts = dataclasses.replace(ours._issuer.facts, issued_at=datetime.now(UTC).timestamp() + 60)
    assert long_ago.timestamp() < facts.issued_at
    ours._issuer = dataclasses.replace(ours._issuer, facts=facts)
    for call in ours._changed:
        call()
    assert peer.expect(Credential).authorities
    assert peer.expect(Credential).renew


def test_revoked_in_session_is_over_at_once(
    listener: AgentListener, inbox: Inbox, identities: Identities, folder: Path, tmp_path: Path
) -> None:
    """SEC-02: the session ends with its code, the certificate opens no other, others are unharmed."""
    other = (
        Peer(listener.address, made.ours().node(tmp_path / "other", "other")).upgrade("other").hello(node_id="other")
    )
    peer = Peer(listener.address, folder).upgrade().hello()
    until(lambda: listener.sessions == 2)
    identities.revoke(asked(), NODE, "stolen")
    (refuse,) = peer.frames()
    assert isinstance(refuse, Refuse) and refuse.code == "revoked" and "join it anew" in refuse.message
    take(inbox, SessionClosed)
    again = Peer(listener.address, folder)
    again.sock.sendall(b"GET /agent/v1/session HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\n")
    again.sock.sendall(b"Upgrade: llmgw-agent/1\r\nLlmgw-Node: node-1\r\n\r\n")
    answer = again.answer()
    assert answer.startswith(b"HTTP/1.1 403 ") and b'"revoked"' in answer
    assert "stolen" in identities.refused["node", "node-1"][1]
    assert listener.sessions == 1
    other.sock.close()


def test_revoked_between_request_and_hello_opens_no_session(
    listener: AgentListener, identities: Identities, folder: Path
) -> None:
    """SEC-02: the moment between the two is no gap."""
    peer = Peer(listener.address, folder).upgrade()
    identities.revoke(asked(), NODE, "stolen")
    peer.hello()
    assert b"revoked" in peer.answer() and listener.sessions == 0


def test_the_longest_silent_goes_when_too_many_come(ours: Credentials) -> None:
    """AGT-03: peers that say nothing hold nothing but a bounded number of sockets."""
    handshakes = Handshakes(ours.mutual, limit=5.0, most=3)
    pairs = [gevent.socket.socketpair() for _ in range(5)]
    ends: list[str] = []

    def wrap(sock: Any) -> None:
        try:
            handshakes.wrap_socket(sock)
        except OSError as error:
            ends.append(str(error))

    waiting = []
    for pair in pairs:
        waiting.append(gevent.spawn(wrap, pair[0]))
        gevent.sleep(0.01)
    assert [each.ready() for each in waiting] == [True, True, False, False, False]
    assert all("too many others came" in words for words in ends)
    gevent.killall(waiting)


def test_nobody_is_renewed_in_a_rush(listener: AgentListener, inbox: Inbox, folder: Path) -> None:
    """SEC-01: one that asks for certificate after certificate costs us a few signatures and lines of log."""
    peer = Peer(listener.address, folder).upgrade().hello()
    take(inbox, SessionOpened)
    began = time.monotonic()
    peer.sock.sendall(encode(Renew(request="no request")) * 100)
    for _ in range(3):
        assert peer.expect(Credential).fault
    assert time.monotonic() - began >= 2 * RENEW_PAUSE


def test_a_certificate_is_renewed_past_a_revocation(
    listener: AgentListener, inbox: Inbox, identities: Identities, tmp_path: Path
) -> None:
    """SEC-02: it was revoked and joined anew while our clock was ahead. What it is given now must be good: it
    throws away what it has for it."""
    now = datetime.now(UTC)
    ahead = now + timedelta(seconds=200)
    identities.keep(row(revoked_at=ahead.timestamp() - 50))
    peer = Peer(listener.address, made.ours().folder(tmp_path / "anew", "node", "node-1", now=ahead)).upgrade().hello()
    take(inbox, SessionOpened)
    peer.sock.sendall(encode(Renew(request=authority.request(NODE, authority.new_key()).decode())))
    given = pem.presented(peer.expect(Credential).certificate.encode())
    assert given.issued_at > ahead.timestamp() - 50
    identities.admit(given, "node", "node-1")


def test_a_router_gets_one_certificate_at_a_time(ours: Credentials, inbox: Inbox) -> None:
    """SEC-01: its connections are many, and nobody else waits behind all of them."""
    router = Identity("router", "router-1")
    application = RouterApplication(
        MagicMock(),
        inbox,
        credentials=ours,
        identities=registry(Store(), inbox, [], row("router-1", "router")),
        clock=SystemClock(),
        leads=lambda: (1, "l"),
        superseded=MagicMock(),
        take_usage=MagicMock(),
    )
    body = encode_json(Renewal(request=authority.request(router, authority.new_key()).decode()))

    def ask() -> Renewed:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": IDENTITY_PATH,
            "HTTP_LLMGW_ROUTER": "router-1",
            PEER: shown(router),
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body),
        }
        return msgspec.json.decode(b"".join(application(environ, MagicMock())), type=Renewed)

    answers = [greenlet.get() for greenlet in [gevent.spawn(ask) for _ in range(20)]]
    assert [bool(answer.certificate) for answer in answers] == [True] + [False] * 19
    assert all("at this moment" in answer.fault for answer in answers[1:])
    until(lambda: ask().certificate)


def test_files_that_could_not_be_read_for_a_moment_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-08: what failed without a fault of the files, such as for want of descriptors, is tried again."""
    ours = credentials(tmp_path)
    new = made.ours().folder(tmp_path, "controlplane", "controlplane")
    with monkeypatch.context() as patch:
        patch.setattr(ours, "_read", MagicMock(side_effect=OSError(24, "Too many open files")))
        ours.refresh()
        assert "Too many" in ours.failing
    ours.refresh()
    assert not ours.failing and ours.presented == ours.folder.presented() and new == tmp_path
