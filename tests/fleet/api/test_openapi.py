"""The served OpenAPI document against the real process, by generated requests (API-01).

Every operation gets requests that fit its schemas and requests that do not, as an
administrator; what comes back must be what the document says. ``make fuzz-api`` runs the
same for longer: ``LLMGW_FUZZ_EXAMPLES`` is the number of examples per operation.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.fakes.controlplane import ControlPlane

EXAMPLES = int(os.environ.get("LLMGW_FUZZ_EXAMPLES", "8"))

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,  # what does not fit the schema is refused
    ignored_auth,  # without a token, or with a wrong one, the same request is refused
    unsupported_method,
]

REAL = {
    "node_id": ["node-1", "node-2"],
    "name": ["sim-small", "small", "sim-off", "org/small:1b@main", "ada", "serving.stopped", "log.level"],
    "path": ["acme", "acme/ml"],
}
"""Names of things that exist, so that not every answer is 404."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(tmp_path_factory.mktemp("fuzz"), nodes=("node-1", "node-2"))
    control_plane.start()
    for path, body in (
        ("scopes", {"path": "acme", "title": "Acme"}),
        ("scopes", {"path": "acme/ml", "title": "ML"}),
        ("users", {"name": "ada", "roles": [{"role": "admin"}]}),
        ("users", {"name": "bea", "roles": [{"role": "admin"}]}),
        ("tokens", {"user": "ada", "name": "one"}),
        ("keys", {"name": "one", "scope": "acme/ml"}),
    ):
        made = requests.post(f"{control_plane.api}/api/v1/{path}", json=body, headers=control_plane.auth, timeout=10)
        assert made.status_code == 201, made.text
    yield control_plane
    assert control_plane.stop() == 0
    assert "Traceback" not in control_plane.log(), control_plane.log()[-5000:]


@pytest.fixture(scope="module")
def asked() -> Iterator[Counter[str]]:
    """How many requests each operation got."""
    counter: Counter[str] = Counter()
    yield counter
    sys.stderr.write(f"\nopenapi: {sum(counter.values())} requests to {len(counter)} operations\n")


@pytest.fixture(scope="module")
def document(plane: ControlPlane) -> Any:
    schema = schemathesis.openapi.from_url(f"{plane.api}/api/v1/openapi.json")
    count = 0

    def real_names(_context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        """Every second request is about something that exists."""
        nonlocal count
        count += 1
        if not parameters or count % 2:
            return parameters
        return {
            name: REAL[name][count % len(REAL[name])] if name in REAL else value for name, value in parameters.items()
        }

    def streams_end(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
        """A stream goes on for ever, unless one says for how long."""
        if query and context.operation.path == "/api/v1/events" and "watch" in query:
            return {**query, "seconds": 0}
        return query

    schema.hook("map_path_parameters")(real_names)
    schema.hook("map_query")(streams_end)
    return schema


lazy = schemathesis.pytest.from_fixture("document")


@lazy.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="LLMGW_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.timeout(1800)
def test_answers_are_what_the_document_says(case: Any, plane: ControlPlane, asked: Counter[str]) -> None:
    """API-01, API-04: no error of our own, no answer that is not described, nothing wrong
    taken, nothing told without a token."""
    asked[f"{case.method} {case.path}"] += 1
    case.call_and_validate(headers=plane.auth, checks=CHECKS, timeout=20)


def test_every_operation_was_asked(document: Any, asked: Counter[str]) -> None:
    """API-01: a document without operations would pass the rest."""
    known = {operation.ok().label.replace(" ", " ", 1) for operation in document.get_all_operations()}
    assert len(known) > 25
    assert {name for name in known if not asked[name]} == set()
