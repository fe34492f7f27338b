"""YAML from a person's hand: duplicate keys, hostile nesting and bombs are faults.

The limits bound what a file can cost before anything looks at its content.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from llmgw.runtime.faults import Fault, SettingsError
from llmgw.runtime.files import open_regular
from llmgw.runtime.kinds import encodable

MAX_FILE = 1024 * 1024
"""Largest settings or catalog file in bytes."""

MAX_NODES = 200_000
"""Most values in a file, with every alias counted as what it stands for."""

MAX_DEPTH = 50
"""Deepest nesting in a file."""


_REMEDIES = (
    ("cannot start any token", "put text that begins with % @ or ` in quotes"),
    ("found character '\\t'", "indent with spaces, not with tabs"),
    ("mapping values are not allowed here", "is the line indented as the one above, and is text with ': ' in quotes?"),
    ("did not find expected key", "is the line indented as the ones above it?"),
    ("expected <block end>", "is the line indented as the ones above it?"),
    ("could not find expected ':'", "is there a colon and a space after every name?"),
    ("found unexpected end of stream", "is a quote or a bracket left open?"),
    ("expected ',' or", "is a bracket left open, or a comma left out?"),
    ("found undefined alias", "put text that begins with * in quotes"),
    ("could not determine a constructor", "put text that begins with ! in quotes"),
    ("is given twice", "keep one"),
)


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice in one mapping, text that is not
    Unicode, and files that grow beyond bounds when read (aliases of aliases)."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Counts what it composes; an alias counts as everything it stands for."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            self._nodes += self._sizes.get(id(node), 1)
        else:
            before = self._nodes
            self._nodes += 1
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=mark)
            node = super().compose_node(parent, index)
            self._depth -= 1
            self._sizes[id(node)] = self._nodes - before
        if self._nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES} values in all", problem_mark=mark)
        if isinstance(node, yaml.ScalarNode) and not encodable(node.value):
            raise yaml.MarkedYAMLError(problem="text that is not Unicode", problem_mark=mark)
        return node


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict):
            raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"{key!r} is given twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _resolve_plainly() -> None:
    """Text without quotes is text, as in YAML 1.2: ``no`` and ``off`` are no booleans,
    ``18:00`` is no number of minutes, ``2026-08-01`` no date. Of YAML 1.1 stay true and
    false, whole numbers (also 0o and 0x) and decimals."""
    replaced = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp", "value")}
    _Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in replaced]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for kind, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", "-+0123456789"),
        (
            "float",
            r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
            "-+0123456789.",
        ),
    ):
        tag = f"tag:yaml.org,2002:{kind}"
        _Loader.add_implicit_resolver(tag, re.compile(f"(?:{pattern})$"), list(first))


_resolve_plainly()
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def read_yaml(file: Path, max_bytes: int = MAX_FILE) -> dict[str, Any]:
    """The mapping a YAML file holds (an empty file is an empty mapping).

    Raises ``SettingsError`` naming the file, and line and column where there is one.
    """
    try:
        with open_regular(file) as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise SettingsError(str(file), [Fault("", f"cannot be read: {error.strerror}")]) from error
    if len(data) > max_bytes:
        raise SettingsError(str(file), [Fault("", f"is larger than {max_bytes} bytes, the limit")])
    return parse_yaml(data, str(file))


def parse_yaml(data: bytes, source: str) -> dict[str, Any]:
    """The mapping that YAML text holds. ``source`` names it in errors."""
    try:
        tree = yaml.load(data, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(source, [Fault(place, f"is not valid YAML: {_problem(error)}")]) from error
    except yaml.reader.ReaderError as error:
        raise SettingsError(source, [_unreadable(data, error)]) from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SettingsError(source, [Fault("", f"is not valid YAML: {error}")]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        hint = ": begin with a name and a colon, not with '- '" if isinstance(tree, list) else ""
        raise SettingsError(source, [Fault("", f"must be a mapping of names to values{hint}")])
    return {str(key): value for key, value in tree.items()}


def _problem(error: yaml.MarkedYAMLError) -> str:
    """What the parser says, and what usually was the cause. What it quotes of the file is short."""
    problem = str(error.problem)[:200]
    tab = "'\\t'" in problem
    remedy = next((remedy for words, remedy in _REMEDIES[1 if tab else 0 :] if words in problem), "")
    return f"{problem} ({remedy})" if remedy else problem


def _unreadable(data: bytes, error: yaml.reader.ReaderError) -> Fault:
    """Where bytes are not the text they should be."""
    code: int = error.character  # its stub says str
    if error.encoding == "unicode":
        return Fault("", f"holds the character U+{code:04X}, which YAML does not allow: remove it")
    line = data.count(b"\n", 0, error.position) + 1
    return Fault(f"line {line}", f"is not UTF-8 text (byte 0x{code:02x}): save the file as UTF-8")
