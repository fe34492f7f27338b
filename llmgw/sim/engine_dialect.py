"""How each engine speaks: what it guards, how it refuses, what its metrics are called.

Bodies follow recorded answers of llama-server b10068 and vLLM 0.32; SGLang 0.5.23
follows its source.
"""

# ruff: noqa: ARG002 - every dialect has the same shape, whatever it needs of it

import time
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from llmgw.sim.engine_core import BUCKETS, Core, Histogram
from llmgw.sim.engine_options import Dialect


class Reply(NamedTuple):
    """A whole answer: a JSON value, or text with its content type."""

    status: int
    body: Any
    content_type: str = "application/json"


Stopping = Literal["abort", "hang", "drain"]
"""What SIGTERM does to requests: ``abort`` ends them with a last word, ``hang`` leaves
them without one, ``drain`` lets them finish."""


class Speech:
    """What all dialects share. One subclass per engine."""

    server = "uvicorn"
    stopping: Stopping = "abort"
    any_model = False
    first_content: str | None = ""
    listens_while_loading = False

    def guarded(self, path: str) -> bool:
        """Whether ``path`` needs the key when one is set."""
        raise NotImplementedError

    def unauthorised(self) -> Reply:
        """The key is missing or wrong."""
        return Reply(401, {"error": "Unauthorized"})

    def loading(self) -> Reply:
        """A request while the model is loading."""
        raise NotImplementedError

    def not_found(self) -> Reply:
        """No such path."""
        return Reply(404, {"detail": "Not Found"})

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        """An error in the engine's own shape."""
        return Reply(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})

    def bad_json(self, detail: str) -> Reply:
        """The body is not JSON."""
        raise NotImplementedError

    def missing(self, name: str) -> Reply:
        """A field that must be there is not."""
        raise NotImplementedError

    def invalid(self, name: str, message: str) -> Reply:
        """A field has a value that cannot be used."""
        return self.error(400, f"{name}: {message}", "BadRequestError", name)

    def unknown_model(self, asked: str, served: str) -> Reply:
        """Another model than the one served."""
        return self.error(404, f"The model `{asked}` does not exist.", "NotFoundError", "model")

    def context_exceeded(self, tokens: int, context: int) -> Reply:
        """The prompt does not fit."""
        raise NotImplementedError

    def queue_full(self) -> Reply:
        """Too many requests wait."""
        raise NotImplementedError

    def no_embeddings(self) -> Reply:
        """Embeddings are not served."""
        return self.not_found()

    def failed(self, status: int) -> Reply:
        """A failure inside the engine."""
        return self.error(status, "the simulated engine was told to fail", "Internal Server Error")

    def health(self, core: Core) -> Reply:
        """``/health`` of a loaded engine."""
        return Reply(200, "", "application/json")

    def pages(self, core: Core, query: str) -> "dict[str, Reply]":
        """Paths only this engine has."""
        return {}

    def metrics(self, core: Core) -> str:
        """``/metrics`` in the Prometheus text format."""
        raise NotImplementedError


class Vllm(Speech):
    """vLLM 0.32: refuses connections until it is ready; guards only its API's prefixes."""

    def guarded(self, path: str) -> bool:
        return path.startswith(("/v1", "/v2", "/inference", "/cohere"))

    def loading(self) -> Reply:
        return self.failed(503)

    def bad_json(self, detail: str) -> Reply:
        return self.error(
            400, f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{detail}'}}", "Bad Request", "body"
        )

    def missing(self, name: str) -> Reply:
        place = f"body.{name}"
        text = f"1 validation error:\n  {{'type': 'missing', 'loc': '{place}', 'msg': 'Field required'}}"
        return self.error(400, text, "Bad Request", place)

    def unknown_model(self, asked: str, served: str) -> Reply:
        text = f"The model `{asked}` does not exist. Valid aliases: {served}."
        return self.error(404, text, "NotFoundError", "model")

    def context_exceeded(self, tokens: int, context: int) -> Reply:
        text = f"This model's maximum context length is {context} tokens. However, your prompt contains {tokens}."
        return self.error(400, text + " Please reduce the length of the input prompt.", "BadRequestError", "input_text")

    def queue_full(self) -> Reply:
        text = "The engine is currently busy and cannot accept new requests. Please try again later or on a different"
        return self.error(503, text + " instance.", "Service Unavailable")

    def pages(self, core: Core, query: str) -> dict[str, Reply]:
        return {
            "/version": Reply(200, {"version": "0.32.0"}),
            "/load": Reply(200, {"server_load": len(core.running) + len(core.waiting)}),
        }

    def metrics(self, core: Core) -> str:
        labels = f'engine="0",model_name="{core.options.model}"'
        page = _Page("vllm:", labels)
        page.add("num_requests_running", "gauge", len(core.running))
        page.add("num_requests_waiting", "gauge", len(core.waiting))
        page.add("kv_cache_usage_perc", "gauge", _kv_use(core))
        page.add("prompt_tokens_total", "counter", core.prompt_tokens)
        page.add("generation_tokens_total", "counter", core.generated_tokens)
        page.add("num_preemptions_total", "counter", 0)
        page.add("prefix_cache_queries_total", "counter", core.prompt_tokens)
        page.add("prefix_cache_hits_total", "counter", 0)
        reasons = {"stop": "stop", "length": "length", "abort": "abort", "client-gone": "abort"}
        for told in ("stop", "length", "abort"):
            count = sum(core.finished[reason] for reason, name in reasons.items() if name == told)
            page.add("request_success_total", "counter", count, f'finished_reason="{told}"')
        page.add("admission_rejections_total", "counter", core.rejected, 'reason="max_num_queued_reqs"')
        page.histogram("time_to_first_token_seconds", core.time_to_first)
        page.histogram("inter_token_latency_seconds", core.between_tokens)
        page.histogram("e2e_request_latency_seconds", core.end_to_end)
        return page.text(core)


class Sglang(Speech):
    """SGLang 0.5.23: answers 503 while starting; only health and metrics are open."""

    stopping: Stopping = "drain"
    any_model = True
    listens_while_loading = True

    def guarded(self, path: str) -> bool:
        return not path.startswith(("/health", "/ready", "/metrics"))

    def loading(self) -> Reply:
        return Reply(503, "")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        return Reply(status, {"object": "error", "message": message, "type": kind, "param": param, "code": status})

    def bad_json(self, detail: str) -> Reply:
        return self.error(400, f"Invalid JSON: {detail}", "BadRequestError")

    def missing(self, name: str) -> Reply:
        return self.error(400, f"{name}: Field required", "BadRequestError", name)

    def context_exceeded(self, tokens: int, context: int) -> Reply:
        text = f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        return self.error(400, text, "BadRequestError")

    def queue_full(self) -> Reply:
        return self.error(503, "The request queue is full.", "ServiceUnavailable")

    def metrics(self, core: Core) -> str:
        page = _Page("sglang:", f'model_name="{core.options.model}"')
        seconds = core.decode_seconds
        page.add("num_running_reqs", "gauge", len(core.running))
        page.add("num_queue_reqs", "gauge", len(core.waiting))
        page.add("token_usage", "gauge", _kv_use(core))
        page.add("gen_throughput", "gauge", core.generated_tokens / seconds if seconds else 0.0)
        page.add("cache_hit_rate", "gauge", 0.0)
        if core.options.kv_tokens is not None:
            page.add("max_total_num_tokens", "gauge", core.options.kv_tokens)
        page.add("prompt_tokens_total", "counter", core.prompt_tokens)
        page.add("generation_tokens_total", "counter", core.generated_tokens)
        page.histogram("time_to_first_token_seconds", core.time_to_first)
        page.histogram("inter_token_latency_seconds", core.between_tokens)
        page.histogram("e2e_request_latency_seconds", core.end_to_end)
        return page.text(core)


class Llamacpp(Speech):
    """llama-server b10068: 503 on every path while loading; health and models are open."""

    server = "llama.cpp"
    stopping: Stopping = "hang"
    any_model = True
    first_content = None
    listens_while_loading = True

    def guarded(self, path: str) -> bool:
        return path not in ("/health", "/v1/health", "/models", "/v1/models")

    def unauthorised(self) -> Reply:
        return self.error(401, "Invalid API Key", "authentication_error")

    def loading(self) -> Reply:
        return self.error(503, "Loading model", "unavailable_error")

    def not_found(self) -> Reply:
        return self.error(404, "File Not Found", "not_found_error")

    def error(self, status: int, message: str, kind: str, param: str | None = None) -> Reply:
        return Reply(status, {"error": {"code": status, "message": message, "type": kind}})

    def bad_json(self, detail: str) -> Reply:
        # llama-server really answers 500 here: what routers must not retry on every replica.
        return self.error(500, f"[json.exception.parse_error.101] parse error: {detail}", "server_error")

    def missing(self, name: str) -> Reply:
        return self.error(400, f"'{name}' is required", "invalid_request_error")

    def invalid(self, name: str, message: str) -> Reply:
        return self.error(400, f"'{name}' {message}", "invalid_request_error")

    def context_exceeded(self, tokens: int, context: int) -> Reply:
        text = f"request ({tokens} tokens) exceeds the available context size ({context} tokens), try increasing it"
        reply = self.error(400, text, "exceed_context_size_error")
        reply.body["error"] |= {"n_prompt_tokens": tokens, "n_ctx": context}
        return reply

    def queue_full(self) -> Reply:
        return self.error(503, "no slot available", "unavailable_error")

    def no_embeddings(self) -> Reply:
        text = "This server does not support embeddings. Start it with `--embeddings`"
        return self.error(501, text, "not_supported_error")

    def failed(self, status: int) -> Reply:
        return self.error(status, "the simulated engine was told to fail", "server_error")

    def health(self, core: Core) -> Reply:
        return Reply(200, {"status": "ok"})

    def pages(self, core: Core, query: str) -> dict[str, Reply]:
        slots = core.options.slots
        busy = len(core.running)
        page = [
            {"id": slot, "n_ctx": core.options.context, "speculative": False, "is_processing": slot < busy}
            for slot in range(slots)
        ]
        full = "fail_on_no_slot=1" in query and busy >= slots
        shown = self.error(503, "no slot available", "unavailable_error") if full else Reply(200, page)
        props = {"total_slots": slots, "model_alias": core.options.model, "build_info": "sim"}
        return {"/slots": shown, "/props": Reply(200, props)}

    def metrics(self, core: Core) -> str:
        page = _Page("llamacpp:", "")
        page.add("prompt_tokens_total", "counter", core.prompt_tokens)
        page.add("prompt_seconds_total", "counter", round(core.prefill_seconds, 3))
        page.add("tokens_predicted_total", "counter", core.generated_tokens)
        page.add("tokens_predicted_seconds_total", "counter", round(core.decode_seconds, 3))
        page.add("prompt_tokens_seconds", "gauge", _per(core.prompt_tokens, round(core.prefill_seconds, 3)))
        page.add("predicted_tokens_seconds", "gauge", _per(core.generated_tokens, round(core.decode_seconds, 3)))
        page.add("requests_processing", "gauge", len(core.running))
        page.add("requests_deferred", "gauge", len(core.waiting))
        page.add("n_busy_slots_per_decode", "gauge", len(core.running))
        return page.text(core)


SPEECH: dict[Dialect, type[Speech]] = {"vllm": Vllm, "sglang": Sglang, "llamacpp": Llamacpp}


def _kv_use(core: Core) -> float:
    """Share of the KV cache in use, 0 to 1; a cache without a limit counts as one of
    ``slots`` whole contexts."""
    room = core.options.kv_tokens or core.options.slots * core.options.context
    return min(1.0, core.kv_used / room)


def _per(tokens: int, seconds: float) -> float:
    """Tokens per second as llama-server computes them: ``inf`` is a possible answer."""
    return tokens / seconds if seconds else float("inf") if tokens else 0.0


class _Page:
    """Prometheus text, family by family."""

    def __init__(self, prefix: str, labels: str) -> None:
        self._prefix = prefix
        self._labels = labels
        self._lines: list[str] = []
        self._declared: set[str] = set()

    def add(self, name: str, kind: str, value: float, labels: str = "") -> None:
        """One sample; the family is declared on its first."""
        if name not in self._declared:
            self._declared.add(name)
            self._lines.append(f"# TYPE {self._prefix}{name} {kind}")
        self._lines.append(f"{self._prefix}{name}{self._braces([labels])} {value}")

    def histogram(self, name: str, histogram: Histogram) -> None:
        """All samples of a histogram."""
        self._lines.append(f"# TYPE {self._prefix}{name} histogram")
        seen = 0
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], histogram.counts, strict=True):
            seen += count
            bucket = f'le="{bound}"'
            self._lines.append(f"{self._prefix}{name}_bucket{self._braces([bucket])} {seen}")
        self._lines.append(f"{self._prefix}{name}_sum{self._braces([])} {histogram.total}")
        self._lines.append(f"{self._prefix}{name}_count{self._braces([])} {seen}")

    def text(self, core: Core) -> str:
        """The whole page, with what the simulation itself counts at its end."""
        own = [
            "# TYPE llmgw_sim_requests_aborted_total counter",
            f"llmgw_sim_requests_aborted_total {core.aborted}",
        ]
        return "\n".join([*self._lines, *own]) + "\n"

    def _braces(self, more: Iterable[str]) -> str:
        parts = [part for part in (self._labels, *more) if part]
        return "{" + ",".join(parts) + "}" if parts else ""


def created() -> int:
    """Unix time in seconds, as the ``created`` fields have it."""
    return int(time.time())
