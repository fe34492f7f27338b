"""``/healthz`` for watchdogs and ``/metrics`` for Prometheus, outside the versioned API."""

from flask import Blueprint, Response

from controlplane.api.base import services

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@blueprint.get("/metrics")
def metrics() -> Response:
    """Prometheus text format (OBS-01)."""
    length, parts = services().metrics()  # never in one piece: a large fleet has tens of megabytes
    response = Response(parts, content_type="text/plain; version=0.0.4; charset=utf-8")
    response.content_length = length
    return response
