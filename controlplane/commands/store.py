"""``llmgw store``: check, backup, restore, move (STO-02)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from controlplane.commands.shared import (
    Plainly,
    backend,
    bars,
    config,
    directory,
    example,
    facts,
    output,
    say,
    size,
    table,
)
from controlplane.history import position_of
from controlplane.journal import JOURNAL
from controlplane.store import move as moving
from controlplane.store import schema
from controlplane.store.backup import Made, Manifest, back_up, read_manifest, unpacked, upgraded
from controlplane.store.check import Found, look
from controlplane.store.database import Backend, Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.opening import backend_of, url_fault
from controlplane.store.restore import Revived, replace, revived
from controlplane.store.scratch import scratch
from controlplane.store.sqlite import Sqlite
from controlplane.usage.intake import SPOOL
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.settings import Loaded

MOST_TOLD = 20

BACKUPS = "backups"
"""Directory of the state directory."""


@click.group(
    cls=Plainly,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example("llmgw store check", "llmgw store backup --to /srv/backups/llmgw.backup"),
)
def store() -> None:
    """Look at, back up, restore and move what the control plane keeps."""


# ---------------------------------------------------------------- check


@store.command(epilog=example("llmgw store check", "llmgw store check -o json"))
@config
@output
def check(settings: Loaded, form: str) -> None:
    """Look at the store in use: schema, size, rows, integrity, and what waits for it.

    Changes nothing, and may be used while the control plane runs. Exit status 1 if
    something is wrong.
    """
    found = look(backend(settings), settings["state_dir"] / SPOOL)
    if form == "json":
        facts({"ok": not found.faults, **_plain(found)})
    else:
        _show(found)
    if found.faults:
        raise SystemExit(1)


def _plain(found: Found) -> dict[str, Any]:
    values = {
        "store": found.store,
        "schema": found.schema,
        "newest_schema": found.newest_schema,
        "bytes": found.bytes,
        "epoch": found.epoch,
        "rows": found.rows,
        "spooled_batches": found.spooled,
        "spooled_bytes": found.spooled_bytes,
        "faults": found.faults,
    }
    return {name: value for name, value in values.items() if value is not None}


def _show(found: Found) -> None:
    newest = "" if found.schema == found.newest_schema else f" (this program's is {found.newest_schema})"
    waits = f"{found.spooled} batches, {size(found.spooled_bytes)}" if found.spooled else "nothing"
    facts_shown = [
        ("store", found.store),
        ("schema", None if found.schema is None else f"{found.schema}{newest}"),
        ("size", size(found.bytes)),
        ("last epoch", found.epoch),
        ("usage waiting", waits if found.spooled is not None else None),
    ]
    table(("what", "is"), facts_shown)
    if found.rows:
        click.echo()
        table(("table", "rows"), [(name, f"{rows:,}") for name, rows in sorted(found.rows.items())], numbers=(1,))
    click.echo()
    for fault in found.faults:
        click.echo(f"wrong: {fault}")
    if not found.faults:
        click.echo("Nothing is wrong.")


# ---------------------------------------------------------------- backup


@store.command(epilog=example("llmgw store backup", "llmgw store backup --to /srv/backups/llmgw-monday.backup"))
@config
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="FILE", help="A new file (default: in STATE_DIR/backups)."
)
@output
def backup(settings: Loaded, to: Path | None, form: str) -> None:
    """Write everything to one file, as of one moment. The control plane may run meanwhile.

    The file holds secrets (the engines' secret, digests of keys and tokens): it can be
    read by its owner only. Keep it so. It is read back before this ends well.
    """
    file = to or _backup_file(settings, "llmgw")
    with bars() as progress:
        made = back_up(backend(settings), file, SystemClock(), progress)
    if to is None:
        moving.give_to_owner(file)
    _tell_backup(made, form)


def _backup_file(settings: Loaded, name: str) -> Path:
    folder = settings["state_dir"] / BACKUPS
    directory(settings["state_dir"])
    directory(folder)
    moment = SystemClock().now().strftime("%Y%m%dT%H%M%SZ")
    return Path(folder) / f"{name}-{moment}.backup"


def _tell_backup(made: Made, form: str) -> None:
    rows = sum(found.rows for found in made.manifest.sums().values())
    if form == "json":
        facts({"file": str(made.file), "bytes": made.size, **_told(made.manifest)})
        return
    click.echo(made.file)
    say(f"{rows:,} rows of {made.manifest.store}, {size(made.size)}, read back and verified.")
    say("It holds secrets: keep it where only administrators can read it.")


def _told(manifest: Manifest) -> dict[str, Any]:
    return {
        "made_at": manifest.made_at,
        "store": manifest.store,
        "schema": manifest.schema,
        "rows": {name: found.rows for name, found in manifest.sums().items()},
    }


# ---------------------------------------------------------------- restore


@store.command(
    epilog=example("llmgw store restore /srv/backups/llmgw.backup", "llmgw store restore llmgw.backup --replace")
)
@config
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", "replacing", is_flag=True, help="Replace what the store holds now; it is backed up first.")
@output
def restore(settings: Loaded, file: Path, replacing: bool, form: str) -> None:
    """Put a backup in the place of the store. The control plane must be stopped.

    FILE may be a backup of another kind of database or of an older release. Agents obey
    the restored control plane: its epoch is raised above those that they saw.
    """
    manifest = read_manifest(file)
    target = backend(settings)
    with _working(settings) as folder, moving.alone(backend(settings, lock="exclusive")):
        full = _holds_something(target)
        if full and not replacing:
            raise StoreError(
                f"{target.name}: it is not empty: use --replace to put the backup in its place "
                "(what is there now is backed up first)"
            )
        totals = {name: found.rows for name, found in manifest.sums().items()}
        with bars(totals) as progress, unpacked(file, folder / "restore", progress) as (_, content):
            kept = _keep_old(settings, target) if full else None
            again = revived(target, upgraded(content)) if full else ()
            epoch = replace(target, content, progress)
            # Events since the backup are in the journal: they are handed over once more.
            position_of(settings["state_dir"] / JOURNAL).unlink(missing_ok=True)
    if form == "json":
        result = {"store": target.name, "epoch": epoch, **({"replaced": str(kept)} if kept else {})}
        if again:
            result["valid_again"] = [{"kind": one.kind, "id": one.id, "name": one.name} for one in again]
        facts({**result, **_told(manifest)})
        return
    if kept:
        say(f"What was there is kept in {kept}")
    rows = sum(found.rows for found in manifest.sums().values())
    made = manifest.made_at[:16].replace("T", " ")
    click.echo(f"{target.name} holds the backup of {made} UTC: {rows:,} rows, verified.")
    say(f"Epochs go on after {epoch}, so that agents obey. Start the control plane: llmgw server")
    _tell_revived(again, bool(kept))


def _tell_revived(again: tuple[Revived, ...] | None, replaced: bool) -> None:
    if again is None and replaced:
        say("What was revoked since that backup is valid again; the old store could not be read to tell what that is.")
    elif again:
        say(f"{len(again)} that were revoked, disabled or removed since that backup are valid again:")
        for one in again[:MOST_TOLD]:
            say(f"  {one.kind} {one.id}" + (f" ({one.name})" if one.name != one.id else ""))
        if len(again) > MOST_TOLD:
            say(f"  and {len(again) - MOST_TOLD} more (-o json names all)")
        say(
            "Take them away again: llmgw keys revoke, llmgw ctl token revoke, llmgw ctl user set --disable, "
            "llmgw ctl cert revoke."
        )


@contextmanager
def _working(settings: Loaded) -> Iterator[Path]:
    directory(settings["state_dir"])
    with scratch(settings["state_dir"]) as folder:
        yield folder


def _holds_something(target: Backend) -> bool:
    if isinstance(target, Sqlite):
        return target.file.exists() and target.file.stat().st_size > 0 and not _sqlite_empty(target)
    with moving.reading(target) as connection:
        return not moving.empty(connection)


def _sqlite_empty(target: Sqlite) -> bool:
    try:
        with moving.reading(target) as connection:
            return moving.empty(connection)
    except StoreError:
        return False  # damaged: it may hold something


def _keep_old(settings: Loaded, target: Backend) -> Path:
    """Back up what is to be replaced. A SQLite file that is too damaged for that is moved aside."""
    file = _backup_file(settings, "before-restore")
    try:
        kept = back_up(target, file, SystemClock()).file
        moving.give_to_owner(kept)
        return kept
    except StoreError as error:
        if not isinstance(target, Sqlite):
            raise StoreError(
                f"what is there cannot be backed up ({error}): make an empty database and name it in store.url"
            ) from error
        aside = target.file.with_name(f"{target.file.name}.{file.stem}")
        for suffix in ("", "-wal", "-shm"):
            old = target.file.with_name(target.file.name + suffix)
            if old.exists():
                old.rename(aside.with_name(aside.name + suffix))
        return aside


# ---------------------------------------------------------------- move


@store.command(
    epilog=example(
        "llmgw store move --to postgresql://llmgw@db.example:5432/llmgw --password-file /etc/llmgw/db-password",
        "llmgw store move --to sqlite:///var/lib/llmgw/controlplane/llmgw.db",
    )
)
@config
@click.option(
    "--to", "url", required=True, metavar="URL", help="postgresql://USER@HOST:PORT/DATABASE or sqlite:///PATH."
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File (mode 0600) with the password for it.",
)
@output
def move(settings: Loaded, url: str, password_file: Path | None, form: str) -> None:
    """Copy everything, secrets too, into another, empty database, and verify it.

    The control plane must be stopped. The store in use is only read: it stays as it is,
    and in use until the settings name the other.
    """
    if words := url_fault(url):
        raise click.UsageError(f"--to {words.replace('store.password_file', '--password-file')}")
    source = backend(settings)
    target, locked = (backend_of(url, password_file, settings["state_dir"], lock=lock) for lock in (None, "exclusive"))
    if isinstance(source, Sqlite) and not source.file.exists():
        raise StoreError(f"{source.name}: there is no store yet, so there is nothing to move: set store.url and start")
    _not_the_same(source, target)
    try:
        with moving.alone(backend(settings, lock="exclusive")), moving.alone(locked):
            copied = _copy(source, target)
    except (StoreError, StoreUnavailable) as error:
        raise type(error)(_of_target(str(error), target)) from error
    rows = sum(found.rows for found in copied.values())
    if form == "json":
        tables = {name: {"rows": found.rows, "checksum": found.checksum} for name, found in copied.items()}
        facts({"from": source.name, "to": target.name, "tables": tables})
        return
    table(
        ("table", "rows", "checksum"),
        [(name, f"{found.rows:,}", found.checksum) for name, found in sorted(copied.items())],
        numbers=(1,),
    )
    click.echo(f"\n{rows:,} rows are in {target.name}; counts and checksums agree. {source.name} is as it was.")
    say("To use it, set this in the control plane's settings, then start it:")
    say("  store:")
    say(f"    url: {url}")
    if password_file:
        say(f"    password_file: {password_file.absolute()}")


def _of_target(words: str, target: Backend) -> str:
    """``words`` of the new database, which the options name and no setting."""
    if not words.startswith(target.name):
        return words
    return words.replace("store.password_file", "--password-file").replace("store.url", "--to")


def _not_the_same(source: Backend, target: Backend) -> None:
    same = source.name == target.name
    if isinstance(source, Sqlite) and isinstance(target, Sqlite):
        same = same or (target.file.exists() and source.file.samefile(target.file))
    if same:
        raise StoreError(f"{source.name}: it is the store in use: name another database with --to")


def _copy(source: Backend, target: Backend) -> dict[str, moving.Sum]:
    with moving.reading(source) as reader:
        revision = schema.current(reader)
        if revision != schema.head():
            raise StoreError(
                f"{source.name}: its schema is {revision or 'none'} and this program's is {schema.head()}: start this "
                "release's control plane once, which upgrades it, then move"
            )
        totals = moving.count(reader)
        Database(target).open().close()
        with moving.writing(target) as writer:
            if not moving.empty(writer):
                raise StoreError(f"{target.name}: it is not empty: name an empty database")
            with bars(totals) as progress:
                return moving.copy(reader, writer, progress)
