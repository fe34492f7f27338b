"""What crosses between routers and the control plane (RTR-03, DEM-01, DEM-02).

JSON over HTTP on the control plane's router listener::

    GET  /router/v1/table?generation=G&wait=25   200 RouteTable, or 304 when nothing changed
    POST /router/v1/report                       Report -> 204
    POST /router/v1/activate                     Activate -> Activation
    POST /router/v1/usage                        UsageBatch -> 204, once it is durable
    POST /router/v1/identity                     Renewal -> Renewed

each over mTLS with ``Llmgw-Router: <router id>``, which must be the certificate's identity
(SEC-01), and ``Llmgw-Epoch: <highest epoch of a table seen> <its leader>``. A control plane that does
not lead answers 503 with the code ``not_leader`` and, if known, ``leader``: the address
to go to.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TABLE_PATH = "/router/v1/table"
REPORT_PATH = "/router/v1/report"
ACTIVATE_PATH = "/router/v1/activate"
USAGE_PATH = "/router/v1/usage"
IDENTITY_PATH = "/router/v1/identity"
ROUTER_ID_HEADER = "Llmgw-Router"
EPOCH_HEADER = "Llmgw-Epoch"
MAX_TABLE = 64 * 1024 * 1024
MAX_REPORT = 4 * 1024 * 1024
MAX_LOADS = 50_000


_Name = Annotated[str, Meta(max_length=512)]
_Boot = Annotated[str, Meta(min_length=1, max_length=64)]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of the types here: tolerant of unknown fields."""


class Endpoint(Record, frozen=True):
    """Where a request for a model may be sent: a ready replica's leader, or an external
    provider (CAT-10), which alone has ``tls`` and a ``prefix`` (what comes before
    ``/chat/completions`` in its paths, such as ``/openai/v1``; replicas have ``/v1``).

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
    external: bool = False
    tls: bool = False
    prefix: str = "/v1"

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
    fallbacks: tuple[str, ...] = ()
    """Models to try in this order while this one has no endpoint (CAT-10)."""
    guard: bool = False
    """A judge model: clients can neither list nor ask it (CAT-11)."""


class RoutedAlias(Record, frozen=True):
    """A name that stands for several models by weight (CAT-13): drawn per request, or,
    if ``sticky``, the same for one client key while the weights stay."""

    name: str
    targets: tuple[tuple[str, float], ...]
    sticky: bool = False


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

    ``epoch`` is the publishing leader's, ``leader`` its random id: a router takes no table
    of a lower epoch than it has seen, nor of the same one of another leader (HA-01).
    """

    generation: str
    epoch: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    leader: str = ""
    settling: bool = False
    auth: bool = True
    models: tuple[RoutedModel, ...] = ()
    keys: tuple[RoutedKey, ...] = ()
    aliases: tuple[RoutedAlias, ...] = ()


class EndpointLoad(Record, frozen=True):
    """One endpoint since the router's last report.

    ``idle_seconds`` since a request was last handed to it; ``None`` = not since this
    router process started, which is unknown rather than idle (DEM-01).
    """

    id: _Name
    inflight: int = 0
    idle_seconds: float | None = None
    answered_seconds: float | None = None
    failures: int = 0


class Report(Record, frozen=True):
    """Sent once a second by each router process. ``boot`` + ``sequence`` identify it
    so that nothing counts twice."""

    boot: _Boot
    sequence: int
    version: _Name
    generation: _Name = ""
    endpoints: Annotated[tuple[EndpointLoad, ...], Meta(max_length=MAX_LOADS)] = ()


_Tokens = Annotated[int, Meta(ge=0, le=2**40)]
_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class RequestRecord(Record, frozen=True):
    """One finished request: metadata only (TEN-06). ``ago`` is how long before the batch
    was made it began, in seconds, since two hosts do not share a clock. ``asked`` is the
    name the client used, ``model`` what it stood for; ``endpoint`` is empty if none was
    reached. ``code`` is one of ``errors.ROUTER``, empty for success. ``retried`` says why
    each earlier try failed. Token counts are ``None`` where the engine did not say."""

    id: _Name
    ago: _Seconds
    key: _Name
    model: _Name
    status: Annotated[int, Meta(ge=0, le=999)]
    asked: _Name = ""
    endpoint: _Name = ""
    code: _Name = ""
    stream: bool = False
    first_byte: _Seconds | None = None
    duration: _Seconds | None = None
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    cached_tokens: _Tokens | None = None
    retried: Annotated[tuple[_Name, ...], Meta(max_length=16)] = ()


MAX_RECORDS = 5000


class UsageBatch(Record, frozen=True):
    """Requests a router process finished. ``sequence`` rises by one with each batch of a
    ``boot``; a batch is sent again, unchanged, until it is answered 204, and counted once
    (STO-03). ``waited`` is how long ago the batch was made, in seconds."""

    boot: _Boot
    sequence: Annotated[int, Meta(ge=1, le=2**53)]
    records: Annotated[tuple[RequestRecord, ...], Meta(max_length=MAX_RECORDS)] = ()
    waited: _Seconds = 0.0


class Activate(Record, frozen=True):
    """A request came for a model that has no ready endpoint."""

    model: str


class Activation(Record, frozen=True):
    """The control plane's answer: the model as it is routed now."""

    model: RoutedModel | None = None


class Renewal(Record, frozen=True):
    """Ask for a new certificate of the same identity (SEC-01): ``request`` is a PEM CSR with
    a new key, empty to ask only for the authorities. ``authorities`` is the SHA-256, in
    hex, of the bundle of authorities the router trusts."""

    request: Annotated[str, Meta(max_length=8192)] = ""
    authorities: Annotated[str, Meta(max_length=64)] = ""


class Renewed(Record, frozen=True):
    """A PEM chain for the request, empty if there is none; a PEM bundle of authorities that
    replaces the router's, empty if its own is current; whether a request is wanted now;
    why the request was refused."""

    certificate: str = ""
    authorities: str = ""
    renew: bool = False
    fault: str = ""


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
