"""Reads the catalog from a file or a directory. The only file IO of the catalog."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from controlplane.catalog.model import Catalog
from controlplane.catalog.validate import STORE, parse_catalog, parse_model, written_aliases
from llmgw.runtime.settings import Fault, SettingsError, read_yaml

__all__ = [
    "MAX_CATALOG",
    "STORE",
    "Files",
    "load_catalog",
    "merge",
    "parse_catalog",
    "parse_model",
    "read_files",
    "without_clashes",
]

MAX_CATALOG = 8 * 1024 * 1024
"""Largest catalog file in bytes."""

MAX_FILES = 1000
"""Most files of a catalog directory."""

NOTHING = "write one with models: {} to serve nothing"


@dataclass(frozen=True)
class Files:
    """What catalog files hold, not yet looked at. ``label`` is the file or directory,
    ``modified`` when the newest was written, in Unix seconds (0 = unknown). ``faults``
    are what kept a file from being read."""

    label: str
    trees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    modified: int = 0
    faults: tuple[Fault, ...] = ()


def load_catalog(
    path: Path, stored: Mapping[str, Mapping[str, Any]] | None = None, allowed: Iterable[str] = ()
) -> Catalog:
    """The catalog of a YAML file, or of all ``*.yaml`` files of a directory, together with
    the ``stored`` models (name to definition).

    Blocking. Raises ``SettingsError`` with all faults of all files, each with its
    place, such as ``models.qwen.profiles[1].gpus``.
    """
    return merge(read_files(path), stored, allowed)


def merge(
    files: Files,
    stored: Mapping[str, Mapping[str, Any]] | None = None,
    allowed: Iterable[str] = (),
    known: Catalog | None = None,
) -> Catalog:
    """The catalog of files that were read and of the ``stored`` models: what a live change
    makes anew without reading again, and, of what ``known`` was made of, without checking
    again (``parse_catalog``). Raises ``SettingsError`` as ``load_catalog``."""
    sources = dict(files.trees)
    if stored:
        sources[STORE] = {"models": dict(stored)}
    faults = list(files.faults)
    try:
        catalog = parse_catalog(sources, files.label, allowed=allowed, known=known)
    except SettingsError as error:
        faults += error.faults
    if faults:
        raise SettingsError(files.label, faults)
    return replace(catalog, modified=files.modified)


def without_clashes(files: Files, stored: Mapping[str, Mapping[str, Any]]) -> tuple[Files, tuple[str, ...]]:
    """The files without what bears a name of a ``stored`` model, and what that is: such models,
    weighted aliases, and aliases of models, which stay otherwise."""
    taken = {alias for definition in stored.values() for _, alias in written_aliases(definition)} | stored.keys()
    left_out: list[str] = []

    def kept(section: Any) -> Any:
        if not isinstance(section, dict):
            return section
        left_out.extend(name for name in section if name in taken)
        return {name: without_aliases(name, entry) for name, entry in section.items() if name not in taken}

    def without_aliases(model: str, entry: Any) -> Any:
        clashing = [alias for _, alias in written_aliases(entry) if alias in taken]
        if not clashing:
            return entry
        left_out.extend(f"{alias} (an alias of {model})" for alias in clashing)
        return {**entry, "aliases": [alias for alias in entry["aliases"] if alias not in clashing]}

    trees = {origin: {section: kept(value) for section, value in tree.items()} for origin, tree in files.trees.items()}
    return replace(files, trees=trees), tuple(left_out)


def read_files(path: Path) -> Files:
    """The trees of a catalog file, or of the ``*.yaml`` files of a directory. Blocking.
    Never raises for what a file holds: ``merge`` tells all faults together."""
    if not path.is_dir():
        try:
            tree = read_yaml(path, MAX_CATALOG)
        except SettingsError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                missing = Fault("", f"is not there: {NOTHING}, or name another with the setting catalog")
                return Files(str(path), faults=(missing,))
            return Files(str(path), faults=tuple(error.faults))
        name = path.name if path.name != STORE else str(path)
        return Files(str(path), {name: tree}, _modified([path]))
    try:
        present = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    except OSError as error:
        return Files(str(path), faults=(Fault("", f"cannot be read: {error.strerror}"),))
    files = [file for file in present if file.suffix == ".yaml"]
    if len(files) > MAX_FILES:
        return Files(str(path), faults=(Fault("", f"holds {len(files)} files; the limit is {MAX_FILES}"),))
    trees: dict[str, Mapping[str, Any]] = {}
    faults = [
        Fault(file.name, f"would be left out: rename it to {file.stem}.yaml")
        for file in present
        if file.suffix == ".yml"
    ]
    for file in files:
        try:
            trees[file.name] = read_yaml(file, MAX_CATALOG)
        except SettingsError as error:
            faults += [Fault(f"{file.name}: {fault.path}".removesuffix(": "), fault.message) for fault in error.faults]
    if not files and not faults:
        faults.append(Fault("", f"holds no *.yaml file: {NOTHING}"))
    return Files(str(path), trees, _modified(files), tuple(faults))


def _modified(files: list[Path]) -> int:
    """When the newest of the files was written; 0 if there is none, or it just went away."""
    try:
        return max((int(file.stat().st_mtime) for file in files), default=0)
    except OSError:
        return 0
