"""Completion for shells: the words of the command, and names that the API knows."""

from collections.abc import Callable, Iterable

import click

from llmgw.cli.options import example

SECONDS = 1.0
"""How long a person waits for the names of nodes and models after the tab key."""

VARIABLE = "_LLMGW_COMPLETE"

HOW = {
    "bash": "echo 'source <(llmgw completion bash)' >> ~/.bashrc",
    "zsh": 'llmgw completion zsh > "${fpath[1]}/_llmgw"',
    "fish": "llmgw completion fish > ~/.config/fish/completions/llmgw.fish",
}


@click.command(epilog=example("source <(llmgw completion bash)", *HOW.values()))
@click.argument("shell", type=click.Choice(list(HOW)))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names in a shell.

    Names of models, nodes, replicas, keys, users and the like come from the admin API, if it answers within a second.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only this command needs it

    made = get_completion_class(shell)
    root = click.get_current_context().find_root()
    if made is None:  # pragma: no cover - the choices are click's own
        raise click.UsageError(f"there is no completion for {shell}")
    # The script's functions are named after the program, whatever path it was called by.
    click.echo(made(root.command, {}, "llmgw", VARIABLE).source())


def names(path: str, field: str, name: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes an argument with the names of what a list of the API holds."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [found for found in _ask(context, path, field, name) if found.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - whatever it is, a person who presses tab is not to be told
            return []

    return complete


def _ask(context: click.Context, path: str, field: str, name: str) -> Iterable[str]:
    from llmgw.cli.options import connect  # noqa: PLC0415 - not needed to print the script

    for entry in connect(context, SECONDS).all(path, field)[field]:
        yield str(entry[name])
        yield from entry.get("aliases", ())


models = names("models", "models", "name")
nodes = names("nodes", "nodes", "id")
replicas = names("replicas", "replicas", "id")
keys = names("keys", "keys", "id")
scopes = names("scopes", "scopes", "path")
users = names("users", "users", "name")
tokens = names("tokens", "tokens", "id")
join_tokens = names("join-tokens", "join_tokens", "id")
identities = names("identities", "identities", "name")
routers = names("identities?kind=router", "identities", "name")
settings = names("settings", "cluster", "name")
holds = names("holds", "holds", "domain")
