"""Catalogs for tests, from text as people write it."""

import textwrap
from typing import Any

import pytest

from controlplane.catalog.load import parse_catalog
from controlplane.catalog.model import Catalog, Profile
from llmgw.runtime.settings import SettingsError, parse_yaml

SIM = '{engine: sim, source: "sim:", min_memory_gb: 1}'


def tree(text: str) -> dict[str, Any]:
    """What a YAML text holds."""
    return parse_yaml(textwrap.dedent(text).encode(), "test")


def catalog(text: str, **options: Any) -> Catalog:
    """The catalog of a YAML text."""
    return parse_catalog({"catalog.yaml": tree(text)}, **options)


def faults(text: str, **options: Any) -> list[str]:
    """The faults of a YAML text."""
    with pytest.raises(SettingsError) as caught:
        catalog(text, **options)
    return [str(fault) for fault in caught.value.faults]


def profile(fields: str) -> Profile:
    """The one profile of model ``m``, from its fields in flow style."""
    return catalog(f"models: {{m: {{profiles: [{{{fields}}}]}}}}").models["m"].profiles[0]


def profile_faults(fields: str, **options: Any) -> list[str]:
    """Its faults, without the place of the profile."""
    found = faults(f"models: {{m: {{profiles: [{{{fields}}}]}}}}", **options)
    return [fault.removeprefix("models.m.profiles[0].") for fault in found]
