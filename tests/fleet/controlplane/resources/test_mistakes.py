"""A person's mistakes in requests, as files, with the exact answer. Each message says
where, what and what to do.

After a change of words: read the difference of ``mistakes/*.yaml`` like that before it
is committed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.controlplane import ControlPlane
from tests.fleet.controlplane.resources.asking import Api

MISTAKES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))


def answered(api: Api, step: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    method, path = step["ask"].split(" ", 1)
    headers = {name.replace("-", "_"): value for name, value in step.get("headers", {}).items()}
    answer = api.ask(method, path, step.get("body"), **headers)
    return answer.status_code, answer.json()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Of their own: what a mistake needs stays there."""
    control_plane = ControlPlane(tmp_path_factory.mktemp("mistakes"), nodes=("node-1",)).start()
    yield Api(control_plane)
    assert control_plane.stop() == 0, control_plane.log()


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 10


@pytest.mark.parametrize("file", MISTAKES, ids=lambda file: file.stem)
def test_a_mistake_is_answered_with_its_remedy(api: Api, file: Path) -> None:
    """API-04: status, code, message and every fault, to the letter."""
    mistake = yaml.safe_load(file.read_text())
    for step in mistake.get("given", ()):
        status, body = answered(api, step)
        assert status in (200, 201), (step, body)
    status, body = answered(api, mistake)
    body.pop("request_id")
    assert {"status": status, **body} == mistake["answer"]
