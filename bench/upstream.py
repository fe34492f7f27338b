"""Mock engine of the benchmark: ``upstream.py PORT GAP``.

Answers chat completions with JSON, or with an event stream of 64 chunks that come GAP
seconds apart (0: in one burst). ``GET /stats`` tells how many requests and chunks there were.
Needs httptools; uses uvloop where it is installed.
"""

import asyncio
import json
import sys
from typing import cast

import httptools

try:
    import uvloop  # type: ignore[import-not-found]
except ImportError:
    uvloop = None

CHUNKS = 64

REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there, this is a short reply."},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21},
}
DELTA = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1700000000,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": " tok"}, "finish_reason": None}],
}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


WHOLE = _answer(json.dumps(REPLY).encode())
MODELS = _answer(b'{"object":"list","data":[{"id":"m","object":"model"}]}')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = _chunk(b"data: " + json.dumps(DELTA).encode() + b"\n\n")
END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Engine(asyncio.Protocol):
    """One connection."""

    gap = 0.0
    requests = 0
    chunks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url
        self.body = b""

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.url.startswith(b"/stats"):
            counts = {"requests": Engine.requests, "chunks": Engine.chunks}
            self.transport.write(_answer(json.dumps(counts).encode()))
        elif self.parser.get_method() == b"GET":
            self.transport.write(MODELS)
        elif b'"stream":true' not in self.body and b'"stream": true' not in self.body:
            Engine.requests += 1
            self.transport.write(WHOLE)
        else:
            Engine.requests += 1
            self.transport.write(HEAD)
            if self.gap:
                self.next(CHUNKS)
            else:
                Engine.chunks += CHUNKS
                for _ in range(CHUNKS):
                    self.transport.write(EVENT)
                self.transport.write(END)

    def next(self, left: int) -> None:
        """One of the chunks that come apart."""
        if self.transport.is_closing():
            return
        if left == 0:
            self.transport.write(END)
            return
        Engine.chunks += 1
        self.transport.write(EVENT)
        asyncio.get_running_loop().call_later(self.gap, self.next, left - 1)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    if uvloop is not None:
        uvloop.install()
    Engine.gap = float(sys.argv[2])
    asyncio.run(main(int(sys.argv[1])))
