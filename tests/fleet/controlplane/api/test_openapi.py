"""The served OpenAPI document against the real process, by generated requests (API-01).

Every operation gets requests that fit its schemas and requests that do not, as an
administrator; what comes back must be what the document says. ``make fuzz-api`` runs the
same for longer: ``LLMGW_FUZZ_EXAMPLES`` is the number of examples per operation.
"""

import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

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

from controlplane.api.app import create_app
from llmgw import __version__
from tests.fakes.controlplane import ControlPlane
from tests.harness.identities import private

EXAMPLES = int(os.environ.get("LLMGW_FUZZ_EXAMPLES", "5"))

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

TOKEN = "adm-llmgw-" + secrets.token_urlsafe(24)
"""The local token, known before the control plane runs, so that schemathesis knows that it is
always sent, and when it was left out on purpose."""

REFUSALS = [400, 401, 403, 404, 405, 409, 411, 412, 413, 414, 415, 422, 431]

REAL = {
    "node_id": ["node-1", "node-2"],
    "name": ["sim-small", "small", "sim-off", "org/small:1b@main", "ada", "serving.stopped", "log.level", "engine"],
    "path": ["acme", "acme/ml"],
    "kind": ["node", "router"],
}
"""Names of things that exist, so that not every answer is 404."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(tmp_path_factory.mktemp("fuzz"), nodes=("node-1", "node-2"))
    control_plane.state.mkdir(mode=0o700, exist_ok=True)
    private(control_plane.state / "admin.token", TOKEN)
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


def described() -> Any:
    """The document, by operation, with names that exist in every second request."""
    app = create_app(MagicMock(), __version__)
    config = schemathesis.Config.from_dict(
        {
            "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}},
        }
    )
    document = app.test_client().get("/api/v1/openapi.json").get_json()
    schema = schemathesis.openapi.from_dict(document, config=config)
    count = 0

    def real_names(_context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal count
        count += 1
        if not parameters or count % 2:
            return parameters
        return {
            name: REAL[name][count % len(REAL[name])] if name in REAL else value for name, value in parameters.items()
        }

    class Token:
        """The credential of every request that is to have one."""

        def get(self, _case: Any, _context: Any) -> str:
            return TOKEN

        def set(self, case: Any, data: str, _context: Any) -> None:
            case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}

    schema.hook("map_path_parameters")(real_names)
    schema.auth()(Token)
    return schema


DOCUMENT = described()


@DOCUMENT.parametrize()
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
    asked[case.operation.label] += 1
    if case.operation.path == "/api/v1/events" and case.query and "watch" in case.query:
        case.query["seconds"] = "0"  # else the stream goes on for ever
    case.call_and_validate(base_url=plane.api, checks=CHECKS, timeout=20)


def test_every_operation_was_asked(plane: ControlPlane, asked: Counter[str]) -> None:
    """API-01: of the document that the process serves; one without operations would pass the rest."""
    served = requests.get(f"{plane.api}/api/v1/openapi.json", timeout=10).json()
    known = {
        f"{method.upper()} {path}"
        for path, methods in served["paths"].items()
        for method in methods
        if method in ("get", "put", "post", "patch", "delete")
    }
    assert len(known) > 25
    assert {name for name in known if not asked[name]} == set()
