"""What a control plane that took the lease says to the one that had it (HA-02). Pure.

That one may be cut off from the store alone: it would keep agents and routers in doubt,
and never hear that another leads. At its listener for routers it takes::

    POST /controlplane/v1/leader    Notice -> Noted

over mTLS; both show a certificate of the kind ``controlplane``. One that stands by answers
503 with the code ``not_leader``, as it does to everybody.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from llmgw.wire.routing import Record

NOTICE_PATH = "/controlplane/v1/leader"

MAX_NOTICE = 4096
"""Bytes of a notice, and of its answer."""

MAX_NAME = 512

EVERY = 5.0
"""Seconds between two tries, on average."""


class Notice(Record, frozen=True):
    """The epoch of who leads by now, and its name, for people."""

    epoch: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""


class Noted(Record, frozen=True):
    """Whether who was told leads nevertheless: beyond doubt, or with no lower epoch."""

    leads: bool


class _Fault(Record, frozen=True):
    code: str = ""
    message: str = ""


class NotTold(Exception):
    """It may still lead; the message says why."""


def settled(status: int, body: bytes) -> None:
    """Return if the answer says that it leads no more. Raises ``NotTold``."""
    try:
        if status == 200:
            if msgspec.json.decode(body, type=Noted).leads:
                raise NotTold("it says that it leads, beyond doubt or with no lower epoch")
            return
        fault = msgspec.json.decode(body, type=_Fault)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotTold(f"it answered {status}, and no JSON of ours") from error
    if fault.code != "not_leader":
        raise NotTold(f"it answered {status}: {fault.message[:300]} ({fault.code[:40]})")
