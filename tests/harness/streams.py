"""Streams that a test keeps open while it breaks something."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from tests.harness.waiting import until


class OpenStream(threading.Thread):
    """A chat stream read by the official client in a thread of its own.

    ``pieces`` is what came so far, ``finish`` its finish reason, ``error`` what broke it.
    """

    def __init__(self, client: openai.OpenAI, model: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self.pieces: list[str] = []
        self.finish: str | None = None
        self.error: Exception | None = None
        self._closing = threading.Event()
        self._client = client
        self._request = {"model": model, "messages": [{"role": "user", "content": "go on"}], **options}
        self.start()

    def run(self) -> None:
        """Read until the end, an error, or ``close``."""
        try:
            with self._client.chat.completions.create(stream=True, **self._request) as stream:
                for chunk in stream:
                    if self._closing.is_set():
                        return
                    for choice in chunk.choices:
                        self.pieces.append(choice.delta.content or "")
                        self.finish = choice.finish_reason or self.finish
        except Exception as error:  # noqa: BLE001 - whatever it is, the test wants to see it
            self.error = error

    def goes_on(self, more: int = 5, seconds: float = 20.0) -> None:
        """Wait until ``more`` further pieces came; fails if the stream broke or ended."""
        goal = len(self.pieces) + more

        def grown() -> bool:
            if self.error is not None:
                raise RuntimeError(f"the stream broke after {len(self.pieces)} pieces") from self.error
            if not self.is_alive() and len(self.pieces) < goal:
                raise RuntimeError(f"the stream ended ({self.finish}) after {len(self.pieces)} pieces")
            return len(self.pieces) >= goal

        until(grown, seconds, f"{more} more pieces of the stream")

    def close(self) -> None:
        """Leave as a client does that closes its connection."""
        self._closing.set()
        self.join(20)
        assert not self.is_alive(), "the stream's reader does not end"


class RawStream:
    """A completion stream over a connection whose port is known, so that one can tell
    which process serves it."""

    def __init__(self, port: int, key: str, body: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._connection.request("POST", "/v1/completions", json.dumps({"stream": True, **body}), head)
        self.local_port = int(self._connection.sock.getsockname()[1])
        self.response = self._connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def line(self) -> bytes:
        """The next line of the stream that is not empty. Raises ``OSError`` or
        ``http.client.HTTPException`` when it broke; ``b""`` at its end."""
        while (line := self.response.readline()) == b"\n":
            pass
        return line

    def close(self) -> None:
        """Close the connection."""
        self.response.close()
        self._connection.close()


@contextmanager
def closing_all(streams: list[RawStream]) -> Iterator[list[RawStream]]:
    """Close every stream at the end."""
    try:
        yield streams
    finally:
        for stream in streams:
            stream.close()


def children(pid: int) -> list[int]:
    """Child processes of a process."""
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def server_of(local_port: int, server_port: int, candidates: list[int]) -> int | None:
    """Which of the processes holds the server's end of a loopback connection."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ends = [int(field.rpartition(":")[2], 16) for field in fields[1:3]]
        if ends == [server_port, local_port]:
            link = f"socket:[{fields[9]}]"
            for pid in candidates:
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    try:
                        if str(descriptor.readlink()) == link:
                            return pid
                    except FileNotFoundError:
                        continue
    return None
