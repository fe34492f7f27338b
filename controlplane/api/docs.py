"""The OpenAPI document and a page that shows it, from files that come with us (API-01).

Open to everybody who reaches the listener: they tell what the published source tells.
"""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

STATIC = Path(__file__).parent / "static"
KEPT = "public, max-age=86400"
"""The page's own files change with a release; the ETag tells."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts and styles are files of ours alone, requests go to us alone."""

_FILES = {
    "docs": ("docs/index.html", "text/html; charset=utf-8"),
    "docs/start.js": ("docs/start.js", "text/javascript; charset=utf-8"),
    "docs/page.css": ("docs/page.css", "text/css; charset=utf-8"),
    "docs/swagger-ui.css": ("swagger-ui/swagger-ui.css.gz", "text/css; charset=utf-8"),
    "docs/swagger-ui-bundle.js": ("swagger-ui/swagger-ui-bundle.js.gz", "text/javascript; charset=utf-8"),
}


class _Page:
    """One answer that is always the same, kept compressed."""

    def __init__(self, packed: bytes, kind: str, cache: str) -> None:
        self._packed = packed
        self._kind = kind
        self._cache = cache
        self._etag = hashlib.sha256(packed).hexdigest()[:32]

    def answer(self) -> Response:
        """For the request at hand: 304 if the client has it, unpacked if it takes no gzip."""
        response = Response(content_type=self._kind)
        response.headers["Cache-Control"] = self._cache
        response.headers["Vary"] = "Accept-Encoding"
        if self._kind.startswith("text/html"):
            response.headers["Content-Security-Policy"] = POLICY
            response.headers["Referrer-Policy"] = "no-referrer"
        response.set_etag(self._etag, weak=True)
        if request.if_none_match.contains_weak(self._etag):
            response.status_code = 304
            del response.headers["Content-Type"]
        elif request.accept_encodings["gzip"] > 0:
            response.headers["Content-Encoding"] = "gzip"
            response.set_data(self._packed)
        else:
            response.set_data(gzip.decompress(self._packed))
        return response


def blueprint_of(document: dict[str, Any]) -> Blueprint:
    """The routes of the page, and of the document it shows."""
    blueprint = Blueprint("docs", __name__)
    text = json.dumps(document, indent=2, ensure_ascii=False).encode()
    pages = {"openapi.json": _Page(_pack(text), "application/json", "no-cache")}
    for name, (file, kind) in _FILES.items():
        data = (STATIC / file).read_bytes()
        cache = "no-cache" if name == "docs" else KEPT
        pages[name] = _Page(data if file.endswith(".gz") else _pack(data), kind, cache)

    @blueprint.get("/openapi.json")
    def openapi_json() -> Response:
        return pages["openapi.json"].answer()

    @blueprint.get("/docs")
    def page() -> Response:
        return pages["docs"].answer()

    @blueprint.get("/docs/<name>")
    def part(name: str) -> Response:
        found = pages.get(f"docs/{name}")
        if found is None:
            raise NotFound
        return found.answer()

    return blueprint


def _pack(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)
