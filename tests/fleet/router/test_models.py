"""Which model answers: fallbacks (CAT-10), weighted aliases (CAT-13), judges (CAT-11)."""

import json
import threading
from collections import Counter

import pytest

from llmgw.wire.routing import Endpoint, RoutedAlias, RoutedModel
from tests.fakes import upstream as fake
from tests.fakes.upstream import FakeUpstream
from tests.fleet.router.process import KEY, Router, endpoint, routed_key, table_of, until

NARROW = "sk-llmgw-narrow-0123456789abcdef"
ALIASED = "sk-llmgw-aliased-0123456789abcdef"
KEYS = [f"sk-llmgw-{nth:02}-0123456789abcdef" for nth in range(30)]


@pytest.fixture(scope="module")
def engines():
    made = {name: FakeUpstream(name) for name in ("main", "second", "third", "judge")}
    yield made
    for one in made.values():
        one.stop()


@pytest.fixture
def seen(engines):
    """How many requests each engine got since the test began."""
    before = {name: len(one.received) for name, one in engines.items()}
    return lambda: {name: n for name, one in engines.items() if (n := len(one.received) - before[name])}


def external(upstream, name):
    return Endpoint(id=name, host="localhost", port=upstream.port, upstream_model=upstream.name, external=True)


def gone(name="gone"):
    """An endpoint that does not listen."""
    closed = FakeUpstream()
    closed.stop()
    return Endpoint(id=name, host="127.0.0.1", port=closed.port, upstream_model="main")


def tables(engines):
    main, second, third = (endpoint(engines[name], name) for name in ("main", "second", "third"))
    provider = external(engines["third"], "provider")
    both = (("second", 1.0), ("third", 3.0))
    return table_of(
        RoutedModel(name="second", state="ready", endpoints=(second,)),
        RoutedModel(name="third", state="ready", endpoints=(third,)),
        RoutedModel(name="main", state="ready", endpoints=(main,), fallbacks=("second",), aliases=("the main",)),
        RoutedModel(name="no room", state="unplaceable", reason="needs 80 GB", fallbacks=("loading", "provider")),
        RoutedModel(name="loading", state="loading", reason="3 of 16 GB", fallbacks=("second",), retry_after=17),
        RoutedModel(name="provider", state="ready", endpoints=(provider,)),
        RoutedModel(name="parked", state="parked", fallbacks=("off", "stopped", "judge", "nobody")),
        RoutedModel(name="off", state="off", endpoints=(main,), fallbacks=("second",)),
        RoutedModel(name="stopped", state="stopped", fallbacks=("second",)),
        RoutedModel(name="down", state="ready", endpoints=(gone(),), fallbacks=("third",)),
        RoutedModel(name="all down", state="ready", endpoints=(gone("g1"),), fallbacks=("also down",)),
        RoutedModel(name="also down", state="ready", endpoints=(gone("g2"),)),
        RoutedModel(name="judge", state="ready", endpoints=(endpoint(engines["judge"], "judge"),), guard=True),
        keys=(
            routed_key(),
            routed_key(NARROW, "narrow", models=("no room", "second")),
            routed_key(ALIASED, "aliased", models=("canary",)),
            *(routed_key(key, f"k{nth}") for nth, key in enumerate(KEYS)),
        ),
        aliases=(
            RoutedAlias(name="canary", targets=both),
            RoutedAlias(name="sticky", targets=both, sticky=True),
            RoutedAlias(name="half there", targets=(("third", 1.0), ("loading-too", 99.0), ("parked", 99.0))),
            RoutedAlias(name="nowhere", targets=(("parked", 1.0),)),
            RoutedAlias(name="guarded", targets=(("judge", 1.0),)),
            RoutedAlias(name="the main", targets=both),
        ),
    )


@pytest.fixture(scope="module")
def router(tmp_path_factory, engines):
    with Router(tmp_path_factory.mktemp("router"), tables(engines)) as one:
        yield one


@pytest.fixture
def ask(router):
    def asks(model, key=KEY, **fields):
        with router.connect() as client:
            client.post(json.dumps({"model": model, "messages": [], **fields}), key=key)
            return client.answer()

    return asks


# ----------------------------------------------------------------------- fallbacks


def test_a_model_that_serves_needs_no_fallback(ask, seen):
    """CAT-10: and its answer names no model; nor does one by a plain alias."""
    for name in ("main", "the main"):
        answer = ask(name)
        assert answer.status == 200
        assert "x-llmgw-model" not in answer.headers
    assert seen() == {"main": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_without_room_is_answered_by_its_fallback(ask, engines, seen, stream):
    """CAT-10: in order, and the fallbacks of a fallback before the next; the client is told which model answered, and
    the engine is asked by its own name for it."""
    answer = ask("no room", stream=stream)
    assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "second")
    assert engines["second"].received[-1].json["model"] == "second"
    assert seen() == {"second": 1}


def test_a_provider_takes_what_the_cluster_has_no_room_for(ask, engines, seen):
    """CAT-10: when the fallbacks ahead of it fail as well."""
    for _ in range(2):
        engines["second"].script.append(fake.refuse(503))
    answer = ask("no room")
    assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "provider")
    assert seen() == {"second": 1, "third": 1}
    engines["second"].script.clear()


def test_the_right_to_the_model_asked_for_is_enough(ask, engines):
    """CAT-10: a key limited to a model gets its fallbacks as well, but only by way of it."""
    for _ in range(2):
        engines["second"].script.append(fake.refuse(503))
    assert ask("no room", NARROW).headers["x-llmgw-model"] == "provider"
    engines["second"].script.clear()
    assert ask("provider", NARROW).code == "model_not_allowed"


def test_a_model_that_cannot_be_reached(router, ask, seen):
    """CAT-10: its fallback answers, and for the next seconds at once: the model is not tried first again."""
    for _ in range(3):
        answer = ask("down")
        assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "third")
    assert seen() == {"third": 3}

    def records():
        return [one for one in router.control.records if one.asked == "down"]

    until(lambda: len(records()) == 3, 10, "their records")
    assert [len(one.retried) for one in records()] == [1, 0, 0]


def test_a_model_that_fails(ask, engines, seen):
    """RTR-08: before the first byte; after it nothing else is tried."""
    engines["main"].script += [fake.reset, fake.reset]  # the first may meet a reused connection, which is replaced
    answer = ask("main")
    engines["main"].script.clear()
    assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "second")
    engines["main"].script.append(fake.cut(fake.chunked(fake.event({"choices": []}))))
    cut = ask("main", stream=True)
    assert not cut.complete
    assert seen()["second"] == 1


@pytest.mark.parametrize("status", [400, 429, 500])
def test_an_answer_about_the_request_is_the_answer(ask, engines, seen, status):
    """RTR-08: another model is not asked what this one has answered."""
    engines["main"].script.append(fake.refuse(status))
    assert ask("main").status == status
    assert seen() == {"main": 1}


@pytest.mark.parametrize(("model", "status", "code"), [("off", 404, "model_off"), ("stopped", 503, "system_stopped")])
def test_what_people_switched_off_has_no_fallback(ask, seen, model, status, code):
    """CAT-05: off is off."""
    answer = ask(model)
    assert (answer.status, answer.code) == (status, code)
    assert seen() == {}


def test_fallbacks_that_are_none(ask, seen):
    """CAT-11: what is off, stopped, a judge or unknown is passed over; the answer is the model's own."""
    answer = ask("parked")
    assert (answer.status, answer.code) == (503, "model_parked")
    assert seen() == {}


def test_when_nobody_answers(ask):
    """RTR-02: the error is the model's own, and says what became of its fallbacks, also while none is tried first
    because it could not be reached lately."""
    for _ in range(2):
        answer = ask("all down")
        assert (answer.status, answer.code) == (502, "upstream_error")
        message = answer.json["error"]["message"]
        assert message.startswith("The engine does not accept connections.")
        assert "Its fallback also down did not answer either: the engine does not accept connections." in message


def test_the_state_rules_when_the_fallback_fails(tmp_path):
    """RTR-02: with the model's own Retry-After."""
    models = (
        RoutedModel(name="loading", state="loading", reason="3 of 16 GB", retry_after=17, fallbacks=("down",)),
        RoutedModel(name="down", state="ready", endpoints=(gone(),)),
    )
    with Router(tmp_path, table_of(*models)) as router, router.connect() as client:
        client.post('{"model":"loading"}')
        answer = client.answer()
    assert (answer.code, answer.headers["retry-after"]) == ("model_loading", "17")
    message = answer.json["error"]["message"]
    assert "3 of 16 GB" in message
    assert "Its fallback down did not answer either" in message


def test_a_full_model_overflows(tmp_path, engines, seen):
    """CAT-10: one with all the requests it can take is no refusal while a fallback has room."""
    release = threading.Event()
    first = fake.event({"choices": []})
    engines["main"].script.append(fake.hold(fake.chunked(first), release, fake.chunked(fake.DONE) + fake.LAST))
    models = (
        RoutedModel(name="a", state="ready", endpoints=(endpoint(engines["main"], max_inflight=1),), fallbacks=("b",)),
        RoutedModel(name="b", state="ready", endpoints=(endpoint(engines["second"], "e2", max_inflight=1),)),
    )
    with Router(tmp_path, table_of(*models)) as router, router.connect() as busy, router.connect() as client:
        busy.post('{"model":"a","stream":true}')
        busy.read_until(first)
        client.post('{"model":"a"}')
        answer = client.answer()
        assert (answer.status, answer.headers["x-llmgw-model"]) == (200, "b")
        engines["second"].script.append(fake.hold(fake.chunked(first), release, fake.chunked(fake.DONE) + fake.LAST))
        with router.connect() as also:
            also.post('{"model":"b","stream":true}')
            also.read_until(first)
            client.post('{"model":"a"}')
            assert client.answer().code == "overloaded"
            release.set()
            assert also.answer().complete
    assert seen() == {"main": 1, "second": 2}


def test_a_provider_that_is_withdrawn_is_gone_while_the_control_plane_settles(tmp_path, engines):
    """REC-25: it is written in the catalog: no agent has to be heard first, so what the table lacks is not kept."""
    with_it = RoutedModel(name="p", state="ready", endpoints=(external(engines["third"], "provider"),))
    with Router(tmp_path, table_of(with_it)) as router:

        def status():
            with router.connect() as client:
                client.post('{"model":"p"}')
                return client.answer().status

        assert status() == 200
        router.control.publish(table_of(RoutedModel(name="p", state="loading"), generation="g2", settling=True))
        until(lambda: status() == 503, 5, "the new table")


# ----------------------------------------------------------------- weighted aliases


def test_weights_share_the_requests(ask, engines, seen):
    """CAT-13: about a quarter and three quarters of 300; the client is told which it was."""
    told = Counter(ask("canary").headers["x-llmgw-model"] for _ in range(300))
    assert told == seen()
    assert 35 < told["second"] < 120  # 75 expected: a share this far off comes once in a million runs
    assert engines["third"].received[-1].json["model"] == "third"


def test_a_sticky_alias_stays_with_the_key(ask):
    """CAT-13: one key always gets the same model, keys together follow the weights."""
    given = {key: ask("sticky", key).headers["x-llmgw-model"] for key in KEYS}
    assert set(given.values()) == {"second", "third"}
    for key in KEYS[:10]:
        assert {ask("sticky", key).headers["x-llmgw-model"] for _ in range(3)} == {given[key]}


def test_a_target_without_endpoints_is_passed_over(ask, seen):
    """CAT-13: whatever its weight."""
    assert {ask("half there").status for _ in range(10)} == {200}
    assert seen() == {"third": 10}
    assert ask("nowhere").code == "model_parked"


def test_what_a_key_may_use_of_an_alias(ask, seen):
    """CAT-13: only models it may use are drawn; the alias itself may be allowed; none at all is 403."""
    assert {ask("canary", NARROW).headers["x-llmgw-model"] for _ in range(10)} == {"second"}
    assert {ask("canary", ALIASED).status for _ in range(3)} == {200}
    assert ask("half there", NARROW).code == "model_not_allowed"
    assert "main" not in seen()


# ------------------------------------------------------------------- lists, judges


def test_what_is_listed(router):
    """CAT-11, CAT-13: weighted aliases as other aliases are; no judge, nor a name for one."""

    def listed(key):
        return {entry["id"] for entry in router.get("/v1/models", f"Authorization: Bearer {key}").json["data"]}

    everything = listed(KEY)
    assert {"canary", "sticky", "half there", "nowhere", "main", "the main"} <= everything
    assert not everything & {"judge", "guarded", "off"}
    assert listed(NARROW) == {"no room", "second", "canary", "sticky"}
    assert listed(ALIASED) == {"canary"}
    one = router.get("/v1/models/canary", f"Authorization: Bearer {KEY}")
    assert (one.status, one.json["id"]) == (200, "canary")
    assert router.get("/v1/models/canary", f"Authorization: Bearer {KEYS[0]}").status == 200
    assert router.get("/v1/models/half%20there", f"Authorization: Bearer {NARROW}").status == 404


@pytest.mark.parametrize("name", ["judge", "guarded"])
def test_a_judge_is_nobodys_to_ask(router, ask, seen, name):
    """CAT-11: as if there were none."""
    answer = ask(name)
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert router.get(f"/v1/models/{name}", f"Authorization: Bearer {KEY}").status == 404
    assert seen() == {}


def test_a_judge_is_reported(router):
    """DEM-01: its endpoint is in the reports like any other's."""
    until(lambda: router.control.reports, 5, "a report")
    assert "judge" in {load.id for load in router.control.reports[-1].endpoints}
