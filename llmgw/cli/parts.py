"""Commands that become a part: the process is replaced, nothing of the command stays."""

import importlib.util
import os
import sys
from pathlib import Path

import click

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


def _with_config(config: Path | None, rest: list[str]) -> list[str]:
    return [*(["--config", str(config)] if config else []), *rest]


def _flags(check: bool, log_level: str | None) -> list[str]:
    return [*(["--check"] if check else []), *(["--log-level", log_level] if log_level is not None else [])]


_log_level = click.option("--log-level", metavar="LEVEL", help="Instead of the setting log.level.")
_config = click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings file.")


@click.command(
    context_settings=_PASS_ON,
    epilog="\b\nExample:\n  llmgw server --config /etc/llmgw/controlplane.yaml\n"
    "  llmgw server --config controlplane.yaml --check",
)
@_config
@click.option("--check", is_flag=True, help="Check settings, identity and catalog, then end: 0 or 2.")
@_log_level
@click.pass_context
def server(context: click.Context, config: Path | None, check: bool, log_level: str | None) -> None:
    """Run the control plane."""
    flags = _flags(check, log_level)
    _become("controlplane.main", "flask_smorest", "controlplane", _with_config(config, [*flags, *context.args]))


@click.command(
    context_settings=_PASS_ON,
    epilog="\b\nExample:\n  llmgw router --config /etc/llmgw/router.yaml\n  llmgw router --config router.yaml --check",
)
@_config
@click.option("--check", is_flag=True, help="Check settings and identity, then end: 0 or 2.")
@_log_level
@click.pass_context
def router(context: click.Context, config: Path | None, check: bool, log_level: str | None) -> None:
    """Run the router, the address clients use."""
    flags = _flags(check, log_level)
    _become("router.main", "gunicorn", "router", _with_config(config, [*flags, *context.args]))


@click.command(
    context_settings=_PASS_ON,
    epilog="\b\nExample:\n  llmgw agent --config /etc/llmgw/agent.yaml\n  llmgw agent --config agent.yaml --check",
)
@_config
@click.option("--check", is_flag=True, help="Check settings and identity, then end: 0 or 2.")
@_log_level
@click.pass_context
def agent(context: click.Context, config: Path | None, check: bool, log_level: str | None) -> None:
    """Run the agent of this node."""
    flags = _flags(check, log_level)
    _become("agent.main", "psutil", "agent", _with_config(config, [*flags, *context.args]))


@click.command(
    "sim-engine",
    context_settings={**_PASS_ON, "help_option_names": []},
    epilog="\b\nExample:\n  llmgw sim-engine --port 9000",
)
@click.pass_context
def sim_engine(context: click.Context) -> None:
    """Run the simulated engine. All options go to it; --help lists them."""
    _become("llmgw.sim.engine", "gevent", "agent", context.args)


@click.command(
    "sim-fleet",
    context_settings={**_PASS_ON, "help_option_names": []},
    epilog="\b\nExample:\n  llmgw sim-fleet --nodes 500 --seconds 60",
)
@click.pass_context
def sim_fleet(context: click.Context) -> None:
    """Hold the sessions of many simulated nodes. All options go to it; --help lists them."""
    _become("llmgw.sim.fleet", "gevent", "agent", context.args)


@click.command(
    context_settings={**_PASS_ON, "help_option_names": []},
    epilog="\b\nExample:\n  llmgw init\n  llmgw init --yes",
)
@click.pass_context
def init(context: click.Context) -> None:
    """Set up a control plane on this machine: settings, store, first administrator, first key."""
    _become("controlplane.commands", "sqlalchemy", "controlplane", ["init", *context.args])


@click.command(
    context_settings={**_PASS_ON, "help_option_names": []},
    epilog="\b\nExample:\n  llmgw store check\n  llmgw store backup",
)
@click.pass_context
def store(context: click.Context) -> None:
    """Look after the store: check, back up, restore, move to another database."""
    _become("controlplane.commands", "sqlalchemy", "controlplane", ["store", *context.args])
