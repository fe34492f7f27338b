"""Command line of the simulated engine (ENG-07)."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import llmgw

Dialect = Literal["vllm", "sglang", "llamacpp"]
DIALECTS: tuple[Dialect, ...] = ("vllm", "sglang", "llamacpp")

KEY_VARIABLE = "LLMGW_SIM_API_KEY"
"""The key that clients must present comes from this variable only: argv is public."""

DEFAULT_REPLY = "This answer comes from a simulated engine: the same words each time, one token after another."


class _Failure(NamedTuple):
    default: float | None
    """Value when none is given; ``None`` = a value must be given."""
    help: str


FAILURES: dict[str, _Failure] = {
    "exit-on-start": _Failure(1, "write a load error and exit with this status (1) before listening"),
    "hang-on-start": _Failure(0, "never become ready"),
    "slow-start": _Failure(None, "add this many seconds to the load time"),
    "crash-after": _Failure(None, "die by SIGABRT once this many requests were answered"),
    "crash-on-request": _Failure(0, "die by SIGABRT when a request for tokens arrives"),
    "hang-on-request": _Failure(0, "accept requests for tokens and never answer them"),
    "error": _Failure(500, "answer requests for tokens with this status (500)"),
    "cut-stream-after": _Failure(None, "close the connection after this many chunks of a stream"),
    "ignore-sigterm": _Failure(0, "go on after any number of SIGTERMs"),
}


@dataclass(frozen=True)
class Options:
    """What the engine was told. Times in seconds, rates in tokens per second.

    ``queue_limit`` and ``kv_tokens`` are ``None`` for no limit; ``decode_rate`` and
    ``prefill_rate`` are 0 for no delay.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "sim"
    dialect: Dialect = "vllm"
    key: str = field(default="", repr=False)
    load_time: float = 0.0
    ttft: float = 0.0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    slots: int = 8
    queue_limit: int | None = None
    kv_tokens: int | None = None
    context: int = 8192
    reply: str = DEFAULT_REPLY
    loop: bool = False
    embeddings: bool = False
    ping_interval: float = 30.0
    nnodes: int = 1
    node_rank: int = 0
    rendezvous: tuple[str, int] | None = None
    failures: dict[str, float] = field(default_factory=dict)


def _failure(text: str) -> tuple[str, float]:
    name, given, value = text.partition("=")
    kind = FAILURES.get(name)
    if kind is None:
        raise argparse.ArgumentTypeError(f"{name!r} is not a failure mode; there are {', '.join(FAILURES)}")
    if not given and kind.default is None:
        raise argparse.ArgumentTypeError(f"needs a number: {name}=N")
    try:
        return name, float(value) if given else float(kind.default or 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number") from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError("must be HOST:PORT")
    return host.strip("[]"), int(port)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError("must be a number, 0 or more")
    return value


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError("must be a whole number, 0 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    modes = "\n".join(
        f"  {name + ('=N' if mode.default is None else ''):20} {mode.help}" for name, mode in FAILURES.items()
    )
    parser = argparse.ArgumentParser(
        prog="llmgw sim-engine",
        description="A simulated inference engine: OpenAI's API without a model.",
        epilog=f"failure modes (--fail, repeatable; NAME or NAME=N):\n{modes}\n\n"
        f"The key clients must present is read from the environment variable {KEY_VARIABLE}.\n"
        "GET /sim/state tells what it is doing.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"llmgw-sim {llmgw.__version__}")
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=_count, default=8000, help="port to listen on (8000; 0 = any)")
    add("--model", "--served-model-name", default="sim", help="name clients ask for (sim)")
    add("--dialect", choices=DIALECTS, default="vllm", help="engine to behave like (vllm)")
    add("--load-time", type=_amount, default=0.0, help="seconds until ready (0)")
    add("--ttft", type=_amount, default=0.0, help="seconds before the first token (0)")
    add("--prefill-rate", type=_amount, default=0.0, help="prompt tokens per second, on top of --ttft (0 = at once)")
    add("--decode-rate", type=_amount, default=0.0, help="tokens per second of one request (0 = at once)")
    add("--slots", type=_count, default=8, help="requests worked on at once (8)")
    add("--queue-limit", type=_count, help="waiting requests above which 503 is answered (none)")
    add("--kv-tokens", type=_count, help="tokens the KV cache holds; a request waits until its own fit (none)")
    add("--context", type=_count, default=8192, help="tokens of prompt and answer together (8192)")
    add("--reply", default=DEFAULT_REPLY, help="what every answer says, one word a token")
    add("--loop", action="store_true", help="repeat the reply until max_tokens or the context ends it")
    add("--embeddings", action="store_true", help="serve /v1/embeddings")
    add("--sse-ping-interval", type=_amount, default=30.0, help="seconds between pings of llama.cpp's streams (30)")
    add("--nnodes", type=_count, default=1, help="nodes that run this replica (1)")
    add("--node-rank", type=_count, default=0, help="rank of this one; above 0 serves no HTTP (0)")
    add("--rendezvous", type=_address, metavar="HOST:PORT", help="where rank 0 waits for the others")
    add("--fail", type=_failure, action="append", default=[], metavar="MODE", help="a failure mode, see below")
    return parser


def parse(argv: Sequence[str] | None = None, environment: "os._Environ[str] | dict[str, str]" = os.environ) -> Options:
    """Options from a command line. Exits with status 2 and a message if it is wrong."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.slots < 1:
        parser.error("--slots must be at least 1")
    if given.node_rank >= max(1, given.nnodes):
        parser.error(f"--node-rank {given.node_rank} is outside --nnodes {given.nnodes}")
    if given.nnodes > 1 and given.rendezvous is None:
        parser.error("--nnodes above 1 needs --rendezvous")
    if given.nnodes <= 1 and given.rendezvous is not None:
        parser.error("--rendezvous needs --nnodes above 1")
    if not given.reply.split():
        parser.error("--reply must have at least one word")
    return Options(
        host=given.host,
        port=given.port,
        model=given.model,
        dialect=given.dialect,
        key=environment.get(KEY_VARIABLE, ""),
        load_time=given.load_time,
        ttft=given.ttft,
        prefill_rate=given.prefill_rate,
        decode_rate=given.decode_rate,
        slots=given.slots,
        queue_limit=given.queue_limit,
        kv_tokens=given.kv_tokens,
        context=given.context,
        reply=given.reply,
        loop=given.loop,
        embeddings=given.embeddings,
        ping_interval=given.sse_ping_interval,
        nnodes=given.nnodes,
        node_rank=given.node_rank,
        rendezvous=given.rendezvous,
        failures=dict(given.fail),
    )
