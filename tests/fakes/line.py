"""A TCP line to a server, which a test can cut: then nothing gets through, and nobody is told."""

import socket
import threading
from contextlib import suppress


class Line:
    """Takes connections on ``port`` for that of the server. While ``cut``, they are taken, what
    is sent waits, and no answer comes."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._through = threading.Event()
        self._through.set()
        self._over = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def cut(self) -> None:
        """Nothing gets through from now on."""
        self._through.clear()

    def mend(self) -> None:
        """Everything does again, also what was sent meanwhile."""
        self._through.set()

    def close(self) -> None:
        """End every connection, and take no more."""
        self._over = True
        self.mend()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._over:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._spawn(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self._through.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._server))
        except OSError:
            client.close()
            return
        self._sockets.append(server)
        self._spawn(self._pass, client, server)
        self._spawn(self._pass, server, client)

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                self._through.wait()
                other.sendall(data)
        self._through.wait()
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _spawn(work: object, *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()  # type: ignore[arg-type]
