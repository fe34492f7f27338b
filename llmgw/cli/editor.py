"""A text in the person's own editor, again until it is taken. Nothing written is lost."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from llmgw.cli.output import clean

USUAL = ("sensible-editor", "vi", "nano")


def edit(text: str, head: str, name: str, submit: Callable[[str], None]) -> bool:
    """Let a person change ``text`` and ``submit`` it. A refusal is written above the text
    as comments, and the editor opens again. Whether anything was submitted.

    ``head`` explains, ``name`` names the file. Whatever ends it before, what was written
    is kept in a file that is named.
    """
    command = _editor()
    folder = Path(tempfile.mkdtemp(prefix="llmgw-"))
    file = folder / f"{name}.yaml"
    refused = ""
    current = text
    keep = True
    try:
        while True:
            file.write_text(_comment(head) + (_comment("\n" + refused) if refused else "") + current)
            _run(command, file)
            written = _without_comments(file.read_text())
            if not written.strip() or written == text:
                keep = False
                return False
            if written == current and refused:
                raise click.ClickException(f"it was not changed since it was refused:\n{refused}")
            current = written
            try:
                submit(written)
            except click.ClickException as error:
                refused = error.format_message()
                if error.exit_code not in (1, 2) or getattr(error, "code", "") == "precondition_failed":
                    raise
                continue
            keep = False
            return True
    finally:
        if keep and _without_comments(file.read_text()) != text:
            click.echo(f"What you wrote is kept in {file}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _editor() -> list[str]:
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if named:
        return shlex.split(named)
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal for an editor: name one in EDITOR, or use: llmgw ctl model set")
    found = next((path for path in map(shutil.which, USUAL) if path), None)
    if found is None:
        raise click.UsageError("there is no editor: name one in EDITOR, or use: llmgw ctl model set")
    return [found]


def _run(command: list[str], file: Path) -> None:
    try:
        status = subprocess.run([*command, str(file)], check=False).returncode
    except OSError as error:
        raise click.UsageError(f"the editor {command[0]} does not run: {error.strerror}; name one in EDITOR") from error
    if status != 0:
        raise click.ClickException(f"the editor ended with exit status {status}: nothing was changed")


def _comment(text: str) -> str:
    return "".join(f"# {clean(line)}".rstrip() + "\n" for line in text.splitlines())


def _without_comments(text: str) -> str:
    """Without the comments at its beginning, which are ours."""
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith("#"):
        lines.pop(0)
    return "".join(lines)
