"""The ``llmgw`` command (CLI-01).

It starts the parts by becoming them, and asks the control plane's admin API for
everything else; it has no logic that the API does not have. Modules are loaded when
their command is used: a part must not find ``ssl`` or ``requests`` loaded already.
"""

import errno
import sys
from typing import Any

import click

from llmgw import __version__
from llmgw.cli.groups import Group, nearest
from llmgw.cli.output import clean, folded, give_up, prepare

COMMANDS = {
    "status": ("llmgw.cli.ctl.status", "status"),
    "ctl": ("llmgw.cli.ctl", "ctl"),
    "keys": ("llmgw.cli.keys", "keys"),
    "stop": ("llmgw.cli.serving", "stop"),
    "start": ("llmgw.cli.serving", "start"),
    "init": ("llmgw.cli.parts", "init"),
    "join": ("llmgw.cli.join", "join"),
    "store": ("llmgw.cli.parts", "store"),
    "server": ("llmgw.cli.parts", "server"),
    "router": ("llmgw.cli.parts", "router"),
    "agent": ("llmgw.cli.parts", "agent"),
    "sim-engine": ("llmgw.cli.parts", "sim_engine"),
    "sim-fleet": ("llmgw.cli.parts", "sim_fleet"),
    "completion": ("llmgw.cli.completion", "completion"),
}

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


class _Unreadable(click.ClickException):
    exit_code = 3


class _Main(Group):
    """The whole command. Whatever it meets is told in words."""

    def meant(self, ctx: click.Context, word: str) -> str | None:
        """The nearest command; one of ``ctl`` that was typed without it is named."""
        ctl = self.get_command(ctx, "ctl")
        under = ctl.list_commands(ctx) if isinstance(ctl, click.Group) else []
        if word in under:
            return f"ctl {word}"
        found = nearest(word, [*self.list_commands(ctx), *under])
        return found if found is None or found in self.lazy else f"ctl {found}"

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        prepare()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except click.ClickException as error:
            if type(error).show is not click.ClickException.show or not sys.stderr.isatty():
                raise
            click.echo(f"Error: {folded(error.format_message(), sys.stderr, len('Error: '))}", err=True)
            ctx.exit(error.exit_code)
        except click.Abort as error:  # of a question: Ctrl-C, or the end of the input
            interrupted = isinstance(error.__context__, KeyboardInterrupt)
            click.echo(err=True)
            ctx.exit(INTERRUPTED if interrupted else 1)
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


@click.group(
    cls=_Main,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  llmgw status\n\n\b\nExit status: 0 done; 1 refused; 2 wrong usage; 3 no API answers;\n"
    "4 not allowed, or not known who asks; 130 Ctrl-C.",
)
@click.version_option(__version__, message="llmgw %(version)s")
@click.option("--api", metavar="URL", envvar="LLMGW_API", help="Admin API of the control plane; beats LLMGW_API.")
@click.option("--token-file", metavar="FILE", help="File with your token for it; beats LLMGW_TOKEN_FILE.")
@click.option("--ca", metavar="FILE", help="Certificate authority of an https:// API; beats LLMGW_CA.")
def main(api: str | None, token_file: str | None, ca: str | None) -> None:
    """Serve large language models on your own machines behind one OpenAI-compatible address."""
    # The options stay in the context, where options.connect looks.
