"""What crosses between routers and the control plane (RTR-03, DEM-01, DEM-02).

JSON over HTTP on the control plane's router listener::

    GET  /router/v1/table?generation=G&wait=25   200 RouteTable, or 304 when nothing changed
    POST /router/v1/report                       Report -> 204
    POST /router/v1/activate                     Activate -> Activation

each with ``Authorization: Bearer <router token>`` and ``Llmgw-Router: <router id>``.
"""

from typing import Literal

import msgspec

TABLE_PATH = "/router/v1/table"
REPORT_PATH = "/router/v1/report"
ACTIVATE_PATH = "/router/v1/activate"
ROUTER_ID_HEADER = "Llmgw-Router"
MAX_TABLE = 64 * 1024 * 1024
MAX_REPORT = 4 * 1024 * 1024


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the types here: tolerant of unknown fields."""


class Endpoint(Record, frozen=True):
    """Where a request for a model may be sent: a ready replica's leader.

    ``key`` is the engine key to present (a secret; empty = the engine was started
    keyless). ``upstream_model`` replaces the model name in the request.
    """

    id: str
    host: str
    port: int
    upstream_model: str
    key: str = ""
    weight: float = 1.0
    max_inflight: int | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.id}, {self.host}:{self.port})"


ModelState = Literal["ready", "loading", "unplaceable", "parked", "off", "stopped"]


class RoutedModel(Record, frozen=True):
    """A model clients can ask for.

    ``state`` says what to answer when there is no endpoint: ``loading`` is
    ``model_loading`` and so on through ``errors.ROUTER``; ``reason`` goes into that
    answer. ``created`` is Unix time in seconds, for ``/v1/models``.
    """

    name: str
    state: ModelState
    endpoints: tuple[Endpoint, ...] = ()
    aliases: tuple[str, ...] = ()
    reason: str = ""
    created: int = 0
    retry_after: int | None = None
    listed: bool = True
    withdrawn: tuple[str, ...] = ()
    """Ids of endpoints that must get no new requests although the table settles: their
    replicas drain, stop or failed."""


class RoutedKey(Record, frozen=True):
    """A client's API key as the router knows it: its SHA-256 in hex, never the key.

    ``models`` is ``None`` for all models; ``expires`` is Unix time in seconds.
    """

    id: str
    digest: str
    models: tuple[str, ...] | None = None
    expires: float | None = None


class RouteTable(Record, frozen=True):
    """Everything a router needs, replaced as a whole.

    ``generation`` is opaque and changes with the content; it differs between control
    plane processes. While ``settling`` is true the control plane has not heard from
    every agent yet: endpoints a router knows from before, of models that are still
    listed, stay in use even if the table lacks them (REC-25), unless ``withdrawn``.
    """

    generation: str
    settling: bool = False
    auth: bool = True
    models: tuple[RoutedModel, ...] = ()
    keys: tuple[RoutedKey, ...] = ()


class EndpointLoad(Record, frozen=True):
    """One endpoint since the router's last report.

    ``idle_seconds`` since a request was last handed to it; ``None`` = not since this
    router process started, which is unknown rather than idle (DEM-01).
    """

    id: str
    inflight: int = 0
    idle_seconds: float | None = None
    answered_seconds: float | None = None
    failures: int = 0


class Report(Record, frozen=True):
    """Sent once a second by each router process. ``boot`` + ``sequence`` identify it
    so that nothing counts twice."""

    boot: str
    sequence: int
    version: str
    generation: str = ""
    endpoints: tuple[EndpointLoad, ...] = ()


class Activate(Record, frozen=True):
    """A request came for a model that has no ready endpoint."""

    model: str


class Activation(Record, frozen=True):
    """The control plane's answer: the model as it is routed now."""

    model: RoutedModel | None = None


_table_decoder = msgspec.json.Decoder(RouteTable)
_encoder = msgspec.json.Encoder()


def encode(record: Record) -> bytes:
    """JSON of any record of this module."""
    return _encoder.encode(record)


def decode_table(data: bytes) -> RouteTable:
    """Raises ``msgspec.DecodeError`` (with the path of the fault) on anything else."""
    try:
        return _table_decoder.decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError(str(error)) from error
