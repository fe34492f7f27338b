"""What the router says about itself, and the list of models (RTR-01, RTR-14). PURE."""

import html

import msgspec

from llmgw.wire.routing import RoutedKey, RoutedModel
from router.table import Routes, Split

_encode = msgspec.json.Encoder().encode

JSON = b"content-type: application/json\r\n"

_LANDING = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>llmgw</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem;
  color-scheme: light dark }}
pre {{ padding: 1rem; overflow-x: auto; border: 1px solid gray; border-radius: .3rem }}
</style>
<h1>An OpenAI-compatible address</h1>
<p>Point any OpenAI client at this base URL and use a key you were given:</p>
<pre>{base}/v1</pre>
<h2>Python</h2>
<pre>from openai import OpenAI

client = OpenAI(base_url="{base}/v1", api_key="YOUR KEY")
print([model.id for model in client.models.list()])</pre>
<h2>Shell</h2>
<pre>curl {base}/v1/models -H "Authorization: Bearer YOUR KEY"</pre>
</html>
"""

_LANDING_HEADERS = (
    b"content-type: text/html; charset=utf-8\r\n"
    b"content-security-policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n"
    b"x-content-type-options: nosniff\r\n"
    b"cache-control: no-store\r\n"
    b"vary: host, x-forwarded-host, x-forwarded-proto\r\n"
)


class Page:
    """A whole answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: bytes, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def landing(headers: dict[bytes, bytes]) -> Page:
    """How to connect, with the address the client used. The address comes from the
    client, so it is escaped and decides nothing."""
    host = headers.get(b"x-forwarded-host") or headers.get(b"host") or b"localhost"
    scheme = "https" if headers.get(b"x-forwarded-proto", b"").strip().lower() == b"https" else "http"
    name = host.partition(b",")[0].strip()[:255].decode("latin-1")
    page = _LANDING.format(base=html.escape(f"{scheme}://{name}"))
    return Page(200, _LANDING_HEADERS, page.encode())


def healthz() -> Page:
    """The process lives."""
    return Page(200, JSON, b'{"status":"ok"}')


def readyz(routes: Routes | None, ending: bool) -> Page:
    """Whether requests can be routed: there is a route table, and no stop has begun."""
    if routes is None:
        return Page(503, JSON + b"retry-after: 2\r\n", b'{"status":"waiting","reason":"no route table yet"}')
    if ending:
        return Page(503, JSON, b'{"status":"stopping"}')
    return Page(200, JSON, b'{"status":"ready"}')


def may_use(key: RoutedKey | None, model: RoutedModel, asked: str) -> bool:
    """Whether ``key`` (``None``: keys are off) allows ``model``, asked for by the name
    ``asked`` (RTR-12)."""
    return key is None or key.models is None or model.name in key.models or asked in key.models


def models(routes: Routes, key: RoutedKey | None) -> Page:
    """The models that the key may use, aliases included."""
    data = [
        _entry(name, route.model)
        for name, route in sorted(routes.models.items())
        if route.model.listed and route.model.state != "off" and may_use(key, route.model, name)
    ]
    data += [_entry(name, seen) for name, split in sorted(routes.splits.items()) if (seen := _behind(split, key))]
    data.sort(key=lambda entry: entry["id"])
    return Page(200, JSON, _encode({"object": "list", "data": data}))


def model(routes: Routes, key: RoutedKey | None, name: str) -> Page | None:
    """One model by name or alias, or ``None`` if the key may not know of it."""
    route = routes.models.get(name)
    split = routes.splits.get(name)
    if split is not None and (seen := _behind(split, key)):
        return Page(200, JSON, _encode(_entry(name, seen)))
    if route is None or route.model.state == "off" or not may_use(key, route.model, name):
        return None
    return Page(200, JSON, _encode(_entry(name, route.model)))


def _behind(split: Split, key: RoutedKey | None) -> RoutedModel | None:
    """The first of the models that ``split`` stands for and ``key`` may see under that name."""
    for route, _ in split.targets:
        model = route.model
        if model.listed and model.state != "off" and may_use(key, model, split.name):
            return model
    return None


def _entry(name: str, model: RoutedModel) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": model.created, "owned_by": "llmgw", "root": model.name}
