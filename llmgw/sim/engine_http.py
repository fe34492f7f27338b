"""HTTP front of the simulated engine: OpenAI's API in the words of one dialect."""

import errno
import hashlib
import hmac
import math
import socket as sockets
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any

import gevent
import msgspec
from gevent.pywsgi import WSGIHandler, WSGIServer

from llmgw.runtime.logs import Logger
from llmgw.sim.engine_core import Call, Cancelled, ClientGone, Core, QueueFull, abort
from llmgw.sim.engine_dialect import Reply, Speech, created

log = Logger("llmgw.sim.engine")

MAX_BODY = 16 * 1024 * 1024
_ESTABLISHED = 1
_LOOK = 0.03
"""Seconds between two looks at whether clients are still there."""

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Callable[[bytes], None]]


class Refusal(Exception):
    """An answer that ends the handling of a request."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class _Handler(WSGIHandler):  # type: ignore[misc]
    """Gives the application the socket, so that it can see the client leave."""

    def get_environ(self) -> Environ:
        environ: Environ = super().get_environ()
        environ["llmgw.socket"] = self.socket
        self.socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
        return environ


class _Quiet:
    """Where the server's own complaints about clients go."""

    def write(self, message: str) -> None:
        """Log one complaint."""
        log.debug("client fault", detail=message.strip())


def listen(options_host: str, port: int) -> sockets.socket:
    """A listening socket. Raises ``OSError`` if the port is taken."""
    family = sockets.AF_INET6 if ":" in options_host else sockets.AF_INET
    listener = sockets.socket(family, sockets.SOCK_STREAM)
    listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
    try:
        listener.bind((options_host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def server(listener: sockets.socket, front: "Front") -> WSGIServer:
    """The front, served on ``listener`` (not started yet)."""
    return WSGIServer(listener, front, handler_class=_Handler, log=None, error_log=_Quiet())


class Front:
    """The WSGI application."""

    def __init__(self, core: Core, speech: Speech) -> None:
        self.core = core
        self.speech = speech
        self._watched: dict[sockets.socket, Call] = {}
        self._headers_seen: list[str] = []
        self._credentials = {"absent": 0, "engine-key": 0, "other": 0}
        self._serial = 0
        gevent.spawn(self._watch)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            result = self._route(environ)
        except Refusal as refusal:
            result = refusal.reply
        if isinstance(result, Reply):
            body = result.body if isinstance(result.body, str) else msgspec.json.encode(result.body)
            data = body.encode() if isinstance(body, str) else body
            start_response(_status(result.status), self._head(result.content_type, len(data)))
            return [data]
        next(result)  # from here on its ``finally`` runs, whatever becomes of the connection
        write = start_response(_status(200), self._head("text/event-stream", None))
        if self.speech.first_content is not None:
            write(b"")  # uvicorn sends the head at once, llama-server with the first token
        return result

    # ------------------------------------------------------------ paths

    def _route(self, environ: Environ) -> "Reply | Iterator[bytes]":
        path, core, speech = environ["PATH_INFO"], self.core, self.speech
        if path == "/sim/state":
            return Reply(200, self._state())
        if not core.ready.is_set():
            return speech.loading()
        if speech.guarded(path) and not self._credential(environ):
            return speech.unauthorised()
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._page(path, environ.get("QUERY_STRING", ""))
        if path in ("/v1/chat/completions", "/v1/completions"):
            return self._generate(environ, path.endswith("chat/completions"))
        if path == "/v1/embeddings":
            return self._embed(environ)
        return speech.not_found()

    def _page(self, path: str, query: str) -> Reply:
        core, speech = self.core, self.speech
        if path in ("/health", "/ping"):
            return speech.health(core)
        if path == "/metrics":
            return Reply(200, speech.metrics(core), "text/plain; version=0.0.4")
        if path == "/v1/models":
            owner = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}[core.options.dialect]
            model = {"id": core.options.model, "object": "model", "created": created(), "owned_by": owner}
            if owner == "vllm":
                model["max_model_len"] = core.options.context
            return Reply(200, {"object": "list", "data": [model]})
        return speech.pages(core, query).get(path) or speech.not_found()

    def _state(self) -> dict[str, Any]:
        """What tests ask: figures, the names of the last POST's headers, and whose
        credential came with POSTs. Never a value."""
        core = self.core
        return {
            "model": core.options.model,
            "dialect": core.options.dialect,
            "ready": core.ready.is_set(),
            "active": len(core.running),
            "queued": len(core.waiting),
            "requests": core.requests,
            "answered": core.answered,
            "aborted": core.aborted,
            "rejected": core.rejected,
            "kv_used": core.kv_used,
            "last_headers": self._headers_seen,
            "credentials": self._credentials,
        }

    def _credential(self, environ: Environ) -> bool:
        """Whether the request may use guarded paths. Notes what requests for tokens bring."""
        key = self.core.options.key
        sent = environ.get("HTTP_AUTHORIZATION", "")
        token = sent[7:] if sent[:7].lower() == "bearer " else sent or environ.get("HTTP_X_API_KEY", "")
        right = bool(key) and hmac.compare_digest(token.encode(), key.encode())
        if environ["REQUEST_METHOD"] == "POST":
            self._credentials["engine-key" if right else "other" if token else "absent"] += 1
            named = (name[5:] for name in environ if name.startswith("HTTP_"))
            self._headers_seen = sorted(name.lower().replace("_", "-") for name in named)
        return right or not key

    # ------------------------------------------------------------ tokens

    def _body(self, environ: Environ) -> dict[str, Any]:
        data = environ["wsgi.input"].read(MAX_BODY + 1)
        if len(data) > MAX_BODY:
            raise Refusal(self.speech.error(413, "the body is too large", "invalid_request_error"))
        try:
            body = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise Refusal(self.speech.bad_json(str(error))) from error
        if not isinstance(body, dict):
            raise Refusal(self.speech.bad_json("not an object"))
        model = body.get("model", self.core.options.model)
        if model != self.core.options.model and not self.speech.any_model:
            raise Refusal(self.speech.unknown_model(str(model)[:100], self.core.options.model))
        return body

    def _generate(self, environ: Environ, chat: bool) -> "Reply | Iterator[bytes]":
        core, speech, options = self.core, self.speech, self.core.options
        body = self._body(environ)
        if core.broken:
            gevent.spawn_later(0.1, abort)
            raise Refusal(speech.failed(500))
        if "error" in options.failures:
            raise Refusal(speech.failed(int(options.failures["error"])))
        prompt = self._prompt_tokens(body, "messages" if chat else "prompt")
        if prompt >= options.context:
            raise Refusal(speech.context_exceeded(prompt, options.context))
        limit = options.context - prompt
        for name in ("max_tokens", "max_completion_tokens"):
            asked = body.get(name)
            if asked is not None:
                if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
                    raise Refusal(speech.invalid(name, "must be a whole number above 0"))
                limit = min(limit, asked)
        try:
            call = core.arrive(prompt, limit)
        except QueueFull:
            raise Refusal(speech.queue_full()) from None
        self._serial += 1
        answer = _Answer(chat, f"{'chatcmpl' if chat else 'cmpl'}-sim-{self._serial}", options.model, prompt)
        self._watched[environ["llmgw.socket"]] = call
        if body.get("stream"):
            wish = body.get("stream_options")
            usage = isinstance(wish, dict) and bool(wish.get("include_usage"))
            return self._stream(environ["llmgw.socket"], call, answer, limit, usage)
        return self._whole(environ["llmgw.socket"], call, answer, limit)

    def _prompt_tokens(self, body: dict[str, Any], name: str) -> int:
        """Tokens of the prompt: one a word, three a message. Deterministic, not exact."""
        value = body.get(name)
        if value is None:
            raise Refusal(self.speech.missing(name))
        if name == "messages":
            if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
                raise Refusal(self.speech.invalid(name, "must be a list of messages"))
            return sum(3 + len(str(item.get("content", "")).split()) for item in value)
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            return len(value)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str):
            raise Refusal(self.speech.invalid(name, "must be one text or its tokens"))
        return 1 + len(value.split())

    def _whole(self, client: sockets.socket, call: Call, answer: "_Answer", limit: int) -> Reply:
        words: list[str] = []
        reason = "error"
        try:
            words.extend(self.core.tokens(call, answer.prompt, limit))
            reason = self.core.finish_reason(limit)
        except ClientGone:
            reason = "client-gone"
            raise _closed() from None
        except Cancelled:
            reason = "abort"
            if self.speech.stopping == "hang":
                call.wait_gone()
                raise _closed() from None
        finally:
            self._release(client, call, reason)
        return Reply(200, answer.whole("".join(words), len(words), reason))

    def _stream(
        self, client: sockets.socket, call: Call, answer: "_Answer", limit: int, usage: bool
    ) -> Iterator[bytes]:
        core, speech = self.core, self.speech
        cut = core.options.failures.get("cut-stream-after", math.inf)
        reason, count = "client-gone", 0
        try:
            yield b""
            for word in core.tokens(call, answer.prompt, limit):
                if count == 0 and answer.chat:
                    yield answer.chunk({"role": "assistant", "content": speech.first_content})
                if count >= cut:
                    reason = "error"
                    raise _closed()
                count += 1
                yield answer.chunk(word)
            reason = core.finish_reason(limit)
        except ClientGone:
            raise _closed() from None
        except Cancelled:
            reason = "abort"
            if speech.stopping == "hang":
                # llama-server notices only when it wants to send its next ping.
                call.wait_gone(core.options.ping_interval)
                return
        finally:
            self._release(client, call, reason)
        yield answer.chunk({} if answer.chat else "", reason)
        if usage:
            yield answer.usage_chunk(count)
        yield b"data: [DONE]\n\n"

    def _release(self, client: sockets.socket, call: Call, reason: str) -> None:
        self._watched.pop(client, None)
        self.core.leave(call, reason)

    def _embed(self, environ: Environ) -> Reply:
        if not self.core.options.embeddings:
            raise Refusal(self.speech.no_embeddings())
        body = self._body(environ)
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise Refusal(self.speech.missing("input"))
        tokens = sum(len(text.split()) for text in texts)
        data = [{"object": "embedding", "index": i, "embedding": _vector(text)} for i, text in enumerate(texts)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return Reply(200, {"object": "list", "model": self.core.options.model, "data": data, "usage": usage})

    # ------------------------------------------------------------ connections

    def _head(self, content_type: str, length: int | None) -> list[tuple[str, str]]:
        head = [("Content-Type", content_type), ("Server", self.speech.server)]
        return head if length is None else [*head, ("Content-Length", str(length))]

    def _watch(self) -> None:
        """Look at the TCP state of every busy client: anything but established means that
        the client closed its side. Reads nothing, so a pipelined request is left alone."""
        while True:
            gevent.sleep(_LOOK)
            for client, call in list(self._watched.items()):
                try:
                    state = client.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 1)[0]
                except OSError:
                    state = 0
                if state != _ESTABLISHED:
                    call.client_left()


class _Answer:
    """The JSON of one answer, whole or in chunks."""

    def __init__(self, chat: bool, ident: str, model: str, prompt: int) -> None:
        self.chat = chat
        self.prompt = prompt
        kind = "chat.completion" if chat else "text_completion"
        self._kind = kind
        self._chunk_base = {
            "id": ident,
            "object": kind + ".chunk" if chat else kind,
            "created": created(),
            "model": model,
        }

    def whole(self, text: str, tokens: int, reason: str) -> dict[str, Any]:
        """An answer that is not streamed."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        return {**self._chunk_base, "object": self._kind, "choices": [choice], "usage": self._usage(tokens)}

    def chunk(self, content: "str | dict[str, Any]", reason: str | None = None) -> bytes:
        """One event of a stream."""
        if not self.chat:
            said: dict[str, Any] = {"text": content}
        else:
            said = {"delta": {"content": content} if isinstance(content, str) else content}
        return self._event({"choices": [{"index": 0, **said, "logprobs": None, "finish_reason": reason}]})

    def usage_chunk(self, tokens: int) -> bytes:
        """The event that ``include_usage`` asks for."""
        return self._event({"choices": [], "usage": self._usage(tokens)})

    def _usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt, "completion_tokens": tokens, "total_tokens": self.prompt + tokens}

    def _event(self, content: dict[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode({**self._chunk_base, **content}) + b"\n\n"


def _closed() -> ConnectionResetError:
    """Makes the server close the connection without a word more."""
    return ConnectionResetError(errno.ECONNRESET, "connection given up")


def _status(code: int) -> str:
    return f"{code} {HTTPStatus(code).phrase}"


def _vector(text: str) -> list[float]:
    """A unit vector of 32 numbers that depends on the text alone."""
    raw = [byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()]
    length = math.sqrt(sum(value * value for value in raw))
    return [value / length for value in raw]
