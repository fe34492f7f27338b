"""External models, fallbacks, weighted aliases, judges and adapters in the route table
(CAT-10, CAT-11, CAT-13, CAT-14)."""

import os
from dataclasses import replace
from types import MappingProxyType

import pytest

from controlplane.catalog.model import Adapter, Catalog, External, Model, WeightedAlias
from controlplane.events import CatalogChanged, ProviderKeysRead, ServingSet
from controlplane.planning.explain import explain
from controlplane.publish.providers import KeyFile, ProviderKeys, read_key
from controlplane.publish.table import Publisher
from llmgw.wire.routing import Endpoint, RoutedAlias, RouteTable, decode_table
from tests.unit.controlplane.core.harness import ONE_MODEL, Harness, catalog_of

SECRET = "sk-provider-123"
FILE = "/keys/big"
BIG = Model("big", (), external=External("https://api.example.com/openai/v1", "gpt-huge", FILE))


def with_models(*models: Model, text: str = ONE_MODEL, aliases: dict[str, WeightedAlias] | None = None) -> Catalog:
    base = catalog_of(text)
    return replace(
        base,
        models=MappingProxyType({**base.models, **{model.name: model for model in models}}),
        aliases=MappingProxyType(aliases or {}),
    )


def harness(*models: Model, **options) -> Harness:
    h = Harness()
    h.feed(CatalogChanged(with_models(*models, **options)))
    h.advance(5)
    return h


class Site:
    """The loop's tables through the real publisher and key reader; ``files`` is the disk."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.files: dict[str, KeyFile] = {}
        self.reads: list[frozenset[str]] = []
        self.publisher = Publisher("boot-a")
        self.keys = ProviderKeys(self.publisher, h.feed, self._read)
        self.shown = 0

    def _read(self, files):
        self.reads.append(frozenset(files))
        return {file: self.files.get(file, KeyFile(fault="is missing")) for file in files}

    def step(self) -> RouteTable:
        """Publish what the loop said, read what that asks for, until nothing is new."""
        while self.shown < len(self.h.tables):
            effect = self.h.tables[self.shown]
            self.shown += 1
            again = self.keys.need(effect.key_files.values())
            self.publisher.set_routes(effect)
            if again:
                self.keys.look()
        return self.table

    @property
    def table(self) -> RouteTable:
        return decode_table(self.publisher.body)


def big(table: RouteTable):
    return next(model for model in table.models if model.name == "big")


def test_an_external_model_is_one_endpoint_with_its_key():
    """CAT-10: routed once its key was read: where, as what, with which key."""
    site = Site(harness(BIG))
    site.files[FILE] = KeyFile(key=SECRET)
    table = site.step()
    assert big(table).state == "ready"
    assert big(table).endpoints == (
        Endpoint(
            id="external:big",
            host="api.example.com",
            port=443,
            upstream_model="gpt-huge",
            key=SECRET,
            external=True,
            tls=True,
            prefix="/openai/v1",
        ),
    )
    h = site.h
    assert not h.replicas("big")
    assert "big" not in h.view.health
    told = explain(h.view, "big", h.clock.monotonic())
    assert (told.state, told.wanted, told.live, told.ready, told.blockers, told.verdicts) == ("ready", 0, 0, 0, (), ())


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://10.1.2.3:8000/v1/", ("10.1.2.3", 8000, False, "/v1")),
        ("https://[2001:db8::1]/v1", ("2001:db8::1", 443, True, "/v1")),
        ("http://proxy.internal", ("proxy.internal", 80, False, "")),
    ],
)
def test_the_url_says_where(url, where):
    """CAT-10: host, port, TLS and prefix; without a key file nothing is waited for."""
    h = harness(Model("big", (), external=External(url, "m")))
    (endpoint,) = h.table["big"].endpoints
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.prefix) == where


def test_the_key_never_passes_through_the_loop():
    """SEC-03: neither view, decisions nor effects of the loop hold it."""
    site = Site(harness(BIG))
    site.files[FILE] = KeyFile(key=SECRET)
    site.step()
    h = site.h
    assert SECRET not in repr((h.view, h.tables, h.decisions, h.notes))
    assert SECRET not in repr(site.files)


def test_no_table_is_without_the_key_that_its_endpoint_needs():
    """CAT-10: a model that comes is loading until its key was read, never sent out without."""
    site = Site(harness(BIG))
    h = site.h
    assert h.table["big"].state == "loading"
    assert "being read" in h.table["big"].reason
    site.files[FILE] = KeyFile(key=SECRET)
    bodies = []
    real = site.publisher._publish
    site.publisher._publish = lambda: (real(), bodies.append(site.publisher.body))
    site.step()
    assert len(bodies) >= 2
    for body in bodies:
        assert all(endpoint.key == SECRET for endpoint in big(decode_table(body)).endpoints)


def test_a_rotated_key_is_published_without_a_restart_and_only_when_it_changed():
    """CAT-10: the file is read again and again; the table changes with the key."""
    site = Site(harness(BIG))
    site.files[FILE] = KeyFile(key=SECRET)
    site.step()
    before = site.publisher.generation
    site.keys.look()
    assert site.publisher.generation == before
    site.files[FILE] = KeyFile(key="sk-next")
    site.keys.look()
    assert site.publisher.generation != before
    assert big(site.table).endpoints[0].key == "sk-next"


def test_a_key_that_goes_makes_the_model_unplaceable_with_the_words():
    """CAT-10: said in the table and noted once; back with the file."""
    site = Site(harness(BIG))
    site.files[FILE] = KeyFile(key=SECRET)
    site.step()
    del site.files[FILE]
    site.keys.look()
    table = site.step()
    assert (big(table).state, big(table).endpoints) == ("unplaceable", ())
    assert big(table).reason == "external model big has no key: is missing"
    site.keys.look()
    assert [note.reason for note in site.h.kinds("provider-key")] == ["is missing"]
    site.files[FILE] = KeyFile(key="sk-next")
    site.keys.look()
    assert big(site.step()).endpoints[0].key == "sk-next"


def test_another_file_is_read_before_the_endpoint_is_routed_again():
    """CAT-06, CAT-10: a changed key file name takes effect at once, never with the old key."""
    site = Site(harness(BIG))
    site.files[FILE] = KeyFile(key=SECRET)
    site.step()
    other = External("https://api.example.com/v1", "gpt-huge", "/keys/other")
    site.files["/keys/other"] = KeyFile(key="sk-other")
    site.h.feed(CatalogChanged(with_models(replace(BIG, external=other))))
    assert big(site.step()).endpoints[0].key == "sk-other"
    assert site.reads[-1] == {"/keys/other"}


def test_stopping_serving_stops_external_models_too():
    """REC-31: every model says stopped, and none has an endpoint."""
    site = Site(harness(BIG))
    site.files[FILE] = KeyFile(key=SECRET)
    site.step()
    site.h.feed(ServingSet(True, "anna"))
    table = site.step()
    assert (big(table).state, big(table).endpoints) == ("stopped", ())


def test_a_model_that_becomes_external_lets_its_replicas_go():
    """CAT-06, CAT-07: an edit over the API; what ran drains, the provider serves."""
    h = Harness(drain_grace=20.0)
    h.advance(5)
    tiny = Model("tiny", (), external=External("http://other.internal/v1", "tiny"))
    h.feed(CatalogChanged(replace(catalog_of(ONE_MODEL), models={"tiny": tiny})))
    assert h.table["tiny"].endpoints[-1].external
    h.advance(60)
    assert not h.replicas()
    h.reload(ONE_MODEL)
    h.advance(5)
    assert h.only().state == "ready"
    assert not h.kinds("quarantine")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"", 0o600, "is empty"),
        (b"  \n", 0o600, "is empty"),
        (b"x" * 5000, 0o600, "more than 4096 bytes"),
        (b"two words", 0o600, "the key alone"),
        ("schlüssel".encode(), 0o600, "in ASCII"),
        (b"a\x00b", 0o600, "in ASCII"),
        (b"key", 0o640, "can be used by others: run chmod 600"),
        (b"key", 0o604, "can be used by others: run chmod 600"),
    ],
)
def test_a_bad_key_file_is_told_in_words(tmp_path, content, mode, words):
    """CAT-10, SEC-03: what is wrong and what to do; nothing of the content."""
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    read = read_key(str(file))
    assert words in read.fault
    assert str(file) in read.fault
    assert read.key == ""
    assert "schl" not in read.fault


def test_key_files_that_are_none(tmp_path):
    """A missing file, a directory and a pipe hold nobody up."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in (("missing", "No such file"), (".", "directory"), ("pipe", "no regular file")):
        assert words.lower() in read_key(str(tmp_path / name)).fault.lower()


def test_a_good_key_file(tmp_path):
    """White space around the key is none of it."""
    file = tmp_path / "key"
    file.write_text(f"  {SECRET}\n")
    file.chmod(0o600)
    assert read_key(str(file)) == KeyFile(key=SECRET)


def test_fallbacks_judges_and_weighted_aliases_travel():
    """CAT-10, CAT-11, CAT-13: what routers need to know of them."""
    judge = replace(BIG, name="judge", role="guard", external=External("http://j.internal/v1", "j"))
    main = replace(BIG, name="main", fallbacks=("tiny", "big"), external=External("http://m.internal/v1", "m"))
    h = harness(judge, main, aliases={"chat": WeightedAlias("chat", (("main", 0.9), ("tiny", 0.1)), sticky=True)})
    assert (h.table["judge"].guard, h.table["judge"].listed) == (True, False)
    assert (h.table["main"].guard, h.table["main"].listed) == (False, True)
    assert h.table["main"].fallbacks == ("tiny", "big")
    assert h.tables[-1].aliases == (RoutedAlias(name="chat", targets=(("main", 0.9), ("tiny", 0.1)), sticky=True),)
    site = Site(h)
    assert site.step().aliases == h.tables[-1].aliases


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            Model("extra", (), adapter=Adapter("tiny", "file:/a")),
            "extra is an adapter on tiny; adapters are not loaded",
        ),
        (Model("extra", ()), "extra has no profile"),
    ],
)
def test_what_cannot_be_served_says_so_and_nothing_is_placed(model, words):
    """CAT-14: an adapter, and a model without a profile, are unplaceable with the words."""
    h = harness(model)
    assert h.table["extra"].state == "unplaceable"
    assert words in h.table["extra"].reason
    assert not h.replicas("extra")
    assert h.only("tiny").state == "ready"


def test_the_loop_alone_never_routes_an_endpoint_whose_key_is_faulty():
    """CAT-10: also while it settles."""
    h = Harness(nodes=("n1", "n2"), connect=False)
    h.feed(CatalogChanged(with_models(BIG)))
    h.settle()
    assert h.table["big"].state == "loading"
    h.feed(ProviderKeysRead({FILE: "is missing"}))
    h.settle()
    assert h.table["big"].state == "unplaceable"
    h.feed(ProviderKeysRead({FILE: ""}))
    h.settle()
    assert h.view.settling.active
    assert h.table["big"].state == "ready"
