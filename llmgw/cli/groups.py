"""Groups of commands: imported when used, in the order given, and patient with typing errors."""

import importlib
from collections.abc import Mapping

import click

SENTENCE = 200
"""Longest that a list of commands says of each, in characters."""

Where = Mapping[str, tuple[str, str]]
"""Name of a command, and the module and variable that hold it."""


def nearest(word: str, names: list[str]) -> str | None:
    """What was most likely meant by ``word``."""
    import difflib  # noqa: PLC0415 - only after an error

    found = difflib.get_close_matches(word, names, 1, cutoff=0.6)
    return found[0] if found else None


class Group(click.Group):
    """Commands in the order they were added. A name that does not exist is answered
    with the nearest that does. ``lazy`` names commands that are imported when they are
    asked for."""

    def __init__(self, *args: object, lazy: Where | None = None, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.lazy: Where = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of the commands."""
        return [*self.lazy, *(name for name in self.commands if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, name = self.lazy[cmd_name]
        command = getattr(importlib.import_module(module), name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was meant, or which one may have been."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = self.meant(ctx, args[0]) if args else None
            if hint is None:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {hint!r}?", ctx) from error

    def meant(self, ctx: click.Context, word: str) -> str | None:
        """The command that ``word`` is nearest to; else it may be the name of what is to be shown."""
        found = nearest(word, self.list_commands(ctx))
        if found is None and "show" in self.list_commands(ctx) and not word.startswith("-"):
            return f"show {word}"
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with what each does in whole sentences, over two lines if need be."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, found.get_short_help_str(SENTENCE)) for name, found in commands.items() if found is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
