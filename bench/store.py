"""The store under usage: how fast, how large, how quick to ask: ``python bench/store.py``.

Roll-ups of a simulated week at 1,000 requests a second, and a request log of five million
rows, in SQLite and in PostgreSQL, through the product's own code: batches as routers send
them, the spool, the queries. See ``bench/README.md``.
"""

import argparse
import contextlib
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # the checkout, instead of this directory

import msgspec  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.tools import CACHE, say  # noqa: E402
from controlplane.store.check import look  # noqa: E402
from controlplane.store.database import Backend, Database  # noqa: E402
from controlplane.store.feed import MAX_BYTES, MAX_RECORDS  # noqa: E402
from controlplane.store.move import writing  # noqa: E402
from controlplane.store.port import Transaction  # noqa: E402
from controlplane.store.postgresql import Postgresql  # noqa: E402
from controlplane.store.retention import BATCH  # noqa: E402
from controlplane.store.spool import Spool  # noqa: E402
from controlplane.store.sqlite import Sqlite  # noqa: E402
from controlplane.usage.intake import Spooled, put  # noqa: E402
from llmgw.wire.routing import RequestRecord, UsageBatch  # noqa: E402
from tests.fakes.postgresql import Server  # noqa: E402

WEEK = 7 * 86_400
START = 1_800_000_000.0
PER_SECOND = 1000
KEYS = [f"key-{number:012x}" for number in range(50)]
MODELS = [f"org/model-{number}-instruct" for number in range(20)]
WAITING = 6
"""Batches that wait in the spool when it is read, as after a minute without a store."""

RARE = 100_000
"""One request in so many is of a rare key, model and fault."""


@dataclass
class Figures:
    """What a run of one backend found."""

    backend: str
    rows: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, value: str) -> None:
        """One line of the table."""
        self.rows.append((name, value))
        say.print(f"  {self.backend}: {name}: {value}", markup=False)


class Traffic:
    """Batches of one second, each with ``PER_SECOND`` requests."""

    def __init__(self, seed: int = 1) -> None:
        self._chance = random.Random(seed)
        self._sequence = 0
        self._count = 0

    def batch(self, at: float) -> bytes:
        """A batch as it lies in the spool."""
        self._sequence += 1
        records = tuple(self._record() for _ in range(PER_SECOND))
        batch = UsageBatch(boot="bench", sequence=self._sequence, records=records)
        scopes = {key: f"acme/team-{number % 7}" for number, key in enumerate(KEYS)}
        return msgspec.json.encode(Spooled(router="router-1", at=at, batch=batch, scopes=scopes))

    def _record(self) -> RequestRecord:
        chance = self._chance
        self._count += 1
        rare = self._count % RARE == RARE // 2
        failed = chance.random() < 0.01
        model = "org/rare-model" if rare else chance.choice(MODELS)
        return RequestRecord(
            id=f"req-{self._count:024x}",
            ago=chance.random() * 3,
            key="key-rare" if rare else chance.choice(KEYS),
            model=model,
            asked=model,
            status=503 if failed else 200,
            code="engine_unreachable" if rare else "overloaded" if failed else "",
            endpoint=f"{model}-{self._count % 4}-abcdef",
            stream=chance.random() < 0.7,
            first_byte=chance.random(),
            duration=chance.random() * 20,
            prompt_tokens=None if failed else chance.randrange(20_000),
            completion_tokens=None if failed else chance.randrange(2000),
        )


# ---------------------------------------------------------------- runs


def rollups(backend: Backend, figures: Figures, every: int, folder: Path) -> None:
    """Every so-many-th second of a week, each with all its requests."""
    database = Database(backend).open()
    spool = Spool(folder / "spool", 10**10).open()
    traffic = Traffic()
    durable, written, batches, cpu = [], [], 0, 0.0
    for second in range(0, WEEK, every):
        record = traffic.batch(START + second)
        durable.append(timed(lambda record=record: spool.append([record])))
        if len(durable) % WAITING and second + every < WEEK:
            continue
        while chunk := spool.read(MAX_RECORDS, MAX_BYTES):
            began = time.process_time()
            written.append(timed(lambda chunk=chunk: database.transact(lambda tx: put(tx, chunk.records, log=False))))
            cpu += time.process_time() - began
            batches += len(chunk.records)
            spool.drop(chunk.end)
    spool.close()
    figures.add("roll-ups: batches of 1,000 requests written", f"{batches} (every {every}th second of a week)")
    figures.add("roll-ups: to be durable in the spool, median / p99", spread(durable))
    figures.add(f"roll-ups: {batches / len(written):.1f} batches to be in the store, median / p99", spread(written))
    figures.add(
        "roll-ups: sustained",
        f"{batches / sum(written):.0f} batches/s (1/s arrives), {cpu / batches * 1e3:.1f} ms of CPU each",
    )
    found = look(backend, folder / "spool")
    figures.add("roll-ups: rows and size", f"{found.rows['usage']:,} rows, {(found.bytes or 0) / 2**20:.0f} MiB")
    for by in (("day",), ("key",), ("model",), ("day", "key", "model"), ("hour",)):
        ask(
            database,
            figures,
            f"usage of the week by {', '.join(by)}",
            lambda tx, by=by: tx.usage.rows(START, START + WEEK, by=by),
        )
    ask(
        database,
        figures,
        "usage of the week of one scope by day",
        lambda tx: tx.usage.rows(START, START + WEEK, by=("day",), scope="acme/team-3"),
    )
    database.close()


def request_log(backend: Backend, figures: Figures, total: int, folder: Path) -> None:
    """A log of ``total`` requests: written, asked, forgotten while more is written."""
    before = look(backend, folder / "spool").bytes or 0
    database = Database(backend).open()
    traffic = Traffic(2)
    written: list[float] = []
    making = 0.0
    with contextlib.ExitStack() as stack:
        tell = stack.enter_context(progress(total))
        for number in range(total // PER_SECOND):
            began = time.perf_counter()
            record = traffic.batch(START + number)
            making += time.perf_counter() - began
            written.append(timed(lambda record=record: database.transact(lambda tx: put(tx, [record], log=True))))
            tell((number + 1) * PER_SECOND)
    last = written[-min(len(written), 300) :]
    figures.add("log: rows written", f"{total:,} in {sum(written):.0f} s")
    figures.add(
        "log: sustained",
        f"{total / sum(written):,.0f} rows/s; at the end {len(last) * PER_SECOND / sum(last):,.0f} rows/s",
    )
    figures.add("log: one batch of 1,000, median / p99", spread(written))
    settle(backend)
    size = (look(backend, folder / "spool").bytes or 0) - before
    figures.add("log: size", f"{size / 2**20:,.0f} MiB, {size / total:.0f} bytes a row")
    questions(database, figures, total)
    forget(database, figures, traffic, START + total // PER_SECOND)
    database.close()


def questions(database: Database, figures: Figures, total: int) -> None:
    """What people ask of the log."""
    page = 100
    middle = START + total / PER_SECOND / 2

    def logged(**more: Any) -> Callable[[Transaction], Any]:
        return lambda tx: tx.usage.requests(page, **more)

    for name, work in (
        ("newest page", logged()),
        ("by key", logged(key=KEYS[3])),
        ("by rare key", logged(key="key-rare")),
        ("by key that made none", logged(key="key-none")),
        ("by model", logged(model=MODELS[3])),
        ("by rare model", logged(model="org/rare-model")),
        ("by model that had none", logged(model="org/none")),
        ("by replica", logged(replica=f"{MODELS[3]}-1-abcdef")),
        ("failed only", logged(failed=True)),
        ("failed only, of a rare model", logged(failed=True, model="org/rare-model")),
        ("by scope", logged(scope="acme/team-3")),
        ("by scope that has none", logged(scope="nobody")),
        ("one minute in the middle", logged(since=middle, until=middle + 60)),
        ("by id", lambda tx: tx.usage.request(f"req-{total // 2:024x}")),
        ("by id that is not there", lambda tx: tx.usage.request("req-none")),
    ):
        ask(database, figures, f"log: {name}", work)
    deep = database.transact(lambda tx: tx.usage.requests(page, until=middle)).next
    ask(database, figures, "log: deep page", logged(cursor=deep))


def forget(database: Database, figures: Figures, traffic: Traffic, now: float) -> None:
    """Retention's transactions and batches in turn, for a while."""
    written, dropped, gone = [], [], 0
    until = time.monotonic() + 20
    while time.monotonic() < until:
        record = traffic.batch(now + len(written))
        written.append(timed(lambda record=record: database.transact(lambda tx: put(tx, [record], log=True))))
        began = time.perf_counter()
        gone += database.transact(lambda tx: tx.usage.drop_requests(now, BATCH))
        dropped.append(time.perf_counter() - began)
    figures.add("retention: drop 2,000 rows, median / p99", spread(dropped))
    figures.add("retention: a batch of 1,000 meanwhile, median / p99", spread(written))
    figures.add("retention: rows forgotten", f"{gone / sum(dropped):,.0f} rows/s while dropping")


# ---------------------------------------------------------------- helpers


def ask(database: Database, figures: Figures, name: str, work: Callable[[Transaction], Any]) -> None:
    """The time of a question: the first, then the median of up to ten within five seconds."""
    times = [timed(lambda: database.transact(work))]
    until = time.monotonic() + 5
    while len(times) < 11 and time.monotonic() < until:
        times.append(timed(lambda: database.transact(work)))
    again = f", again {statistics.median(times[1:]) * 1e3:.1f} ms" if len(times) > 1 else ""
    figures.add(name, f"{times[0] * 1e3:.1f} ms{again}")


def settle(backend: Backend) -> None:
    """What PostgreSQL does by itself sooner or later, now."""
    if isinstance(backend, Postgresql):
        engine = backend.engine(write=True).execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.exec_driver_sql("VACUUM ANALYZE requests")
    else:
        with writing(backend):
            pass


def timed(work: Callable[[], Any]) -> float:
    """Seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(times: list[float]) -> str:
    """Median and 99th percentile."""
    ordered = sorted(times)
    slow = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{statistics.median(ordered) * 1e3:.1f} / {slow * 1e3:.1f} ms"


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Says every tenth that is done."""
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if done * 10 // total > told:
            told = done * 10 // total
            say.print(f"  {done:,} of {total:,} rows", markup=False)

    yield tell


def run(name: str, make: Callable[[], Backend], options: argparse.Namespace, folder: Path) -> Figures:
    """Everything on one kind of database."""
    figures = Figures(name)
    if options.part in ("all", "usage"):
        rollups(make(), figures, options.every, folder)
    if options.part in ("all", "log"):
        request_log(make(), figures, options.rows, folder)
    return figures


def main() -> int:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the request log")
    parser.add_argument("--every", type=int, default=600, help="simulate every so-many-th second of the week")
    parser.add_argument("--backend", choices=("both", "sqlite", "postgresql"), default="both")
    parser.add_argument("--part", choices=("all", "usage", "log"), default="all")
    parser.add_argument("--folder", type=Path, help="where the SQLite file goes (default: the system's temporary one)")
    options = parser.parse_args()
    found: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-", dir=options.folder) as temporary:
        folder = Path(temporary)
        if options.backend != "postgresql":
            found.append(run("SQLite", lambda: Sqlite(folder / "llmgw.db"), options, folder))
        if options.backend != "sqlite":
            server = Server(durable=True, settings={"shared_buffers": "256MB", "max_wal_size": "2GB"}).start()
            try:
                with server.database() as url:
                    (folder / "pg").mkdir()
                    found.append(run("PostgreSQL", lambda: Postgresql(url), options, folder / "pg"))
            finally:
                server.close()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("figure")
    names = list(dict.fromkeys(name for figures in found for name, _ in figures.rows))
    for figures in found:
        table.add_column(figures.backend, justify="right")
    for name in names:
        table.add_row(name, *(dict(figures.rows).get(name, "-") for figures in found))
    Console(width=160, markup=False).print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"Peak memory of this process: {peak:.0f} MiB")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "store.json").write_text(
        json.dumps([{"backend": f.backend, "figures": dict(f.rows)} for f in found], indent=2)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
