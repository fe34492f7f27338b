"""Asking the admin API of a control plane in a process of its own."""

from typing import Any

import requests

from tests.fakes.controlplane import ControlPlane

SIM: dict[str, Any] = {
    "scaling": {"min": 1, "max": 1},
    "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 0.5, "cpu_cores": 1}],
}
"""A model that any node can run."""


class Api:
    """Requests with one token (default: the control plane's own)."""

    def __init__(self, control_plane: ControlPlane, token: str | None = None) -> None:
        self.control_plane = control_plane
        self.token = token or control_plane.token

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> requests.Response:
        """``headers`` are written ``If_Match='"1"'``."""
        sent = {"Authorization": f"Bearer {self.token}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        url = f"{self.control_plane.api}/api/v1/{path}"
        return requests.request(method, url, json=body, headers=sent, timeout=20)

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The body of an answer that must be a success."""
        answer = self.ask(method, path, body, **headers)
        assert answer.status_code in (200, 201, 202), (method, path, answer.status_code, answer.text)
        return answer.json()

    def refused(self, status: int, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The body of an answer that must be that error."""
        answer = self.ask(method, path, body, **headers)
        assert answer.status_code == status, (method, path, answer.status_code, answer.text)
        return answer.json()

    def user(self, name: str, *roles: dict[str, str]) -> "Api":
        """The same API as somebody with these roles."""
        self.ok("POST", "users", {"name": name, "roles": list(roles)})
        return Api(self.control_plane, self.ok("POST", "tokens", {"user": name, "name": "t"})["token"])
