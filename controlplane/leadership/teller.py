"""Tells the control plane that the lease was taken from: see ``controlplane.leadership.notice``.

Uses ``http.client``, which is cooperative in a patched process.
"""

import http.client
import random
import socket
from contextlib import closing

import gevent

from controlplane.leadership.driver import Leadership
from controlplane.leadership.lease import Holder
from controlplane.leadership.notice import EVERY, MAX_NAME, MAX_NOTICE, NOTICE_PATH, Notice, NotTold, settled
from controlplane.offhub import off_hub
from llmgw.identity.folder import Folder
from llmgw.identity.names import IdentityError
from llmgw.identity.tls import ClientTls, explain
from llmgw.runtime.faults import SettingsError
from llmgw.runtime.kinds import Address, parse_address
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import encode

log = Logger("llmgw.leadership")

LIMIT = 10.0
"""Seconds for one try, all of it."""


class Teller:
    """For one term: tells whom ``leadership`` replaced, until that one leads no more.
    ``folder`` is our identity's; ``rng`` draws the pauses."""

    def __init__(self, leadership: Leadership, folder: Folder, rng: random.Random) -> None:
        self._leadership = leadership
        self._rng = rng
        self._tls = ClientTls(folder)
        self._greenlet: gevent.Greenlet[..., None] | None = None

    def start(self) -> None:
        """Begin, if there is one to be told."""
        before = self._leadership.replaced
        if before is not None:
            self._greenlet = gevent.spawn(self._run, before)

    def stop(self) -> None:
        """Tell no more."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def _run(self, before: Holder) -> None:
        name, where = before.name, before.addresses.get("routers", "")
        warned = False
        while True:
            try:
                settled(*self._ask(parse_address(where)))
            except (NotTold, OSError, ValueError, IdentityError, SettingsError, http.client.HTTPException) as error:
                if not warned:
                    why = explain(error) if isinstance(error, OSError | IdentityError) else str(error) or repr(error)
                    log.warning(
                        "who led before was not told that it leads no more, it is tried again and again: "
                        "if it still runs, stop it, for nodes may stay with it",
                        name=name,
                        address=where,
                        why=why,
                    )
                    warned = True
            else:
                log.info("who led before leads no more", name=name, address=where)
                return
            gevent.sleep(EVERY * self._rng.uniform(0.5, 1.5))

    def _ask(self, address: Address) -> tuple[int, bytes]:
        """Status and body of its answer."""
        notice = Notice(epoch=self._leadership.epoch, name=self._leadership.holder.name[:MAX_NAME])
        with gevent.Timeout(LIMIT, TimeoutError("its answer took too long")):
            plain = socket.create_connection(address, LIMIT)
            try:
                self._tls.use(off_hub(self._tls.load))  # it may have been renewed since
            except BaseException:
                plain.close()
                raise
            secure, _ = self._tls.connect(plain, LIMIT)
            with closing(secure):
                connection = http.client.HTTPConnection(address.host, address.port)
                connection.sock = secure
                connection.request(
                    "POST",
                    NOTICE_PATH,
                    encode(notice),
                    {"Content-Type": "application/json", "Connection": "close"},
                )
                answer = connection.getresponse()
                body = answer.read(MAX_NOTICE + 1)
        if len(body) > MAX_NOTICE:
            raise NotTold(f"its answer is larger than {MAX_NOTICE} bytes")
        return answer.status, body
