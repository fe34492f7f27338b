"""A control plane with a user of every role."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.controlplane import ControlPlane
from tests.fleet.controlplane.api.client import ROLE_GRANTS, Client


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """For tests that leave it as it was, or make things of their own."""
    control_plane = ControlPlane(tmp_path_factory.mktemp("api"), nodes=("node-1", "node-2", "node-3")).start()
    yield control_plane
    assert control_plane.stop() == 0, control_plane.log()


@pytest.fixture(scope="session")
def admin(plane: ControlPlane) -> Client:
    """With the local token."""
    return Client(plane.api, plane.token)


@pytest.fixture(scope="session")
def scopes(admin: Client) -> tuple[str, ...]:
    """Scopes that exist."""
    made = ("acme", "acme/ml", "beta")
    for path in made:
        assert admin.post("scopes", {"path": path, "title": path}).status_code == 201
    return made


@pytest.fixture(scope="session")
def tokens(admin: Client, scopes: tuple[str, ...]) -> dict[str, str]:
    """A token of a user of each role; the owner owns acme/ml."""
    found = {}
    for role, grants in ROLE_GRANTS.items():
        user = f"the-{role}"
        assert admin.post("users", {"name": user, "roles": grants}).status_code == 201
        found[role] = admin.post("tokens", {"user": user, "name": "tests"}).json()["token"]
    return found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ControlPlane]:
    """For tests that change the whole."""
    control_plane = ControlPlane(tmp_path)
    yield control_plane
    if control_plane.process is not None:
        control_plane.stop()
