"""A control plane that stands by, as it answers those who ask it (HA-01)."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from controlplane.standby import MAX_BODY, PIECE, Standby, _Answers


class Endless:
    """A body that goes on and on."""

    def __init__(self) -> None:
        self.read_sizes: list[int] = []

    def read(self, size: int) -> bytes:
        self.read_sizes.append(size)
        return b"x" * size


@pytest.mark.parametrize("length", [0, 100, MAX_BODY, 10 * MAX_BODY])
def test_a_body_is_read_in_pieces_and_kept_nowhere(length: int) -> None:
    """SEC-02, HA-01: anybody may connect where nodes join, and a thousand large requests are to fill no memory."""
    standby = MagicMock(spec=Standby, words="w")
    standby.leader.return_value = ""
    body = Endless()
    environ: dict[str, Any] = {
        "CONTENT_LENGTH": str(length),
        "PATH_INFO": "/join/v1/certificate",
        "REQUEST_METHOD": "POST",
        "wsgi.input": body,
    }
    started = MagicMock()
    assert b"not_leader" in b"".join(_Answers("join", standby)(environ, started))
    assert started.call_args[0][0].startswith("503")
    assert sum(body.read_sizes) == min(length, MAX_BODY) and max(body.read_sizes, default=0) <= PIECE
