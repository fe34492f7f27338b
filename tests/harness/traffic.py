"""What clients do while something breaks: streams that go on for ever, and short requests one after another."""

import threading
import time
from typing import Any

import openai

from tests.harness.streams import OpenStream

ENDLESS = 900_000
"""Tokens of a stream that nobody reads to its end."""


class Traffic:
    """Runs from its making until ``close``, on ``model``: so many streams, and a short request
    every ``every`` seconds. ``answered`` counts the short ones, ``failed`` says when (monotonic)
    and how any of them went wrong, ``slowest`` is the longest of them and ``pause`` the longest
    time without a piece of a stream, in seconds.
    """

    def __init__(self, client: openai.OpenAI, model: str, *, streams: int, every: float = 0.05) -> None:
        self._client = client
        self._model = model
        self._every = every
        self._over = threading.Event()
        self.answered = 0
        self.failed: list[tuple[float, str]] = []
        self.slowest = 0.0
        self.pause = 0.0
        self.streams = [OpenStream(client, model, max_tokens=ENDLESS) for _ in range(streams)]
        for stream in self.streams:
            stream.goes_on(2)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._ask, self._look)]
        for thread in self._threads:
            thread.start()

    @property
    def cut(self) -> list[str]:
        """How the streams ended that should not have."""
        return [repr(stream.error or stream.finish) for stream in self.streams if not stream.is_alive()]

    @property
    def pieces(self) -> int:
        """Pieces of all streams so far."""
        return sum(len(stream.pieces) for stream in self.streams)

    def goes_on(self) -> None:
        """Every stream brings more, and short requests are answered. Fails if not."""
        for stream in self.streams:
            stream.goes_on(2)

    def close(self) -> None:
        """Leave as clients do that close their connections."""
        self._over.set()
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive(), "a request does not end"
        for stream in self.streams:
            stream.close()

    def _ask(self) -> None:
        while not self._over.wait(self._every):
            began = time.monotonic()
            try:
                self._client.completions.create(model=self._model, prompt="x", max_tokens=1)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
                self.failed.append((began, repr(error)))
            else:
                self.answered += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def _look(self) -> None:
        seen: dict[Any, tuple[int, float]] = {}
        while not self._over.wait(0.1):
            now = time.monotonic()
            for stream in self.streams:
                count, since = seen.get(stream, (-1, now))
                if len(stream.pieces) != count:
                    seen[stream] = (len(stream.pieces), now)
                else:
                    self.pause = max(self.pause, now - since)
