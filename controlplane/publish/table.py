"""The route table: routes of the loop + API keys, encoded once, with a generation.

Routers wait on it by generation (RTR-03). The generation is ``boot-number``: the
number rises with the content, and ``boot`` differs between control plane processes.
"""

from collections.abc import Iterable

from gevent.event import Event

from llmgw.runtime.logs import Logger
from llmgw.wire.routing import MAX_TABLE, RoutedKey, RoutedModel, RouteTable, encode

log = Logger("llmgw.publish")


class Publisher:
    """Holds the table in force. Before the loop has published routes there is none:
    an empty table would make routers forget what they know."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._number = 0
        self._routes: tuple[tuple[RoutedModel, ...], bool] | None = None
        self._keys: tuple[RoutedKey, ...] = ()
        self._by_name: dict[str, RoutedModel] = {}
        self._changed = Event()
        self._closed = False
        self.generation = ""
        self.body: bytes | None = None

    def set_routes(self, models: tuple[RoutedModel, ...], settling: bool) -> None:
        """New routes from the loop."""
        if self._routes != (models, settling):
            self._routes = (models, settling)
            self._by_name = {alias: model for model in models for alias in model.aliases}
            self._by_name |= {model.name: model for model in models}
            self._publish()

    def set_keys(self, keys: Iterable[RoutedKey]) -> None:
        """The keys clients may use from now on."""
        fresh = tuple(keys)
        if self._keys != fresh:
            self._keys = fresh
            self._publish()

    def model(self, name: str) -> RoutedModel | None:
        """A model as it is routed now, by name or alias."""
        return self._by_name.get(name)

    def wait(self, generation: str, seconds: float) -> bytes | None:
        """The encoded table once its generation differs from ``generation``; ``None``
        if it does not within ``seconds``, or there is no table by then."""
        if (self.body is None or self.generation == generation) and not self._closed:
            self._changed.wait(seconds)
        return self.body if self.generation != generation else None

    def close(self) -> None:
        """Wake everybody who waits; nobody waits from now on."""
        self._closed = True
        self._changed.set()

    def _publish(self) -> None:
        if self._routes is None:
            return
        models, settling = self._routes
        generation = f"{self._boot}-{self._number + 1}"
        body = encode(RouteTable(generation=generation, settling=settling, models=models, keys=self._keys))
        if len(body) > MAX_TABLE:
            log.error("the route table is too large to publish: the last one stays", bytes=len(body), limit=MAX_TABLE)
            return
        self._number += 1
        self.generation, self.body = generation, body
        changed, self._changed = self._changed, Event()
        if self._closed:
            self._changed.set()
        changed.set()
