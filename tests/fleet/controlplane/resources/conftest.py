"""One control plane for tests whose names do not meet."""

from collections.abc import Iterator

import pytest

from tests.fakes.controlplane import ControlPlane
from tests.fleet.controlplane.resources.asking import Api


@pytest.fixture(scope="session")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    control_plane = ControlPlane(tmp_path_factory.mktemp("api"), nodes=("node-1", "node-2")).start()
    yield Api(control_plane)
    assert control_plane.stop() == 0, control_plane.log()
