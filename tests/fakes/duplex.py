"""A TLS connection that one thread reads while another writes."""

import select
import ssl
import threading
import time


class Duplex:
    """``ssl`` lets two threads into one connection at once, which OpenSSL does not allow: here they take
    turns, and nobody waits for the peer within a turn. A read or write takes ``timeout`` seconds at most."""

    def __init__(self, connection: ssl.SSLSocket, timeout: float = 60.0) -> None:
        self.tls = connection
        self.tls.setblocking(False)
        self._timeout = timeout
        self._turn = threading.Lock()

    def recv(self, size: int) -> bytes:
        """What has come, ``b""`` at the end. Raises ``OSError``; waits for ever."""
        while True:
            with self._turn:
                try:
                    return self.tls.recv(size)
                except ssl.SSLWantReadError:
                    pass
            select.select([self.tls], [], [], 1.0)

    def sendall(self, data: bytes) -> None:
        """Send it all. Raises ``OSError``, also when the peer does not read."""
        deadline = time.monotonic() + self._timeout
        rest = memoryview(data)
        while rest:
            with self._turn:
                try:
                    rest = rest[self.tls.send(rest) :]
                    continue
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
            if time.monotonic() > deadline:
                raise TimeoutError("the peer does not read")
            select.select([], [self.tls], [], 1.0)

    def shutdown(self, how: int) -> None:
        """End it without TLS's farewell."""
        self.tls.shutdown(how)

    def close(self) -> None:
        """Close it."""
        self.tls.close()
