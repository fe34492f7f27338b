"""A record of every request (TEN-06), handed over once whatever happens (STO-03)."""

import json
import os
import re
import signal
import stat
import threading
import time
from collections import Counter

import msgspec
import pytest

from llmgw.wire.routing import RoutedModel, UsageBatch
from router.settings import USAGE_DIRECTORY
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Client, Router, endpoint, routed_key, table_of, until

NARROW = "sk-llmgw-narrow-0123456789abcdef"
CHAT = '{"model":"m","messages":[]}'
STREAM = '{"model":"m","messages":[],"stream":true}'


@pytest.fixture(scope="module")
def upstream():
    one = FakeUpstream(key="ek-0123456789abcdef")
    yield one
    one.stop()


def tables(upstream, **fields):
    first, second = endpoint(upstream, "e1"), endpoint(upstream, "e2")
    return table_of(
        RoutedModel(name="m", state="ready", endpoints=(first,), aliases=("the m",)),
        RoutedModel(name="pair", state="ready", endpoints=(first, second)),
        RoutedModel(name="loading", state="loading"),
        RoutedModel(name="small", state="ready", endpoints=(endpoint(upstream, "e3", max_inflight=0),)),
        RoutedModel(name="no room", state="unplaceable", fallbacks=("m",)),
        keys=(routed_key(), routed_key(NARROW, "narrow", models=("loading",))),
        **fields,
    )


@pytest.fixture(scope="module")
def router(tmp_path_factory, upstream):
    with Router(tmp_path_factory.mktemp("router"), tables(upstream)) as one:
        yield one


@pytest.fixture
def client(router):
    with router.connect() as one:
        yield one


ids = (f"test-{nth}" for nth in range(10**6))


def post(client, body, **options):
    """Send a request under an id of its own; returns that."""
    name = next(ids)
    client.post(body, lines=f"X-Request-Id: {name}\r\n", **options)
    return name


def record(router, name):
    """The record of a request, which is the only one under its id."""
    until(lambda: any(one.id == name for one in router.control.records), 10, f"the record of {name}")
    (found,) = [one for one in router.control.records if one.id == name]
    return found


def answered(router, body, **options):
    """The record of a request whose answer was read to its end, and the answer."""
    with router.connect() as client:
        name = post(client, body, **options)
        answer = client.answer()
    return record(router, name), answer


# ------------------------------------------------------------------ what is recorded


def test_a_whole_answer(router):
    """TEN-06: who asked for what, who answered, how long it took, and what the engine counted."""
    one, _ = answered(router, '{"model":"the m","messages":[]}')
    assert (one.key, one.asked, one.model, one.endpoint) == ("k1", "the m", "m", "e1")
    assert (one.status, one.code, one.stream, one.retried) == (200, "", False, ())
    assert 0 < one.first_byte <= one.duration < 5
    assert one.duration <= one.ago < 5
    assert (one.prompt_tokens, one.completion_tokens, one.cached_tokens) == (12, 9, None)


def test_the_id_a_client_sees(router, client):
    """CLI-05: also one that the router made."""
    client.post(CHAT)
    name = client.answer().headers["x-request-id"]
    assert name.startswith("req-")
    assert record(router, name).status == 200


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream(router, usage):
    """TEN-06: tokens from the chunk with usage, and none where no engine said any: unknown is not zero."""
    body = json.dumps({"model": "m", "stream": True, "stream_options": {"include_usage": usage}})
    one, _ = answered(router, body)
    assert (one.status, one.stream) == (200, True)
    assert 0 < one.first_byte <= one.duration
    assert (one.prompt_tokens, one.completion_tokens) == ((12, 9) if usage else (None, None))


@pytest.mark.parametrize("size", [1, 3, 50, 100000])
def test_usage_in_any_split_of_a_stream(router, upstream, size):
    """TEN-06: wherever reads and chunks end."""
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    events = b"".join(fake.events()) + fake.event({"choices": [], "usage": usage}) + fake.DONE
    pieces = [events[at : at + 11] for at in range(0, len(events), 11)]
    raw = fake.HEAD_STREAM + b"".join(map(fake.chunked, pieces)) + fake.LAST
    upstream.script.append(fake.raw(*(raw[at : at + size] for at in range(0, len(raw), size)), pause=0.0002))
    one, answer = answered(router, STREAM)
    assert answer.body == events
    assert (one.prompt_tokens, one.completion_tokens, one.cached_tokens) == (5, 7, 4)


@pytest.mark.parametrize(
    "said",
    [{"usage": None}, {}, {"usage": {"prompt_tokens": -1}}, {"usage": "much"}, {"usage": {"prompt_tokens": 2**50}}],
)
def test_what_is_no_count(router, upstream, said):
    """TEN-06: passed on as it is, and unknown."""
    upstream.script.append(fake.raw(fake.json_answer(200, {"choices": [], **said})))
    one, answer = answered(router, CHAT)
    assert answer.json == {"choices": [], **said}
    assert (one.status, one.prompt_tokens, one.completion_tokens) == (200, None, None)


def test_a_large_answer(router, upstream):
    """TEN-06: its usage is found although it is passed on piece by piece."""
    body = json.dumps({"choices": ["x" * 3_000_000], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    upstream.script.append(fake.raw(head + body))
    one, _ = answered(router, CHAT)
    assert (one.prompt_tokens, one.completion_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("model", "key", "status", "code"),
    [
        ("nope", KEY, 404, "model_not_found"),
        ("m", NARROW, 403, "model_not_allowed"),
        ("loading", KEY, 503, "model_loading"),
        ("small", KEY, 503, "overloaded"),
    ],
)
def test_a_refusal(router, model, key, status, code):
    """TEN-06: of a request that came with a key and named a model."""
    one, _ = answered(router, json.dumps({"model": model}), key=key)
    assert (one.status, one.code, one.asked, one.endpoint) == (status, code, model, "")
    assert one.model == ("" if model == "nope" else model)
    assert one.first_byte is None


def test_what_is_no_request_for_a_model(router, client):
    """TEN-06: no record: nobody's, or for nothing."""
    names = [post(client, CHAT, key="sk-llmgw-wrong"), post(client, "{"), post(client, "{}")]
    client.send(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nX-Request-Id: list\r\n\r\n")
    assert [client.answer().status for _ in range(4)] == [401, 400, 400, 200]
    record(router, post(client, CHAT))
    assert not {*names, "list"} & {one.id for one in router.control.records}


def test_an_engines_refusal(router, upstream):
    """TEN-06: has its status, and no code of ours."""
    upstream.script.append(fake.refuse(400))
    one, _ = answered(router, CHAT)
    assert (one.status, one.code, one.endpoint) == (400, "", "e1")


def test_retries(router, upstream):
    """CLI-05: why each earlier try failed, whether or not the last one worked; one record."""
    upstream.script += [fake.refuse(503)]
    one, _ = answered(router, '{"model":"pair"}')
    assert (one.status, len(one.retried)) == (200, 1)
    assert re.fullmatch("e[12]: the engine cannot take the request now", one.retried[0])
    assert one.endpoint != one.retried[0][:2]
    upstream.script += [fake.refuse(502), fake.refuse(502)]
    one, _ = answered(router, '{"model":"pair"}')
    assert (one.status, one.code, len(one.retried)) == (502, "upstream_error", 2)
    assert one.first_byte is None


def test_a_cut_stream(router, upstream):
    """TEN-06: its status was sent, and its code says how it ended."""
    upstream.script.append(fake.cut(fake.chunked(fake.event({"choices": []}))))
    one, _ = answered(router, STREAM)
    assert (one.status, one.code, one.model) == (200, "upstream_error", "m")


def test_a_fallback(router):
    """CAT-10: what was asked for, and what answered."""
    one, _ = answered(router, '{"model":"no room"}')
    assert (one.asked, one.model, one.endpoint, one.status) == ("no room", "m", "e1", 200)


@pytest.mark.parametrize("when", ["prefill", "stream"])
def test_a_client_that_leaves(router, upstream, when):
    """TEN-06: one record, which says so."""

    def waits(exchange):
        if when == "stream":
            exchange.send(fake.HEAD_STREAM + fake.chunked(fake.event({"choices": []})))
        exchange.wait_for_end()

    upstream.script.append(waits)
    seen = len(upstream.received)
    with router.connect() as client:
        name = post(client, STREAM)
        until(lambda: len(upstream.received) > seen, what="the request")
        if when == "stream":
            client.read_until(b"choices")
    one = record(router, name)
    assert (one.status, one.code, one.endpoint) == (499, "", "e1")
    assert (one.first_byte is None) == (when == "prefill")


def test_names_without_measure(router):
    """TEN-06: whatever a client calls a model, the record is one that the control plane takes."""
    for name in ("x" * 100_000, "\u0001" * 3000, "\U0001f600" * 3000, '"},{"a":"', "a\nb"):
        one, _ = answered(router, json.dumps({"model": name}))
        assert one.asked == name[:512]
    assert "dropped" not in router.log.read_text()


def test_one_record_per_request(router, client):
    """TEN-06: on connections that are kept, and of requests sent together."""
    names = [post(client, (CHAT, STREAM, '{"model":"nope"}')[nth % 3]) for nth in range(60)]
    for _ in names:
        client.answer()
    for _ in range(20):
        names.append(post(client, CHAT))
        client.answer()
    for name in names:
        record(router, name)
    assert Counter(one.id for one in router.control.records if one.id in names) == Counter(names)


# ------------------------------------------------------------------------ handing over


def records_as_sent(body):
    """Sequence and records of a post, byte for byte; how long it waited is not part of that."""
    raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return bytes(raw["boot"]), int(bytes(raw["sequence"])), bytes(raw["records"])


@pytest.mark.parametrize("faults", [(503, 503), (401,), (500,), ("die",), ("hang",), (404, "die", 503)])
def test_sent_again_until_it_is_taken(tmp_path, upstream, faults):
    """STO-03: unchanged and in order, whatever the answer was; counted once, also if it was the answer that got
    lost."""
    with Router(tmp_path, tables(upstream)) as router, router.connect() as client:
        router.control.usage_script += faults
        names = [post(client, CHAT)]
        client.answer()
        until(lambda: router.control.posts, 5, "the first post")
        for _ in range(3):
            names.append(post(client, CHAT))
            client.answer()
        for name in names:
            record(router, name)
        sent = {}
        for post_ in router.control.posts:
            boot, sequence, records = records_as_sent(post_)
            assert sent.setdefault((boot, sequence), records) == records
        assert len(router.control.posts) == len(sent) + len(faults)
        sequences = [records_as_sent(body)[1] for body in router.control.posts]
        assert sequences == sorted(sequences)
        assert [one.id for one in router.control.records] == names
        last = msgspec.json.decode(router.control.posts[len(faults)], type=UsageBatch)
        assert 0.1 < last.waited < 30
        assert router.log.read_text().count("usage records are not taken") == 1
        place = tmp_path / "state" / USAGE_DIRECTORY
        until(lambda: not list(place.glob("*.usage")), 5, "the files' end")


def test_a_batch_that_is_refused(tmp_path, upstream):
    """STO-03: it is dropped, counted and told, and holds up none of the others."""
    with Router(tmp_path, tables(upstream)) as router, router.connect() as client:
        router.control.usage_script.append(400)
        first = post(client, CHAT)
        client.answer()
        until(lambda: "the control plane refused usage records" in router.log.read_text(), 5, "the refusal")
        second = post(client, CHAT)
        client.answer()
        record(router, second)
        assert first not in {one.id for one in router.control.records}
        assert "count=1" in router.log.read_text()


def test_an_outage(tmp_path, upstream):
    """STO-03: what came together meanwhile is sent as one batch, with the times at which it happened."""
    with Router(tmp_path, tables(upstream)) as router, router.connect() as client:
        router.control.usage_script += [503] * 4
        times = {}
        while len(router.control.posts) < 4:
            name = post(client, CHAT)
            client.answer()
            times[name] = time.time()
            time.sleep(0.05)
        for name in times:
            record(router, name)
        now = time.time()
        assert len(router.control.counted) < len(times) / 5
        for batch in router.control.counted.values():
            assert all(abs(now - one.ago - times[one.id]) < 30 for one in batch.records)


def test_a_graceful_stop(tmp_path, upstream):
    """STO-03: the last requests are handed over before the process ends."""
    with Router(tmp_path, tables(upstream), workers=2) as router:
        names = []
        for _ in range(20):
            with router.connect() as client:
                names.append(post(client, CHAT))
                client.answer()
        assert router.stop() == 0
        assert sorted(one.id for one in router.control.records) == sorted(names)
        assert not list((tmp_path / "state" / USAGE_DIRECTORY).iterdir())


def test_a_stop_while_nobody_takes_records(tmp_path, upstream):
    """STO-03: it does not wait; the next start sends them, as what they were."""
    with Router(tmp_path, tables(upstream)) as router:
        router.control.usage_script += [503] * 100
        with router.connect() as client:
            names = [post(client, CHAT) for _ in range(5)]
            for _ in names:
                client.answer()
        began = time.monotonic()
        assert router.stop() == 0
        assert time.monotonic() - began < 15
        (file,) = (tmp_path / "state" / USAGE_DIRECTORY).glob("*.usage")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert KEY not in file.read_text()
        router.control.usage_script.clear()
        router.start()
        for name in names:
            record(router, name)
        ((boot, _),) = router.control.counted
        assert file.name.startswith(boot)
        until(lambda: not file.exists(), 5, "the file's end")


class Caller(threading.Thread):
    """Asks some hundred times a second until told to stop; ``done`` are ids and when their answers came."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self._port = port
        self._stop_now = threading.Event()
        self.done = {}

    def run(self):
        while not self._stop_now.is_set():
            try:
                client = Client(self._port)
                with client:
                    while not self._stop_now.is_set():
                        name = post(client, CHAT)
                        client.answer()
                        self.done[name] = time.monotonic()
                        self._stop_now.wait(0.005)
            except (OSError, AssertionError):
                time.sleep(0.02)  # the worker was killed under it

    def end(self):
        self._stop_now.set()
        self.join(10)


@pytest.mark.parametrize("answers", ["taken", "refused", "lost"])
def test_kill_9_of_a_worker(tmp_path, upstream, record_property, answers):
    """STO-03: whatever ended more than a second before is found, once, whether the control plane took records,
    was away, or counted a batch whose acknowledgement got lost."""
    with Router(tmp_path, tables(upstream), workers=2) as router:
        if answers == "refused":
            router.control.usage_script += [503] * 1000
        callers = [Caller(router.port) for _ in range(3)]
        for caller in callers:
            caller.start()
        killed = []
        for _ in range(3):
            seen = len(router.control.posts), sum(len(caller.done) for caller in callers)

            def busy(seen=seen):
                return (
                    len(router.control.posts) > seen[0] + 2 and sum(len(one.done) for one in callers) > seen[1] + 1200
                )

            until(busy, 30, "posts and requests")
            if answers == "lost":
                # The acknowledgement is held back, and its reader is killed.
                router.control.usage_script += ["die"] * 2
                until(lambda: not router.control.usage_script, 10, "both")
            before = router.workers
            os.kill(before[0], signal.SIGKILL)
            killed.append(time.monotonic())
            until(lambda before=before: len(set(router.workers) - {before[0]}) == 2, 10, "a new worker")
        for caller in callers:
            caller.end()
        router.control.usage_script.clear()
        done = {name: at for caller in callers for name, at in caller.done.items()}
        safe = {name for name, at in done.items() if not any(at - 0.1 < kill < at + 1.5 for kill in killed)}
        assert len(safe) > 100
        until(lambda: safe <= {one.id for one in router.control.records}, 30, "every record")
        place = tmp_path / "state" / USAGE_DIRECTORY
        until(lambda: not list(place.glob("*.usage")), 10, "the files' end")
        assert router.stop() == 0
        found = Counter(one.id for one in router.control.records)
        assert max(found.values()) == 1
        record_property("answered", len(done))
        record_property("answered more than a second before a kill", len(safe))
        record_property("of these found", len(safe & set(found)))
        record_property("found", len(found))


def test_kill_9_of_everything(tmp_path, upstream):
    """STO-03: while the control plane is away; the next start hands over what all had, under the names they had."""
    with Router(tmp_path, tables(upstream), workers=2) as router:
        router.control.usage_script += [503] * 1000
        names = []
        for _ in range(30):
            with router.connect() as client:
                names.append(post(client, CHAT))
                client.answer()
        place = tmp_path / "state" / USAGE_DIRECTORY

        def written():
            return sum(file.read_bytes().count(b'"ago"') for file in place.glob("*.usage"))

        until(lambda: written() == len(names), 5, "all on disk")
        boots = {file.name.partition("-")[0] for file in place.glob("*.usage")}
        for worker in router.workers:
            os.kill(worker, signal.SIGKILL)
        router.process.kill()
        router.process.wait()
        router.control.usage_script.clear()
        router.start()
        for name in names:
            record(router, name)
        assert sorted(one.id for one in router.control.records) == sorted(names)
        assert {boot for boot, _ in router.control.counted} == boots
        until(lambda: not list(place.glob("*.usage")), 5, "the files' end")


def test_without_a_disk(tmp_path, upstream):
    """STO-03: said once; requests are answered and records handed over all the same."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / USAGE_DIRECTORY).write_text("")
    with Router(tmp_path, tables(upstream)) as router, router.connect() as client:
        for _ in range(2):
            name = post(client, CHAT)
            assert client.answer().status == 200
            record(router, name)
        assert router.log.read_text().count("usage records cannot be kept on disk") == 1


def test_without_keys(tmp_path, upstream):
    """TEN-06: where keys are off the key is nobody's."""
    with Router(tmp_path, tables(upstream, auth=False)) as router, router.connect() as client:
        name = post(client, CHAT, key="")
        assert client.answer().status == 200
        assert record(router, name).key == ""
