"""Commands that become a part: the process is replaced, nothing of the command stays."""

import importlib.util
import os
import sys
from pathlib import Path

import click

from llmgw.cli.options import example

_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True}


def _become(module: str, needs: str, extra: str, arguments: list[str]) -> None:
    """Replace this process by ``python -m module``."""
    if importlib.util.find_spec(needs) is None:
        raise click.ClickException(
            f"this part is not installed here ({needs} is missing): run pip install 'llmgw[{extra}]'"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: the directory one happens to be in is no place to import code from.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 - no shell is wanted


def _part(name: str, part: str, needs: str, *, does: str, checks: str = "settings and identity") -> click.Command:
    """The command that becomes ``part``, whose settings file and extra have the same name."""

    @click.command(
        name,
        help=does,
        context_settings=_PASS_ON,
        epilog=example(f"llmgw {name} --config /etc/llmgw/{part}.yaml", f"llmgw {name} --config {part}.yaml --check"),
    )
    @click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings file.")
    @click.option("--check", is_flag=True, help=f"Check {checks}, then end: 0 or 2.")
    @click.option("--log-level", metavar="LEVEL", help="Instead of the setting log.level.")
    @click.pass_context
    def become(context: click.Context, config: Path | None, check: bool, log_level: str | None) -> None:
        given = ["--config", str(config)] if config else []
        given += ["--check"] if check else []
        given += ["--log-level", log_level] if log_level is not None else []
        _become(f"{part}.main", needs, part, [*given, *context.args])

    return become


server = _part(
    "server",
    "controlplane",
    "flask_smorest",
    does="Run the control plane.",
    checks="settings, identity and catalog",
)
router = _part("router", "router", "gunicorn", does="Run the router, the address clients use.")
agent = _part("agent", "agent", "psutil", does="Run the agent of this node.")


def _whole(module: str, needs: str, extra: str, *first: str, does: str, examples: tuple[str, ...]) -> click.Command:
    """The command that becomes a program with options and help of its own, which begin with ``first``."""

    @click.command(help=does, context_settings={**_PASS_ON, "help_option_names": []}, epilog=example(*examples))
    @click.pass_context
    def become(context: click.Context) -> None:
        _become(module, needs, extra, [*first, *context.args])

    return become


sim_engine = _whole(
    "llmgw.sim.engine",
    "gevent",
    "agent",
    does="Run the simulated engine. All options go to it; --help lists them.",
    examples=("llmgw sim-engine --port 9000",),
)
sim_fleet = _whole(
    "llmgw.sim.fleet",
    "gevent",
    "agent",
    does="Hold the sessions of many simulated nodes. All options go to it; --help lists them.",
    examples=("llmgw sim-fleet --nodes 500 --seconds 60",),
)
init = _whole(
    "controlplane.commands",
    "sqlalchemy",
    "controlplane",
    "init",
    does="Set up a control plane on this machine: settings, store, first administrator, first key.",
    examples=("llmgw init", "llmgw init --yes"),
)
store = _whole(
    "controlplane.commands",
    "sqlalchemy",
    "controlplane",
    "store",
    does="Look after the store: check, back up, restore, move to another database.",
    examples=("llmgw store check", "llmgw store backup"),
)
