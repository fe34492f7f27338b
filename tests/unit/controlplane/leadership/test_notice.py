"""What an answer to the word that another leads means (HA-02)."""

import pytest

from controlplane.leadership.notice import Noted, NotTold, settled
from llmgw.wire.routing import encode


def test_who_leads_no_more_is_left_alone() -> None:
    """HA-02: it let go, or stood by already."""
    settled(200, encode(Noted(leads=False)))
    settled(503, b'{"code": "not_leader", "message": "this control plane stands by", "leader": "10.0.0.1:7002"}')


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, encode(Noted(leads=True)), "it says that it leads"),
        (200, b"{}", "no JSON of ours"),
        (200, b"[" * 3000, "no JSON of ours"),
        (503, b'{"code": "busy", "message": "all connections are in use"}', "503: all connections are in use .busy"),
        (403, b'{"code": "unauthorised", "message": "an older release"}', "403: an older release"),
        (404, b"<html>", "404, and no JSON of ours"),
    ],
)
def test_anything_else_is_told_again(status: int, body: bytes, why: str) -> None:
    """HA-02: it may still lead."""
    with pytest.raises(NotTold, match=why):
        settled(status, body)
