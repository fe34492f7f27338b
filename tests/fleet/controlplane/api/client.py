"""Asks the admin API with one token."""

from typing import Any

import requests

ROLE_GRANTS: dict[str, list[dict[str, str]]] = {
    "admin": [{"role": "admin"}],
    "operator": [{"role": "operator"}],
    "auditor": [{"role": "auditor"}],
    "owner": [{"role": "owner", "scope": "acme/ml"}],
}


class Client:
    """``get``, ``post``, ... of paths under ``/api/v1``."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {**self.headers, **options.pop("headers", {})}
        url = path if path.startswith("http") else f"{self.address}/api/v1/{path}"
        return requests.request(method, url, headers=headers, timeout=20, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> requests.Response:
        return self.call("POST", path, json={} if body is None else body, **options)

    def put(self, path: str, body: Any, **options: Any) -> requests.Response:
        return self.call("PUT", path, json=body, **options)

    def delete(self, path: str, **options: Any) -> requests.Response:
        return self.call("DELETE", path, **options)


def problem(answer: requests.Response, status: int, code: str) -> dict[str, Any]:
    """The body of an error, which has the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    body: dict[str, Any] = answer.json()
    assert set(body) - {"faults"} == {"code", "message", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == answer.headers["X-Request-Id"]
    return body
