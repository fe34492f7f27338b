"""The page that shows the OpenAPI document."""

import gzip
import hashlib
import re

import pytest

from controlplane.api.docs import STATIC
from tests.fakes.controlplane import ControlPlane
from tests.fleet.controlplane.api.client import Client, problem

PARTS = ("docs/start.js", "docs/page.css", "docs/swagger-ui.css", "docs/swagger-ui-bundle.js")


def test_the_page_takes_nothing_from_elsewhere(plane: ControlPlane) -> None:
    """API-01: every file comes from us, and the browser is told to take no other; no script in the page itself."""
    answer = Client(plane.api).get("docs")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and answer.headers["X-Content-Type-Options"] == "nosniff"
    named = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert set(PARTS) <= set(named) and not [name for name in named if "//" in name]
    assert re.findall(r"<script(?![^>]* src=)|<style| on\w+=| style=", answer.text) == []
    for name in PARTS:
        part = Client(plane.api).get(name)
        assert part.status_code == 200 and len(part.content) > 10
        assert part.headers["Content-Type"].split(";")[0] in ("text/javascript", "text/css")
    problem(Client(plane.api).get("docs/../../settings.py"), 404, "not_found")
    problem(Client(plane.api).get("docs/VERSION"), 404, "not_found")


@pytest.mark.parametrize("path", ["openapi.json", "docs", *PARTS])
def test_files_are_fetched_once(plane: ControlPlane, path: str) -> None:
    """API-01: with an ETag, compressed for who takes that, whole for who does not."""
    client = Client(plane.api)
    packed = client.get(path, headers={"Accept-Encoding": "gzip"})
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip" and "Content-Encoding" not in plain.headers
    assert packed.content == plain.content and plain.headers["Vary"] == "Accept-Encoding"
    again = client.get(path, headers={"If-None-Match": packed.headers["ETag"]})
    assert again.status_code == 304 and not again.content
    assert ("max-age" in packed.headers["Cache-Control"]) == (path in PARTS)


def test_the_files_of_others_are_what_they_say() -> None:
    """The sums in VERSION are those of the files, and their licences are beside them."""
    folder = STATIC / "swagger-ui"
    sums = dict(
        reversed(line.split())
        for line in (folder / "VERSION").read_text().splitlines()
        if line[:8].isalnum() and len(line.split()) == 2
    )
    assert set(sums) == {"swagger-ui-bundle.js", "swagger-ui.css"}
    for name, known in sums.items():
        assert hashlib.sha256(gzip.decompress((folder / f"{name}.gz").read_bytes())).hexdigest() == known
    assert "Apache License" in (folder / "LICENSE").read_text()
