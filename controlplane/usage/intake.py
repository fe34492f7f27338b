"""Routers' usage batches: durable in the spool before they are acknowledged, written to
the store afterwards, counted once (STO-03).

What a router says is bounded here: a token of a router is no reason to believe it
without limits. Names that the control plane never heard of are counted together once
there are too many of them, moments lie between a month ago and now.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from controlplane.store.feed import Appender
from controlplane.store.port import Transaction
from controlplane.store.values import Counted, RequestEntry, UsageOf
from llmgw.runtime.clock import Clock
from llmgw.wire.routing import RequestRecord, UsageBatch

OLDEST = 31 * 86_400.0
"""Seconds back beyond which no request is said to have begun."""

MOST_TOKENS = 10**9
"""Tokens of one request; more is said by nobody who means well, and would in time
overflow a sum."""

MAX_SENDERS = 4096
"""Router processes whose last batch is remembered."""

MAX_UNKNOWN = 500
"""Names the control plane does not know that one router may use at a time."""

SPOOL = "usage"
"""Directory of the spool in the state directory."""

OTHER = "(other)"
"""What the rest of them is counted under."""


class Spooled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch as it lies in the spool: who sent it, when it came (Unix time), and the
    scope of each key at that moment."""

    router: str
    at: float
    batch: UsageBatch
    scopes: dict[str, str] = {}


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Spooled)


class UsageIntake:
    """Takes batches in. ``scopes`` gives the scope by id of every key there is,
    ``knows_model`` tells whether the catalog has a name."""

    def __init__(
        self,
        appender: Appender,
        clock: Clock,
        scopes: Callable[[], Mapping[str, str]],
        knows_model: Callable[[str], bool],
    ) -> None:
        self._appender = appender
        self._clock = clock
        self._scopes = scopes
        self._knows_model = knows_model
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._unknown: dict[str, set[str]] = {}

    def take(self, router_id: str, batch: UsageBatch) -> None:
        """Return once the batch is durable, or was so before. Raises ``SpoolFull``: the
        router keeps it and sends it again. Only what was taken just before is known here to
        be repeated; whatever else comes again the store finds out."""
        sender = (router_id, batch.boot)
        if batch.sequence == self._last.get(sender):
            return
        record = self._encoded(router_id, batch)
        self._appender.append(record)
        self._last.pop(sender, None)
        self._last[sender] = batch.sequence
        while len(self._last) > MAX_SENDERS:
            self._last.popitem(last=False)

    def _encoded(self, router_id: str, batch: UsageBatch) -> bytes:
        known = self._scopes()
        scopes: dict[str, str] = {}
        models: dict[str, str] = {}
        for record in batch.records:
            if record.key and record.key not in scopes:
                scopes[record.key] = known.get(record.key, "")
            if record.model not in models:
                models[record.model] = self._name(router_id, "model", record.model, self._knows_model(record.model))
        keys = {key: self._name(router_id, "key", key, key in known) for key in scopes}
        renamed = {old: new for names in (keys, models) for old, new in names.items() if old != new}
        if renamed:
            batch = msgspec.structs.replace(batch, records=tuple(_renamed(r, keys, models) for r in batch.records))
        scopes = {key: scope for key, scope in scopes.items() if scope}
        at = self._clock.now().timestamp()
        return _encoder.encode(Spooled(router=router_id, at=at, batch=batch, scopes=scopes))

    def _name(self, router_id: str, kind: str, name: str, known: bool) -> str:
        """``name``, or ``OTHER`` once this router used too many that nobody knows."""
        if known or not name:
            return name
        unknown = self._unknown.setdefault(router_id, set())
        mark = f"{kind} {name}"
        if mark not in unknown and len(unknown) >= MAX_UNKNOWN:
            return OTHER
        unknown.add(mark)
        return name


def put(tx: Transaction, records: Sequence[bytes], *, log: bool) -> Counted:
    """Write spooled batches: sums, and each request if ``log``. A batch that was counted
    before does nothing."""
    batches = []
    for record in records:
        spooled = _decoder.decode(record)
        batch = spooled.batch
        made = spooled.at - batch.waited
        entries = tuple(
            _entry(spooled, item, min(max(made - item.ago, spooled.at - OLDEST), spooled.at)) for item in batch.records
        )
        batches.append(UsageOf(spooled.router, batch.boot, batch.sequence, entries))
    return tx.usage.add(batches, log=log)


def _entry(spooled: Spooled, item: RequestRecord, at: float) -> RequestEntry:
    return RequestEntry(
        at=at,
        id=item.id,
        key=item.key,
        scope=spooled.scopes.get(item.key, ""),
        model=item.model,
        status=item.status,
        router=spooled.router,
        asked=item.asked,
        replica=item.endpoint,
        code=item.code,
        stream=item.stream,
        first_byte=item.first_byte,
        duration=item.duration,
        prompt_tokens=_tokens(item.prompt_tokens),
        completion_tokens=_tokens(item.completion_tokens),
        cached_tokens=_tokens(item.cached_tokens),
        retried=item.retried,
    )


def _tokens(count: int | None) -> int | None:
    return None if count is None else min(count, MOST_TOKENS)


def _renamed(record: RequestRecord, keys: Mapping[str, str], models: Mapping[str, str]) -> RequestRecord:
    key, model = keys.get(record.key, record.key), models[record.model]
    if key == record.key and model == record.model:
        return record
    return msgspec.structs.replace(record, key=key, model=model)
