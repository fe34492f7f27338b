"""The keys of external models, read from real files while the process runs (CAT-10, SEC-03)."""

import gevent
import pytest

from controlplane.events import ProviderKeysRead, PublishRoutes
from controlplane.publish import providers
from controlplane.publish.providers import ProviderKeys, read_key
from controlplane.publish.table import Publisher
from llmgw.wire.routing import Endpoint, RoutedModel, decode_table


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A publisher with one external model, its key file, and what the loop was told."""
    monkeypatch.setattr(providers, "AGAIN", 0.01)
    file = tmp_path / "key"
    told: list[ProviderKeysRead] = []
    publisher = Publisher("boot")
    keys = ProviderKeys(publisher, told.append)
    endpoint = Endpoint(id="external:big", host="h", port=443, upstream_model="m", external=True, tls=True)
    models = (RoutedModel(name="big", state="ready", endpoints=(endpoint,)),)
    write(file, "first-key")
    publisher.set_routes(PublishRoutes(models, settling=False, key_files={"external:big": str(file)}))
    keys.start((str(file),))
    yield file, publisher, told
    keys.stop()


def write(file, text: str) -> None:
    fresh = file.with_name("fresh")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.replace(file)


def key_of(publisher: Publisher) -> list[str]:
    return [endpoint.key for model in decode_table(publisher.body).models for endpoint in model.endpoints]


def until(condition) -> None:
    with gevent.Timeout(10):
        while not condition():
            gevent.sleep(0.005)


def test_the_first_table_after_start_has_the_key(site):
    """``start`` has read the files when it returns; the loop is told before it begins."""
    file, publisher, told = site
    assert key_of(publisher) == ["first-key"]
    assert told == [ProviderKeysRead({str(file): ""})]


def test_a_new_key_is_published_by_itself_and_nothing_else_is(site):
    """Rotating the file wakes routers that wait for a new table; reading the same again does not."""
    file, publisher, told = site
    generation = publisher.generation
    assert publisher.wait(generation, 0.1) is None
    write(file, "second-key")
    assert publisher.wait(generation, 10) is not None
    assert key_of(publisher) == ["second-key"]
    assert len(told) == 1


def test_the_loop_is_told_of_a_file_that_goes_and_comes_back(site):
    """The publisher keeps the last key until the loop takes the endpoint out."""
    file, publisher, told = site
    file.unlink()
    until(lambda: len(told) == 2)
    assert "cannot be read: No such file" in told[-1].faults[str(file)]
    assert key_of(publisher) == ["first-key"]
    write(file, "second-key")
    until(lambda: len(told) == 3)
    assert told[-1].faults == {str(file): ""}
    assert key_of(publisher) == ["second-key"]


def test_a_reader_that_breaks_reads_on(site, monkeypatch, caplog):
    """A fault of ours is logged, without the key, and ends nothing."""
    file, publisher, _ = site
    real = providers.read_key
    broken = [True]

    def read(name, ours):
        if broken:
            broken.pop()
            raise RuntimeError("boom")
        return real(name, ours)

    monkeypatch.setattr(providers, "read_key", read)
    until(lambda: not broken)
    write(file, "second-key")
    until(lambda: key_of(publisher) == ["second-key"])
    assert "-key" not in caplog.text.replace("provider-key", "")


def test_a_secret_of_the_control_plane_goes_to_no_provider(tmp_path):
    """SEC-03: whatever a catalog says, and whatever way leads there; the fault tells nothing of it."""
    state = tmp_path / "state"
    state.mkdir()
    token = state / "admin.token"
    write(token, "adm-llmgw-0123456789abcdef")
    (tmp_path / "link").symlink_to(token)
    (tmp_path / "folder").symlink_to(state)
    password = tmp_path / "password"
    write(password, "the-store-s-password")
    write(tmp_path / "provider.key", "provider-key-1")
    ours = (state, password)
    for way in (
        token,
        tmp_path / "link",
        tmp_path / "folder" / "admin.token",
        state / ".." / "state" / "admin.token",
        password,
    ):
        found = read_key(str(way), ours)
        assert found.key == ""
        assert found.fault == (
            f"its key file {way} holds a secret of the control plane itself: give the provider's key a file of its own"
        )
    assert read_key(str(tmp_path / "provider.key"), ours).key == "provider-key-1"
    (tmp_path / "round").symlink_to("round")
    assert "cannot be read" in read_key(str(tmp_path / "round"), ours).fault
