"""``llmgw store remove-model``: the way out when a model of the store keeps the control
plane from starting, so that nobody can remove it over the API (CAT-06, STO-02)."""

import getpass
import json
import os

import click
import yaml

from controlplane.commands.shared import backend, config, example, facts, output, say
from controlplane.store import move as moving
from controlplane.store.database import Database
from controlplane.store.errors import StoreError, StoreUnavailable
from controlplane.store.port import Transaction
from controlplane.store.sqlite import Sqlite
from controlplane.store.values import AuditEntry, StoredModel
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.settings import Loaded


def add_to(group: click.Group) -> None:
    """Make it a command of ``llmgw store``."""
    group.add_command(remove_model)


@click.command("remove-model", epilog=example("llmgw store remove-model qwen3-8b > qwen3-8b.yaml"))
@config
@click.argument("name")
@output
def remove_model(settings: Loaded, name: str, form: str) -> None:
    """Take a model that was added live out of the store, and print it as a catalog file.

    The control plane must be stopped. This is for a model that keeps it from starting;
    while it runs, use llmgw ctl model remove. The change is in the audit.
    """
    target = backend(settings)
    if isinstance(target, Sqlite) and not target.file.exists():
        raise StoreError(f"{target.name}: there is no store yet, so there is no model in it")
    with moving.alone(backend(settings, lock="exclusive")):
        try:
            database = Database(target).open()
        except StoreUnavailable as error:
            raise StoreError(str(error)) from error
        try:
            removed = database.transact(lambda tx: _remove(tx, name))
        finally:
            database.close()
            if isinstance(target, Sqlite):
                moving.give_to_owner(target.file)
    tree = {"models": {removed.name: json.loads(json.dumps(removed.definition))}}
    if form == "json":
        facts(tree)
    else:
        click.echo(yaml.safe_dump(tree, sort_keys=False, allow_unicode=False), nl=False)
    say(f"{name} is out of the store. What is printed can go into a catalog file, once it is mended.")


def _remove(tx: Transaction, name: str) -> StoredModel:
    stored = {row.name: row for row in tx.models.all()}
    found = stored.get(name)
    if found is None:
        raise click.ClickException(f"the store has no model {name!r}{did_you_mean(name, stored)}")
    tx.models.remove(name)
    by = os.environ.get("SUDO_USER")
    actor = f"store:{getpass.getuser()}" + (f" (sudo by {by})" if by else "")
    tx.audit.add(
        AuditEntry(
            at=SystemClock().now().timestamp(),
            actor=actor,
            user="",
            token="",
            operation="models.remove",
            kind="model",
            target=name,
            before=dict(found.definition),
            after=None,
        )
    )
    return found
