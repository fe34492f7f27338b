"""YAML from a person's hand: duplicate keys, hostile nesting and bombs are faults.

The limits bound what a file can cost before anything looks at its content.
"""

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
        raise SettingsError(str(file), [Fault("", f"is larger than {max_bytes} bytes")])
    return parse_yaml(data, str(file))


def parse_yaml(data: bytes, source: str) -> dict[str, Any]:
    """The mapping that YAML text holds. ``source`` names it in errors."""
    try:
        tree = yaml.load(data, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SettingsError(source, [Fault(place, f"is not valid YAML: {error.problem}")]) from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SettingsError(source, [Fault("", f"is not valid YAML: {error}")]) from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(source, [Fault("", "must be a mapping of names to values")])
    return {str(key): value for key, value in tree.items()}
