"""``llmgw stop`` and ``llmgw start``: whether anything is served at all (REC-31)."""

import click

from llmgw.cli.client import Client
from llmgw.cli.options import api, confirm, example, output, yes
from llmgw.cli.output import plain, plural, say

SETTING = "settings/serving.stopped"


@click.command(epilog=example("llmgw stop", "llmgw stop --yes"))
@yes
@output
@api
def stop(client: Client, yes: bool, form: str) -> None:
    """Stop serving: every replica is drained and stopped, and requests are refused until llmgw start.

    Control planes, routers and agents go on running; models, keys and settings stay as they are.
    """
    status = client.get("status", "models")
    ready = sum(model["ready"] for model in status["models"])
    confirm(
        f"Stop all serving? {plural(ready, 'ready replica')} of {plural(len(status['models']), 'model')} will be "
        "drained and stopped, and every request refused.",
        yes,
    )
    answer = client.send("PUT", SETTING, "value", {"value": True})
    if not plain(answer, form):
        say("Serving is stopped: replicas finish what they do and end, new requests are answered 503 system_stopped.")
        say("Control planes, routers and agents go on running; models, keys and settings stay. Go on with: llmgw start")


@click.command(epilog=example("llmgw start"))
@click.option("-y", "--yes", is_flag=True, expose_value=False, help="As llmgw stop has it; nothing is asked here.")
@output
@api
def start(client: Client, form: str) -> None:
    """Serve again after llmgw stop."""
    answer = client.send("PUT", SETTING, "value", {"value": False})
    if not plain(answer, form):
        say("Serving: models are placed and started as the catalog says. See: llmgw status --watch")
