"""The route table: routes of the loop + API keys, encoded once, with a generation.

Routers wait on it by generation (RTR-03). The generation is ``boot-number``: the
number rises with the content, and ``boot`` differs between terms, of one control plane
process and of several. The table bears the leader's epoch and id, by which a router tells
a leader from one that was replaced (HA-01).
"""

from collections.abc import Iterable, Mapping

import msgspec
from gevent.event import Event

from controlplane.events import PublishRoutes
from llmgw.runtime.logs import Logger
from llmgw.wire.routing import MAX_TABLE, Endpoint, RoutedKey, RoutedModel, RouteTable, encode

log = Logger("llmgw.publish")


class Publisher:
    """Holds the table in force. Before the loop has published routes there is none:
    an empty table would make routers forget what they know."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._number = 0
        self._routes: PublishRoutes | None = None
        self._keys: tuple[RoutedKey, ...] = ()
        self._provider_keys: dict[str, str] = {}
        self._by_name: dict[str, RoutedModel] = {}
        self._changed = Event()
        self._closed = False
        self.generation = ""
        self.body: bytes | None = None

    def set_routes(self, routes: PublishRoutes) -> None:
        """New routes from the loop."""
        if self._routes != routes:
            self._routes = routes
            self._by_name = {alias: model for model in routes.models for alias in model.aliases}
            self._by_name |= {model.name: model for model in routes.models}
            self._publish()

    def set_provider_keys(self, keys: Mapping[str, str]) -> None:
        """The keys of external models, by the file they were read from (CAT-10). A file
        that cannot be read any more keeps its last key until the loop takes the endpoint
        out, so that no table is ever without a key that its endpoint needs."""
        used = set(self._routes.key_files.values()) if self._routes is not None else set()
        fresh = {file: key for file, key in self._provider_keys.items() if file in used} | dict(keys)
        if self._provider_keys != fresh:
            self._provider_keys = fresh
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
        routes = self._routes
        generation = f"{self._boot}-{self._number + 1}"
        models = tuple(self._with_key(model, routes.key_files) for model in routes.models)
        body = encode(
            RouteTable(
                generation=generation,
                epoch=routes.epoch,
                leader=routes.leader,
                settling=routes.settling,
                models=models,
                keys=self._keys,
                aliases=routes.aliases,
            )
        )
        if len(body) > MAX_TABLE:
            log.error("the route table is too large to publish: the last one stays", bytes=len(body), limit=MAX_TABLE)
            return
        self._number += 1
        self.generation, self.body = generation, body
        changed, self._changed = self._changed, Event()
        if self._closed:
            self._changed.set()
        changed.set()

    def _with_key(self, model: RoutedModel, files: Mapping[str, str]) -> RoutedModel:
        """The model with the keys of its external endpoints; one without its key is left out."""
        if not any(endpoint.id in files for endpoint in model.endpoints):
            return model
        endpoints: list[Endpoint] = []
        for endpoint in model.endpoints:
            file = files.get(endpoint.id)
            key = self._provider_keys.get(file) if file is not None else endpoint.key
            if key is not None:
                endpoints.append(msgspec.structs.replace(endpoint, key=key))
        return msgspec.structs.replace(model, endpoints=tuple(endpoints))
