"""A join listener that answers as it is told."""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from llmgw.identity import authority
from llmgw.identity.folder import Folder
from llmgw.identity.joining import Authorities, JoinAnswer, JoinRefusal, JoinRequest
from llmgw.identity.names import Identity, identity
from llmgw.identity.tls import ServerTls
from llmgw.runtime.kinds import Address
from tests.harness import identities
from tests.unit.identity.made import CONTROL_PLANE, NOW, Office

Answer = Callable[[JoinRequest | None], Any]


def signing(office: Office, who: Identity | None = None) -> Answer:
    """Gives everybody a certificate: their own, or that of ``who``."""

    def answer(asked: JoinRequest | None) -> Any:
        if asked is None:
            return Authorities(office.root.decode())
        given = who or identity(asked.kind, asked.name)
        chain = authority.sign(asked.request.encode(), given, office.issuer, office.issuer_key, NOW)
        return JoinAnswer(chain.decode(), office.root.decode())

    return answer


class Listener:
    """Listens on a port of its own while it is entered. ``folder`` is what it shows;
    ``asked`` are the requests that came, ``raw`` every byte that was read."""

    def __init__(self, folder: Folder, answer: Answer) -> None:
        self.tls = ServerTls(folder, clients=False)
        self.tls.use(self.tls.load())
        self.answer = answer
        self.asked: list[JoinRequest] = []
        self.raw = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(*self._socket.getsockname())

    def __enter__(self) -> "Listener":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), identities.answered(self.tls.context, plain) as secure:
                self._exchange(secure)

    def _exchange(self, secure: socket.socket) -> None:
        text = b""
        while b"\r\n\r\n" not in text:
            text += secure.recv(4096)
        head, _, body = text.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += secure.recv(4096)
        self.raw += head + body
        asked = msgspec.json.decode(body, type=JoinRequest) if body else None
        if asked is not None:
            self.asked.append(asked)
        answer = self.answer(asked)
        if answer is None:
            return
        status = "403 Forbidden" if isinstance(answer, JoinRefusal) else "200 OK"
        data = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        secure.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def listener(office: Office, place: Path, answer: Answer | None = None, who: Identity = CONTROL_PLANE) -> Listener:
    """One of a control plane under ``office``."""
    return Listener(office.folder(place, who), answer or signing(office))
