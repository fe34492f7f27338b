"""Runs the declarative cases of ``http/*.yaml`` against a control plane of their own.

A file is a list of cases, each on what the ones before left. A case has a ``name`` and
``steps``; a step is::

    - ask: POST keys                 # a method, and a path under /api/v1 (or /PATH)
      as: operator                   # admin (default), operator, owner, auditor, nobody
      headers: {If-Match: $etag}     # $name stands for what a step kept
      query: {limit: 2}
      body: {name: one}              # sent as JSON; or raw: TEXT
      answer: 201                    # the status
      holds: {name: one}             # a subset: of mappings the keys named, of lists every entry in order
      lacks: [key]                   # keys that the body does not have
      sends: {ETag: '"1"'}           # headers; null: it must not be there; /.../: a pattern
      keep: {id: id, etag: header ETag}   # for the steps to come: a place in the body, or a header

In ``holds`` a text such as ``/^key-/`` is a pattern.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.fakes.controlplane import ControlPlane
from tests.fleet.controlplane.api.client import ROLE_GRANTS, Client

HERE = Path(__file__).parent / "http"
FIELDS = {"ask", "as", "headers", "query", "body", "raw", "answer", "holds", "lacks", "sends", "keep"}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    plane = ControlPlane(tmp_path_factory.mktemp("http"), nodes=("node-1", "node-2", "node-3")).start()
    admin = Client(plane.api, plane.token)
    for path in ("acme", "acme/ml", "beta"):
        assert admin.post("scopes", {"path": path, "title": path}).status_code == 201
    found = {"nobody": Client(plane.api), "local": admin}
    for role, grants in ROLE_GRANTS.items():
        assert admin.post("users", {"name": f"the-{role}", "roles": grants}).status_code == 201
        found[role] = Client(plane.api, admin.post("tokens", {"user": f"the-{role}", "name": "t"}).json()["token"])
    yield found
    assert plane.stop() == 0, plane.log()


def cases() -> Iterator[Any]:
    for file in sorted(HERE.glob("*.yaml")):
        for case in yaml.safe_load(file.read_text()):
            yield pytest.param(case, id=f"{file.stem}: {case['name']}")


@pytest.mark.parametrize("case", list(cases()))
def test_case(clients: dict[str, Client], case: dict[str, Any]) -> None:
    """API-04: as the file says."""
    kept: dict[str, Any] = {}
    for number, step in enumerate(case["steps"], 1):
        assert not step.keys() - FIELDS, f"step {number}: {step.keys() - FIELDS}"
        answer = _ask(clients, filled(step, kept))
        place = f"step {number} ({step['ask']}): {answer.status_code} {dict(answer.headers)} {answer.text[:2000]}"
        wanted = filled(step, kept)
        assert answer.status_code == wanted["answer"], place
        body = answer.json() if answer.headers.get("Content-Type") == "application/json" else None
        fault = differs(wanted["holds"], body, "body") if "holds" in wanted else ""
        assert not fault, f"{place}\n{fault}"
        assert not [name for name in wanted.get("lacks", ()) if name in body], place
        for name, value in wanted.get("sends", {}).items():
            fault = differs(value, answer.headers.get(name), name)
            assert not fault, f"{place}\n{fault}"
        for name, where in step.get("keep", {}).items():
            kept[name] = _found(answer, body, where)


def _ask(clients: dict[str, Client], step: dict[str, Any]) -> requests.Response:
    method, _, path = step["ask"].partition(" ")
    client = clients[step.get("as", "admin")]
    options: dict[str, Any] = {"headers": step.get("headers", {}), "params": step.get("query")}
    if "raw" in step:
        options["data"] = step["raw"].encode()
        options["headers"] = {"Content-Type": "application/json", **options["headers"]}
    elif "body" in step:
        options["json"] = step["body"]
    return client.call(method, f"{client.address}{path}" if path.startswith("/") else path, **options)


def _found(answer: requests.Response, body: Any, where: str) -> Any:
    if where.startswith("header "):
        return answer.headers[where.removeprefix("header ")]
    for part in where.split("."):
        body = body[int(part)] if part.isdigit() else body[part]
    return body


def filled(value: Any, kept: Mapping[str, Any]) -> Any:
    """``value`` with what was kept in the place of ``$name``."""
    if isinstance(value, Mapping):
        return {key: filled(inner, kept) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, kept) for inner in value]
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\$(\w+)", value)
    if whole and whole[1] in kept:
        return kept[whole[1]]
    return re.sub(r"\$(\w+)", lambda match: str(kept.get(match[1], match[0])), value)


def differs(wanted: Any, found: Any, place: str) -> str:
    """Where ``found`` does not hold what is wanted; empty if it does."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return f"{place} is {found!r}, not a mapping"
        return next((told for key in wanted if (told := differs(wanted[key], found.get(key), f"{place}.{key}"))), "")
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return f"{place} is {found!r}, not {len(wanted)} entries"
        pairs = enumerate(zip(wanted, found, strict=True))
        return next((told for n, (one, other) in pairs if (told := differs(one, other, f"{place}[{n}]"))), "")
    if isinstance(wanted, str) and len(wanted) > 1 and wanted[0] == wanted[-1] == "/":
        matches = isinstance(found, str) and re.search(wanted[1:-1], found)
        return "" if matches else f"{place} is {found!r}, which does not match {wanted}"
    return "" if wanted == found else f"{place} is {found!r}, not {wanted!r}"


def test_the_runner_can_fail() -> None:
    """What is compared is compared: each difference is told with its place."""
    for wanted, found, told in (
        ({"a": 1}, {"a": 2}, "body.a is 2"),
        ({"a": 1}, {}, "body.a is None"),
        ({"a": [1, 2]}, {"a": [1]}, "not 2 entries"),
        ({"a": [{"b": "/^x/"}]}, {"a": [{"b": "yx"}]}, "body.a[0].b is 'yx'"),
        ({"a": {}}, {"a": 3}, "not a mapping"),
        (None, "3", "is '3', not None"),
    ):
        assert told in differs(wanted, found, "body")
    assert differs({"a": [{"b": "/^x/"}]}, {"a": [{"b": "xy", "c": 1}], "d": 2}, "body") == ""
    assert filled({"x": ["$id", "a-$id"]}, {"id": 7}) == {"x": [7, "a-7"]}
