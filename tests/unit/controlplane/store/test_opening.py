"""Which database the settings name, and what they may not hold."""

from pathlib import Path

import pytest
import yaml

from controlplane.settings import load
from controlplane.startup import forget_nothing
from controlplane.store.database import Database
from controlplane.store.errors import StoreError
from controlplane.store.opening import backend_of, url_fault
from controlplane.store.postgresql import Postgresql
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import ApiKey
from llmgw.runtime.settings import Loaded, SettingsError

PASSWORD = "s3cret-Passw0rd"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:///var/lib/llmgw/store.db",
        "postgresql://ada@db.example:5432/llmgw",
        "postgres://ada@[2001:db8::1]/llmgw?sslmode=verify-full",
        "postgresql://ada@one:5432,two:5433/llmgw?target_session_attrs=read-write",
        "postgresql:///llmgw?host=/run/postgresql",
    ],
)
def test_good_urls(url: str) -> None:
    """STO-01: libpq's own form, several hosts too."""
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"postgresql://ada:{PASSWORD}@db/llmgw", "must not hold a password: put it in a file"),
        (f"postgresql://ada@db/llmgw?password={PASSWORD}", "must not hold a password"),
        (f"postgresql://ada@db/llmgw?sslpassword={PASSWORD}", "must not hold a password"),
        (f"mysql://ada:{PASSWORD}@db/llmgw", "must begin with postgresql:// or sqlite:///"),
        (f"/var/lib/{PASSWORD}", "must begin with"),
        (f"postgresql://ada@db/llmgw?passwort={PASSWORD}", "must be like postgresql://user@host:5432/database"),
        (f"postgresql://ada@db:{PASSWORD}/%zz", "must be like"),
        ("postgresql://ada@db", "must name the database"),
        ("postgresql://ada@db/", "must name the database"),
        ("sqlite://relative/path", "must be sqlite:///PATH with an absolute path"),
        ("sqlite:relative", "must be sqlite:///PATH with an absolute path"),
        ("sqlite:///", "must be sqlite:///PATH with an absolute path"),
        ("sqlite:///a?mode=ro", "must be sqlite:///PATH with an absolute path"),
    ],
)
def test_faulty_urls_are_told_without_what_they_hold(tmp_path: Path, url: str, words: str) -> None:
    """SEC-03: a password in the wrong place is not repeated into terminals and logs."""
    file = tmp_path / "controlplane.yaml"
    file.write_text(f"store: {{url: {url!r}}}\n")
    with pytest.raises(SettingsError) as refused:
        load(file)
    assert f"store.url: {words}" in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_names_are_for_people() -> None:
    """SEC-03: whoever reads a log learns which database, and nothing that opens it."""
    for url, name in {
        "postgresql://ada@db.example:5433/llmgw": "postgresql://ada@db.example:5433/llmgw",
        "postgres://db/llmgw?sslmode=require": "postgresql://db/llmgw",
        "postgresql://a@x:1,y:2/llmgw": "postgresql://a@x,y:1,2/llmgw",
        "postgresql://a@[2001:db8::1]:5/llmgw": "postgresql://a@[2001:db8::1]:5/llmgw",
        "postgresql:///llmgw?host=/run/pg": "postgresql:///llmgw (socket in /run/pg)",
    }.items():
        assert Postgresql(url, lambda: PASSWORD).name == name


def test_the_default_is_a_file_in_the_state_directory(tmp_path: Path) -> None:
    """STO-01: nothing to set up."""
    backend = backend_of("", None, tmp_path)
    assert isinstance(backend, Sqlite) and backend.file == tmp_path / "llmgw.db"


def test_an_empty_store_is_no_successor_of_a_used_one(tmp_path: Path) -> None:
    """STO-02: only what people made counts, and only where the settings name another store than that."""
    state, other = tmp_path / "state", tmp_path / "other.db"
    state.mkdir()

    def settings(url: str) -> Loaded:
        file = tmp_path / "controlplane.yaml"
        file.write_text(yaml.safe_dump({"state_dir": str(state), "store": {"url": url}}))
        return load(file, {})

    def key(file: Path, name: str) -> None:
        database = Database(Sqlite(file)).open()
        made = ApiKey(name, name, "sk-", name, 1.0, "ada")
        database.transact(lambda tx: tx.keys.add(made))
        database.close()

    elsewhere = settings(f"sqlite://{other}")
    forget_nothing(elsewhere)  # there is no other
    Database(Sqlite(state / "llmgw.db")).open().close()
    forget_nothing(elsewhere)  # nobody made anything in it
    key(state / "llmgw.db", "old")
    with pytest.raises(
        SettingsError, match=r"store\.url: names an empty store .*llmgw store move.*move .*llmgw\.db away"
    ):
        forget_nothing(elsewhere)
    assert not other.exists(), "to look makes no file"
    forget_nothing(settings(""))
    forget_nothing(settings(f"sqlite://{state}/llmgw.db"))
    key(other, "new")
    forget_nothing(elsewhere)


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    """STO-01: the file that was named is the one that is opened."""
    folder = tmp_path / "a b?c#d%20e"
    folder.mkdir()
    Database(backend_of("", None, folder)).open().close()
    assert (folder / "llmgw.db").stat().st_size > 0
    named = backend_of(f"sqlite://{tmp_path}/x%20y.db", None, tmp_path)
    assert isinstance(named, Sqlite) and named.file == tmp_path / "x y.db"


def test_a_password_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """SEC-03: as every file with a secret."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    file.chmod(0o644)
    backend = backend_of(f"postgresql://ada@/llmgw?host={tmp_path}", file, tmp_path)
    with pytest.raises(
        StoreError, match=r"store\.password_file .*password can be read by others: run chmod 600"
    ) as refused:
        Database(backend).open()
    assert PASSWORD not in str(refused.value)
