"""Reads the catalog from a file or a directory. The only file IO of the catalog."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from controlplane.catalog.model import Catalog
from controlplane.catalog.validate import parse_catalog
from llmgw.runtime.settings import Fault, SettingsError, read_yaml

__all__ = ["MAX_CATALOG", "load_catalog", "parse_catalog"]

MAX_CATALOG = 8 * 1024 * 1024
"""Largest catalog file in bytes."""

MAX_FILES = 1000
"""Most files of a catalog directory."""


def load_catalog(path: Path) -> Catalog:
    """The catalog of a YAML file, or of all ``*.yaml`` files of a directory.

    Blocking. Raises ``SettingsError`` with all faults of all files, each with its
    place, such as ``models.qwen.profiles[1].gpus``.
    """
    if not path.is_dir():
        catalog = parse_catalog({path.name: read_yaml(path, MAX_CATALOG)}, str(path))
        return replace(catalog, modified=_modified([path]))
    try:
        present = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise SettingsError(str(path), [Fault("", f"cannot be read: {error.strerror}")]) from error
    files = [file for file in present if file.suffix == ".yaml"]
    if len(files) > MAX_FILES:
        raise SettingsError(str(path), [Fault("", f"holds {len(files)} files; the limit is {MAX_FILES}")])
    trees: dict[str, dict[str, Any]] = {}
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
    try:
        catalog = parse_catalog(trees, str(path))
    except SettingsError as error:
        faults += error.faults
    if not files and not faults:
        faults.append(Fault("", "holds no *.yaml file: write one with models: {} to serve nothing"))
    if faults:
        raise SettingsError(str(path), faults)
    return replace(catalog, modified=_modified(files))


def _modified(files: list[Path]) -> int:
    """When the newest of the files was written; 0 if there is none, or it just went away."""
    try:
        return max((int(file.stat().st_mtime) for file in files), default=0)
    except OSError:
        return 0
