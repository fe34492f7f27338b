"""``llmgw store remove-model``: the way out when a model of the store keeps the control
plane from starting, so that nobody can remove it over the API (CAT-06, STO-02)."""

import json

import click
import yaml

from controlplane.commands.shared import actor, backend, config, example, facts, opened, output, say
from controlplane.store.errors import StoreError
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
    with opened(settings) as database:
        removed = database.transact(lambda tx: _remove(tx, name))
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
    tx.audit.add(
        AuditEntry(
            at=SystemClock().now().timestamp(),
            actor=actor("store"),
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
