"""The ``llmgw`` command (CLI-01).

It starts the parts by becoming them, and asks the control plane's admin API for
everything else; it has no logic that the API does not have. Modules are loaded when
their command is used: a part must not find ``ssl`` or ``requests`` loaded already.
"""

import errno
import importlib
from typing import Any

import click

from llmgw import __version__
from llmgw.cli.output import clean, give_up, prepare

_COMMANDS = {
    "server": ("llmgw.cli.parts", "server"),
    "router": ("llmgw.cli.parts", "router"),
    "agent": ("llmgw.cli.parts", "agent"),
    "sim-engine": ("llmgw.cli.parts", "sim_engine"),
    "keys": ("llmgw.cli.keys", "keys"),
    "ctl": ("llmgw.cli.ctl", "ctl"),
}


class _Unreadable(click.ClickException):
    exit_code = 3


class _Lazy(click.Group):
    """A group whose commands are imported when asked for, in the order given."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of the commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name."""
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was meant; one of ``ctl`` that was typed without it is named."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            ctl = self.get_command(ctx, "ctl")
            if isinstance(ctl, click.Group) and args and args[0] in ctl.commands:
                raise click.UsageError(f"No such command {args[0]!r}. Did you mean 'ctl {args[0]}'?", ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Whatever it meets is told in words."""
        prepare()
        try:
            return super().invoke(ctx)
        except OSError as error:
            give_up()
            if error.errno == errno.EPIPE:
                raise  # whoever read us has enough
            raise click.ClickException(f"cannot write: {error.strerror or error}") from error
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise _Unreadable(
                f"the answer cannot be read ({type(error).__name__}: {clean(error)}): is the control plane of version "
                f"{__version__}, and --api or LLMGW_API its address?"
            ) from error


@click.command(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  llmgw ctl status",
)
@click.version_option(__version__, message="llmgw %(version)s")
@click.option("--api", metavar="URL", envvar="LLMGW_API", help="Admin API of the control plane; beats LLMGW_API.")
@click.pass_context
def main(context: click.Context, api: str | None) -> None:
    """Serve large language models on your own machines behind one OpenAI-compatible address."""
    context.obj = {"api": api}
