"""An agent at the routers' port, and a router at the agents': each is told where to go."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from controlplane.inbox import Inbox
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.http import PEER
from controlplane.listeners.routers import RouterApplication
from controlplane.services.identities import Identities
from llmgw.identity.names import Identity, Presented
from llmgw.runtime.clock import SystemClock
from llmgw.runtime.settings import Address
from llmgw.wire.routing import TABLE_PATH
from tests.harness import identities as made
from tests.unit.controlplane.edges.peers import Peer, credentials, known


def asked(identities: Identities, shown: Identity, path: str, **more: Any) -> tuple[str, dict[str, str]]:
    """What the routers' listener answers."""
    application = RouterApplication(
        MagicMock(),
        Inbox(),
        credentials=MagicMock(),
        identities=identities,
        clock=SystemClock(),
        leads=lambda: (1, "l"),
        superseded=MagicMock(),
        take_usage=MagicMock(),
    )
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, PEER: Presented(shown, "0A", 1.0, 2.0), **more}
    answered = MagicMock()
    body = b"".join(application(environ, answered))
    return answered.call_args[0][0], json.loads(body)


def test_an_agent_at_the_routers_port_is_sent_to_its_own() -> None:
    """And nothing without a name is remembered, which status would list."""
    identities = known(Inbox())
    status, said = asked(identities, Identity("node", "gpu-7"), "/agent/v1/session", HTTP_LLMGW_NODE="gpu-7")
    assert status.startswith("403") and said["code"] == "unauthorised"
    assert said["message"].startswith("the certificate is that of node gpu-7, and this is routers.listen")
    assert "agents go to agents.listen (port 7001" in said["message"]
    assert len(said["message"]) <= 300  # what an agent repeats of it
    assert not identities.refused


def test_a_router_with_an_agents_certificate_is_not_sent_away() -> None:
    """It is at the right port, and has the wrong folder."""
    identities = known(Inbox())
    _, said = asked(identities, Identity("node", "gpu-7"), TABLE_PATH, HTTP_LLMGW_ROUTER="r1")
    assert "that of node gpu-7, not of router r1: give it its own with llmgw join router" in said["message"]
    assert set(identities.refused) == {("router", "r1")}


def test_a_router_without_a_name_is_told_so_and_leaves_none() -> None:
    identities = known(Inbox())
    status, said = asked(identities, Identity("router", "r1"), TABLE_PATH)
    assert status.startswith("403") and said["message"] == (
        "the certificate is that of router r1, and the header Llmgw-Router does not say which router asks"
    )
    assert not identities.refused


def test_a_router_at_the_agents_port_is_sent_to_its_own(tmp_path: Path) -> None:
    identities = known(Inbox())
    listener = AgentListener(
        Address("127.0.0.1", 0), Inbox(), credentials(tmp_path / "controlplane"), identities, SystemClock()
    ).start()
    try:
        peer = Peer(listener.address, made.ours().router(tmp_path / "r1", "r1"))
        peer.sock.sendall(f"GET {TABLE_PATH} HTTP/1.1\r\nHost: c\r\n\r\n".encode())
        head, _, body = peer.answer().partition(b"\r\n\r\n")
    finally:
        listener.stop(0.1)
    said = json.loads(body)
    assert head.startswith(b"HTTP/1.1 403 ") and said["code"] == "unauthorised"
    assert said["message"].startswith("the certificate is that of router r1, and this is agents.listen")
    assert "routers go to routers.listen (port 7002" in said["message"]
    assert not identities.refused
