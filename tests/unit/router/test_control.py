"""Whom a router asks, how, and whom it believes; reports of endpoints that left."""

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import gevent
import pytest

from llmgw.identity import pem
from llmgw.identity.holder import Holder
from llmgw.identity.names import Identity
from llmgw.runtime.settings import Address
from llmgw.wire.routing import Endpoint, Renewal, Renewed, Report, RoutedModel, RouteTable
from router import report
from router.control import BatchRefused, Control, ControlError
from router.renewal import Renewer
from router.sync import Sync, keep
from router.table import build
from tests.fakes.route_server import RouteServer
from tests.harness import identities

ROOT = Path(__file__).parents[3]
REPORT = Report(boot="b", sequence=1, version="1")

ASK = """
from gevent import monkey; monkey.patch_all()
import sys, time
from pathlib import Path
from llmgw.identity.holder import Holder
from llmgw.identity.names import Identity
from llmgw.runtime.settings import Address
from router import control
holder = Holder(Path(sys.argv[2]), Identity("router", "r1"))
asking = control.Control((Address("127.0.0.1", int(sys.argv[1])),), "r1", holder)
asking.refresh()
began = time.monotonic()
try:
    asking._ask(control._Request("x", "GET", "/", b"", 0.5), lambda status, body: None)
except control.ControlError as error:
    print(time.monotonic() - began, error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return identities.ours().router(tmp_path_factory.mktemp("identity"), "r1")


@pytest.fixture
def planes():
    """Two control planes; the second stands by."""
    both = RouteServer(RouteTable(generation="a1", epoch=3, leader="a")), RouteServer(RouteTable(generation="b1"))
    both[1].standby = ""
    yield both
    for each in both:
        each.stop()


@pytest.fixture
def control(folder, planes):
    return asking(folder, *planes)


def asking(folder, *planes):
    made = Control(tuple(address(each) for each in planes), "r1", Holder(folder, Identity("router", "r1")))
    made.refresh()
    return made


def address(plane):
    return Address("127.0.0.1", plane.port)


def test_an_answer_that_never_ends(folder):
    """RTR-03: a bound on each read is none on the whole: one byte at a time would hold up the poll for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def drip():
            plain, _ = listener.accept()
            with identities.server(identities.ours().controlplane(folder / "plane")).wrap_socket(
                plain, server_side=True
            ) as connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n")
                with contextlib.suppress(OSError):
                    while not done.wait(0.1):
                        connection.sendall(b"a")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            ran = subprocess.run(
                [sys.executable, "-c", ASK, str(listener.getsockname()[1]), str(folder)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
        finally:
            done.set()
            thread.join(5)
    seconds, _, words = ran.stdout.partition(" ")
    assert float(seconds) < 5, ran.stderr
    assert "took too long" in words


def test_what_cannot_be_asked_is_told(folder):
    """RTR-03: the poll goes on; it does not end the worker with an exception."""
    holder = Holder(folder, Identity("router", "r1"))
    nowhere = Control((Address("a" * 80, 1),), "r1", holder)
    nowhere.refresh()
    with pytest.raises(ControlError):
        nowhere.table("", 1.0)


def test_the_files_are_read_by_one_at_a_time(control, monkeypatch):
    """SEC-08: every purpose looks at them; of two that do so at once the slower would put the older ones back."""
    running, most = [], []

    def refresh():
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return False

    monkeypatch.setattr(control._holder, "refresh", refresh)
    gevent.joinall([gevent.spawn(control.refresh) for _ in range(5)], raise_error=True)
    assert most == [1] * 5


def test_without_an_identity_nothing_is_asked(tmp_path, caplog):
    """SEC-01: a worker whose identity went away serves on by its table, and says so."""
    blank = Control((Address("127.0.0.1", 1),), "r1", Holder(tmp_path / "none", Identity("router", "r1")))
    assert not blank.refresh()
    assert "the identity on disk cannot be used" in caplog.text
    with pytest.raises(ControlError):
        blank.table("", 1.0)


class TestWhom:
    """HA-01, HA-02: which of several control planes is asked."""

    def test_the_one_that_leads_keeps_its_connections(self, control, planes):
        first, second = planes
        for _ in range(5):
            control.report(REPORT)
            assert control.table("", 1.0).generation == "a1"
        assert (first.connections, second.connections) == (2, 0)

    def test_the_next_one_when_it_does_not_lead(self, control, planes):
        first, second = planes
        control.report(REPORT)
        first.standby, second.standby = "", None
        control.report(REPORT)
        first.standby = None
        control.report(REPORT)
        assert len(second.reports) == 2  # the one that answered last is asked first

    def test_where_a_standby_says(self, folder, planes):
        first, second = planes
        only = asking(folder, second)
        second.standby = str(address(first))
        only.report(REPORT)
        assert len(first.reports) == 1

    @pytest.mark.parametrize("leader", ["127.0.0.1:1", "nonsense", "", None])
    def test_two_that_know_no_leader(self, folder, planes, leader):
        first, second = planes
        for each in planes:
            each.standby = leader or ""
        with pytest.raises(ControlError) as caught:
            asking(folder, first, second).report(REPORT)
        assert str(caught.value).count("it does not lead") == 2

    def test_two_that_name_each_other(self, folder, planes):
        first, second = planes
        first.standby, second.standby = str(address(second)), str(address(first))
        with pytest.raises(ControlError) as caught:
            asking(folder, first, second).report(REPORT)
        assert str(caught.value).count("it does not lead") == 2

    def test_a_connection_kept_for_too_long(self, control, planes):
        first, _ = planes
        control.report(REPORT)
        (kept,) = control._kept.values()
        kept.cut()
        kept.over = False  # as if the other side had ended it
        control.report(REPORT)
        assert (len(first.reports), first.connections) == (2, 2)

    def test_a_new_certificate_is_shown_from_the_next_request_on(self, tmp_path, planes):
        first, _ = planes
        folder = identities.ours().router(tmp_path / "identity", "r1")
        control = asking(folder, first)
        control.report(REPORT)
        identities.ours().router(folder, "r1")
        assert control.refresh()
        assert not control.refresh()
        control.report(REPORT)
        control.report(REPORT)
        assert first.connections == 2

    def test_a_batch_that_is_refused_goes_to_nobody_else(self, control, planes):
        first, second = planes
        second.standby = None
        first.usage_script.append(422)
        with pytest.raises(BatchRefused):
            control.usage(b"{}")
        assert not second.posts

    def test_a_batch_that_is_not_taken_goes_to_the_next(self, control, planes):
        first, second = planes
        second.standby = None
        first.usage_script.append(503)
        control.usage(b'{"boot":"b","sequence":1,"records":[]}')
        assert len(second.counted) == 1


class TestEpochs:
    """HA-01, AGT-04: whose tables are taken."""

    @pytest.mark.parametrize(("epoch", "leader"), [(2, "a"), (3, "b"), (0, "")])
    def test_none_of_an_earlier_leader(self, control, planes, epoch, leader):
        first, second = planes
        assert control.table("", 1.0).epoch == 3
        first.publish(RouteTable(generation="a2", epoch=epoch, leader=leader))
        second.publish(RouteTable(generation="b2", epoch=4, leader="b"))
        with pytest.raises(ControlError, match="it is not followed: epoch"):
            control.table("a1", 1.0)
        second.standby = None
        assert control.table("a1", 1.0).generation == "b2"
        assert (control.epoch, control.epoch_of) == (4, "b")

    def test_each_request_tells_the_highest(self, control, planes):
        first, _ = planes
        control.report(REPORT)
        control.table("", 1.0)
        control.report(REPORT)
        assert first.epochs == ["0", "0", "3 a"]

    def test_a_sibling_does_not_undo_what_is_on_disk(self, tmp_path):
        file = tmp_path / "route-table.json"
        keep(file, RouteTable(generation="new", epoch=4, leader="b"))
        keep(file, RouteTable(generation="old", epoch=3, leader="a"))
        keep(file, RouteTable(generation="other", epoch=4, leader="c"))
        assert b'"new"' in file.read_bytes()
        keep(file, RouteTable(generation="newer", epoch=4, leader="b"))
        assert b'"newer"' in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_bytes(b"damaged")
        keep(file, RouteTable(generation="any"))
        assert b'"any"' in file.read_bytes()

    def test_what_is_on_disk_counts_after_a_start(self, tmp_path, folder, planes):
        file = tmp_path / "route-table.json"
        keep(file, RouteTable(generation="x", epoch=9, leader="z"))
        control = asking(folder, *planes)
        Sync(control, file, lambda table: None).restore()
        with pytest.raises(ControlError, match="older than 9"):
            control.table("", 1.0)


class TestCertificates:
    """SEC-01: both sides must be who they should be; what is wrong is said in words."""

    def test_one_that_is_no_control_plane(self, tmp_path, control, planes):
        first, _ = planes
        first.show(identities.ours().router(tmp_path / "r9", "r9"))
        with pytest.raises(ControlError, match=r"it does not answer: .*(purpose|should be a controlplane)"):
            control.report(REPORT)

    def test_one_of_strangers(self, tmp_path, control, planes):
        first, _ = planes
        first.show(identities.strangers().controlplane(tmp_path / "stranger"))
        with pytest.raises(ControlError, match="authority that we do not trust"):
            control.report(REPORT)

    def test_one_that_refuses_ours(self, tmp_path, planes):
        first, _ = planes
        theirs = identities.strangers().folder(tmp_path / "i", "router", "r1", trusts=[identities.ours().root])
        with pytest.raises(ControlError, match="does not trust the authority of our certificate"):
            asking(theirs, first).report(REPORT)

    def test_one_that_speaks_no_tls(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=_answer_plainly, args=(listener,), daemon=True).start()
            plain = Control((Address(*listener.getsockname()),), "r1", Holder(folder, Identity("router", "r1")))
            plain.refresh()
            with pytest.raises(ControlError, match=r"does not speak TLS|is the address right"):
                plain.report(REPORT)


def _answer_plainly(listener):
    connection, _ = listener.accept()
    with connection:
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.recv(4096)


class TestRenewal:
    """SEC-01, SEC-08: one process of a host asks, all see what came."""

    def make(self, folder, plane, seed=1):
        holder = Holder(folder, Identity("router", "r1"))
        control = Control((address(plane),), "r1", holder)
        return Renewer(control, holder, random.Random(seed)), holder

    def test_due(self, tmp_path, planes):
        first, _ = planes
        made = datetime.now(UTC) - timedelta(days=1)
        folder = identities.ours().folder(tmp_path / "i", "router", "r1", now=made, lifetime=timedelta(days=1.2))
        first.renewed = Renewed(fault="it cannot sign")
        renewer, holder = self.make(folder, first)
        renewer.look()
        holder.due = time.time() - 1
        renewer.look()
        assert first.renewals[-1].request.startswith("-----BEGIN CERTIFICATE REQUEST-----")
        renewer.look()  # not again at once; whom to trust is asked all the same
        assert [bool(renewal.request) for renewal in first.renewals] == [False, True, False]
        assert renewer._not_before > time.time()

    def test_what_an_ended_writer_left_is_removed(self, tmp_path, planes):
        """SEC-03: a key in it would stay for good."""
        folder = identities.ours().router(tmp_path / "i", "r1")
        (folder / ".key.pem.0a_b1c2d").write_text("half a key")
        renewer, _ = self.make(folder, planes[0])
        renewer.look()
        assert not list(folder.glob(".*.pem.*"))

    def test_one_of_two(self, tmp_path, planes):
        first, _ = planes
        folder = identities.ours().router(tmp_path / "i", "r1")
        one, holder = self.make(folder, first)
        other, sees = self.make(folder, first, seed=2)
        one.look()
        other.look()
        assert len(first.renewals) == 1
        before = holder.presented.serial
        first.renewed = None
        holder.due = time.time() - 1
        one.look()
        other.look()
        assert holder.presented.serial == sees.presented.serial != before
        assert sum(bool(renewal.request) for renewal in first.renewals) == 1

    def test_authorities(self, tmp_path, planes, caplog):
        first, _ = planes
        folder = identities.ours().router(tmp_path / "i", "r1")
        renewer, holder = self.make(folder, first)
        first.renewed = Renewed(authorities=identities.strangers().root.decode())
        renewer.look()
        assert holder.authorities == pem.digest(identities.ours().root)  # our own would not be trusted by it
        both = identities.ours().root + identities.strangers().root
        first.renewed = Renewed(authorities=both.decode())
        renewer.look()
        assert holder.authorities == pem.digest(both)

    def test_wanted_until_it_is_there(self, tmp_path, planes):
        """SEC-08: what is signed for us counts as ours there, also if we could not keep it: it is not wanted
        twice, and without it we would be cut off once the old authority goes."""
        first, _ = planes
        folder = identities.ours().router(tmp_path / "i", "r1")
        renewer, holder = self.make(folder, first)
        first.renewed = Renewed(renew=True)
        renewer.look()
        assert [bool(renewal.request) for renewal in first.renewals] == [False, True]
        first.renewed = Renewed()
        renewer._not_before = 0.0
        renewer.look()
        assert first.renewals[-1].request, "it asks again although nobody says so any more"
        before, first.renewed = holder.presented.serial, None
        renewer._not_before = 0.0
        renewer.look()
        assert holder.presented.serial != before
        asked = len(first.renewals)
        first.renewed = Renewed()
        renewer._not_before = 0.0
        renewer.look()
        assert [bool(renewal.request) for renewal in first.renewals[asked:]] == [False]

    def test_garbage(self, tmp_path, planes, caplog):
        first, _ = planes
        folder = identities.ours().router(tmp_path / "i", "r1")
        before = (folder / "certificate.pem").read_bytes()
        renewer, _ = self.make(folder, first)
        for certificate in ("nonsense", before.decode(), identities.strangers().root.decode()):
            first.renewed = Renewed(certificate=certificate, renew=True)
            renewer._not_before = 0.0
            renewer.look()
            assert (folder / "certificate.pem").read_bytes() == before
        assert "the certificate was not renewed" in caplog.text


def test_what_is_asked_has_no_secret_in_words(control, folder):
    """SEC-03: neither a control's nor an identity's words hold a key."""
    key = (folder / "key.pem").read_text().splitlines()[1]
    assert key not in repr(control) + repr(control._holder) + repr(Renewal(request="x"))


@pytest.mark.parametrize("again", [None, RouteTable(generation="")])
def test_a_control_plane_that_does_not_wait(tmp_path, again):
    """RTR-03: answers without news that come at once are not asked for without pause."""

    class Hasty:
        polls = 0

        def table(self, generation, wait):
            del generation, wait
            self.polls += 1
            gevent.sleep(0)
            return again

    hasty = Hasty()
    greenlet = gevent.spawn(Sync(hasty, tmp_path / "table", lambda fresh: None).run)
    gevent.sleep(0.4)
    greenlet.kill()
    assert 1 <= hasty.polls < 10


def test_failures_of_an_endpoint_that_left_are_told_once(monkeypatch):
    """DEM-01: like those of any other endpoint; else each report would tell them anew."""
    monkeypatch.setattr(report, "INTERVAL", 0.0)
    model = RoutedModel(
        name="m", state="ready", endpoints=(Endpoint(id="a", host="127.0.0.1", port=1, upstream_model="m"),)
    )
    before = build(RouteTable(generation="1", models=(model,)))
    before.live["a"].inflight = 1
    before.live["a"].failures = 3
    routes = build(RouteTable(generation="2"), before)
    told = []

    class Enough(Exception):
        pass

    class Recorder:
        def report(self, sent):
            if len(told) == 3:
                raise Enough
            told.append({load.id: load.failures for load in sent.endpoints})

    with pytest.raises(Enough):
        report.Reporter(Recorder()).run(lambda: routes)
    assert told == [{"a": 3}, {"a": 0}, {"a": 0}]
