"""Every operation for every role: refused exactly when its document says so (API-08)."""

from typing import Any

import pytest

from controlplane.services.auth import alternatives
from controlplane.store.values import ROLES
from tests.fakes.controlplane import ControlPlane
from tests.fleet.controlplane.api.client import Client, problem

METHODS = ("get", "put", "post", "patch", "delete")


@pytest.fixture(scope="module")
def document(plane: ControlPlane) -> dict[str, Any]:
    found: dict[str, Any] = Client(plane.api).get("openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path.removeprefix("/api/v1/"), methods[method])
        for path, methods in document["paths"].items()
        for method in METHODS
        if method in methods
    ]


def address(path: str) -> str:
    """With names that nothing has."""
    while "{" in path:
        before, _, rest = path.partition("{")
        path = f"{before}no-such-thing{rest.partition('}')[2]}"
    return path


def test_every_operation_names_its_roles(document: dict[str, Any]) -> None:
    """API-08: roles that exist; an administrator may do everything."""
    for method, path, operation in operations(document):
        roles = operation["x-llmgw-roles"]
        assert roles and set(roles) <= set(ROLES), (method, path)
        assert "admin" in roles, (method, path)
        assert {"401", "403"} <= set(operation["responses"]), (method, path)


def test_some_operations_are_for_few(document: dict[str, Any]) -> None:
    """API-08: users, tokens and the writes that reach everybody are for administrators; an
    auditor changes nothing."""
    for method, path, operation in operations(document):
        roles = set(operation["x-llmgw-roles"])
        if path.split("/")[0] in ("users", "tokens"):
            assert roles == {"admin"}, (method, path)
        if method != "get" and path != "catalog/validate":  # which changes nothing
            assert "auditor" not in roles, (method, path)


@pytest.mark.parametrize("role", [None, *ROLES])
def test_every_operation_is_refused_exactly_when_it_says_so(
    plane: ControlPlane, tokens: dict[str, str], document: dict[str, Any], role: str | None
) -> None:
    """API-08: for each role, and for nobody. What is sent is wrong in every other way, so
    that nothing is changed: who may not ask must not even learn that."""
    client = Client(plane.api, tokens[role] if role else None)
    refused = allowed = 0
    for method, path, operation in operations(document):
        body = {"no-such-field": 1} if method != "get" else None
        answer = client.call(method.upper(), address(path), json=body, params={"no-such-query": "1"})
        if role is None:
            problem(answer, 401, "unauthenticated")
            refused += 1
        elif role not in operation["x-llmgw-roles"]:
            told = problem(answer, 403, "forbidden")["message"]
            assert f"the-{role} has {role}" in told, (method, path)
            assert f"needs the role {alternatives(operation['x-llmgw-roles'])};" in told, (method, path)
            refused += 1
        else:
            assert answer.status_code not in (401, 403), (method, path, answer.text)
            allowed += 1
    assert refused + allowed == len(operations(document)) > 20
    assert (refused > 0) == (role != "admin")


def test_a_method_or_path_that_is_not_there_needs_no_role(plane: ControlPlane) -> None:
    """API-04: what there is, the open document says to everybody."""
    problem(Client(plane.api).get("no-such-thing"), 404, "not_found")
    problem(Client(plane.api).call("PATCH", "status"), 405, "method_not_allowed")


def test_head_needs_what_get_needs(plane: ControlPlane, tokens: dict[str, str]) -> None:
    """API-08: the length of an answer tells, too."""
    assert Client(plane.api).call("HEAD", "users").status_code == 401
    assert Client(plane.api, tokens["auditor"]).call("HEAD", "users").status_code == 403
    answer = Client(plane.api, tokens["admin"]).call("HEAD", "users")
    assert answer.status_code == 200 and not answer.content


def test_options_names_the_methods(plane: ControlPlane) -> None:
    """RFC 9110: without a body, and no more than that."""
    answer = Client(plane.api).call("OPTIONS", "keys")
    assert answer.status_code == 204 and not answer.content
    assert {"GET", "POST"} <= {method.strip() for method in answer.headers["Allow"].split(",")}
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_an_owner_has_its_scopes_alone(plane: ControlPlane, admin: Client, tokens: dict[str, str]) -> None:
    """API-08, TEN-01: what belongs to others does not exist for it."""
    owner = Client(plane.api, tokens["owner"])
    mine = owner.post("keys", {"name": "mine", "scope": "acme/ml"}).json()
    others = [admin.post("keys", {"name": "other", "scope": scope}).json() for scope in ("acme", "beta")]
    others.append(admin.post("keys", {"name": "of nobody"}).json())
    listed = {key["id"]: key for key in owner.get("keys").json()["keys"]}
    assert mine["id"] in listed and {key["scope"] for key in listed.values()} == {"acme/ml"}
    assert owner.get(f"keys/{mine['id']}").status_code == 200
    for key in others:
        problem(owner.get(f"keys/{key['id']}"), 404, "not_found")
        problem(owner.delete(f"keys/{key['id']}"), 404, "not_found")
        assert admin.get(f"keys/{key['id']}").json()["state"] == "active"
    for scope in ({"scope": "acme"}, {"scope": "beta"}, {"scope": "acme/mlx"}, {}):
        (fault,) = problem(owner.post("keys", {"name": "n", **scope}), 422, "validation_failed")["faults"]
        assert fault["path"] == "scope" and "acme/ml" in fault["message"]
    assert owner.delete(f"keys/{mine['id']}").json()["state"] == "revoked"
