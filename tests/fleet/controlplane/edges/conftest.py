"""One control plane for all tests that leave it as it was."""

from collections.abc import Iterator

import pytest

from tests.fakes.controlplane import ControlPlane


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(tmp_path_factory.mktemp("controlplane"), nodes=("node-1",)).start()
    yield control_plane
    assert control_plane.stop() == 0, control_plane.log()
