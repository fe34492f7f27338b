"""The listeners of a control plane that leads, one for each socket."""

import gevent

from controlplane.api.app import MAX_BODY
from controlplane.identities import Credentials
from controlplane.listeners.agents import AgentListener
from controlplane.listeners.handshake import Handshakes
from controlplane.listeners.http import Application, HttpListener
from controlplane.listeners.join import MAX_REQUEST, MOST
from controlplane.listeners.sockets import Sockets
from controlplane.listeners.tls import ServerTls
from llmgw.runtime.clock import Clock
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import MAX_REPORT


class Listeners:
    """See the module. ``routers``, ``join`` and ``admin`` answer; ``admin_tls`` is that of the
    admin API, if any."""

    def __init__(
        self,
        sockets: Sockets,
        credentials: Credentials,
        clock: Clock,
        *,
        agents: AgentListener,
        routers: Application,
        join: Application,
        admin: Application,
        admin_tls: ServerTls | None,
    ) -> None:
        self._agents = agents
        self._https = (
            HttpListener(
                sockets["routers.listen"],
                routers,
                Logger("llmgw.routers"),
                max_body=MAX_REPORT,
                tls=Handshakes(credentials.mutual),
                clock=clock,
                mutual=True,
            ),
            HttpListener(
                sockets["join.listen"],
                join,
                Logger("llmgw.join"),
                max_body=MAX_REQUEST,
                tls=Handshakes(credentials.plain),
                clock=clock,
                most=MOST,
            ),
            HttpListener(
                sockets["admin.listen"],
                admin,
                Logger("llmgw.api"),
                max_body=MAX_BODY,
                tls=None if admin_tls is None else Handshakes(admin_tls),
                clock=clock,
            ),
        )

    def start(self) -> None:
        """Begin to answer."""
        self._agents.start()
        for each in self._https:
            each.start()

    def stop(self, why: str) -> None:
        """Say goodbye to agents, with ``why``, and let everybody go, within half a second."""
        partings = [gevent.spawn(each.stop, 0.2) for each in self._https]
        gevent.joinall([gevent.spawn(self._agents.stop, 0.4, why), *partings])
