"""YAML that people write on the command line, in files and in their editor."""

import re
from typing import Any

import click

_STEP = re.compile(r"(?:\A|\.)([^.\[\]]+)|\[(\d+)\]")


def parse(text: str, what: str) -> Any:
    """The value of a YAML text. Raises ``UsageError`` naming ``what`` and the line."""
    import yaml  # noqa: PLC0415 - few commands need it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise click.UsageError(f"{what}{place}: {getattr(error, 'problem', None) or 'is not YAML'}") from error
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{what} is not YAML: {error}") from error


def mapping(text: str, what: str) -> dict[str, Any]:
    """The same, which must be a mapping with texts as keys."""
    found = parse(text, what)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise click.UsageError(f"{what} must be a mapping, such as 'engine: llamacpp'")
    return found


def assign(tree: dict[str, Any], words: tuple[str, ...]) -> None:
    """Carry out ``a.b[0].c=VALUE`` and ``a.b-`` on ``tree``. Raises ``UsageError``."""
    for word in words:
        path, equals, text = word.partition("=")
        if not equals and not path.endswith("-"):
            raise click.UsageError(f"{word!r} is neither FIELD=VALUE nor FIELD-")
        steps = _steps(path if equals else path[:-1])
        holder: Any = tree
        for index, step in enumerate(steps[:-1]):
            holder = _step_into(holder, step, steps[index + 1], word)
        _put(holder, steps[-1], parse(text, path) if equals else None, bool(equals), word)


def _steps(path: str) -> list[str | int]:
    found: list[str | int] = []
    end = 0
    for match in _STEP.finditer(path):
        if match.start() != end:
            break
        found.append(match[1] if match[1] is not None else int(match[2]))
        end = match.end()
    if not found or end != len(path) or not isinstance(found[0], str):
        raise click.UsageError(f"{path!r} is not a field such as scaling.max or profiles[0].context")
    return found


def _step_into(holder: Any, step: str | int, following: str | int, word: str) -> Any:
    if isinstance(step, str) and isinstance(holder, dict):
        if holder.get(step) is None and isinstance(following, str):
            holder[step] = {}
        if step in holder:
            return holder[step]
    elif isinstance(step, int) and isinstance(holder, list) and step < len(holder):
        return holder[step]
    raise click.UsageError(f"{word!r}: there is no {step!r} to go into")


def _put(holder: Any, step: str | int, value: Any, keep: bool, word: str) -> None:
    if isinstance(step, str) and isinstance(holder, dict):
        if keep:
            holder[step] = value
        else:
            holder.pop(step, None)
    elif isinstance(step, int) and isinstance(holder, list) and step < len(holder):
        if keep:
            holder[step] = value
        else:
            holder.pop(step)
    else:
        raise click.UsageError(f"{word!r}: there is no {step!r} to change")
