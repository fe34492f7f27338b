"""Does a source exist, can it be reached, how large is it (CAT-09). One function for every
door: API, command, console.

Blocking: a gevent program runs it off the hub. What people hand in is asked only as
``controlplane.catalog.web`` allows (SEC-04).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from controlplane.catalog.locator import HUB, Locator, parse_locator
from controlplane.catalog.web import Answer, WebError, WebOptions, ask
from llmgw.runtime.faults import did_you_mean
from llmgw.runtime.settings import Loaded, SettingsError, read_secret

MAX_LISTING = 32 * 1024 * 1024
MAX_FILES = 20_000
MAX_NAMES = 500
MAX_SOURCES = 16
"""Most sources of one model that are looked at."""
_AGENT = {"User-Agent": "llmgw", "Accept": "*/*"}
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
_GB = 1024**3
_COMMIT = re.compile(r"[0-9a-f]{7,64}")

State = Literal["exists", "missing", "unreachable", "unknown"]


@dataclass(frozen=True)
class SourceOptions:
    """``endpoint`` is the hub that ``hf:`` means; ``token_file`` (mode 0600) holds a token
    for it. An endpoint that the operator named may be inside the site whatever
    ``web.private`` says."""

    endpoint: str = HUB
    token_file: Path | None = None
    web: WebOptions = field(default_factory=WebOptions)


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What was found. ``words`` is one sentence for people. Figures that are not known
    are ``None``. ``files`` counts those that would be fetched."""

    source: str
    state: State
    words: str
    size_bytes: int | None = None
    files: int | None = None
    revision: str | None = None

    @property
    def usable(self) -> bool:
        """Whether a model with this source may be added without ``--no-check``."""
        return self.state in ("exists", "unknown")


def source_options(settings: Loaded, *, private: bool) -> SourceOptions:
    """What the control plane's settings say; ``private`` is the cluster setting
    ``sources.private``."""
    web = WebOptions(private=private, timeout=settings["sources.timeout"], ca_file=settings["sources.ca_file"])
    return SourceOptions(settings["sources.hf_endpoint"], settings["sources.hf_token_file"], web)


def check_source(source: str, options: SourceOptions) -> SourceReport:
    """Look for a source of a profile or an adapter. Raises nothing: also a source that is
    malformed has a report."""
    try:
        locator = parse_locator(source)
    except ValueError as error:
        return SourceReport(source, "missing", f"the source {error}")
    try:
        if locator.scheme == "sim":
            return SourceReport(source, "exists", "a simulated engine has no weights")
        if locator.scheme == "file":
            return _file(source, Path(locator.path))
        if locator.scheme == "https":
            return _url(source, locator.path, options)
        return _hub(source, locator, options)
    except WebError as error:
        host = urlsplit(locator.path if locator.scheme == "https" else options.endpoint).hostname
        return SourceReport(source, "unreachable", f"{host} {error}")


# ---------------------------------------------------------------- file:


def _file(source: str, path: Path) -> SourceReport:
    """A hint only: weights are on nodes, and this machine need not be one. Tells nothing
    about what does not look like weights."""
    elsewhere = SourceReport(
        source, "unknown", "no weights are there on this machine; the node it runs on must have them"
    )
    try:
        if path.is_file():
            if path.suffix not in _WEIGHTS:
                return elsewhere
            size = path.stat().st_size
            return SourceReport(source, "exists", f"is on this machine too, {_amount(size)}", size, 1)
        if not path.is_dir() or not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            return elsewhere
        size = files = 0
        for file in path.rglob("*"):
            if file.is_file():
                size, files = size + file.stat().st_size, files + 1
            if files > MAX_FILES:
                return SourceReport(source, "exists", "is on this machine too")
        return SourceReport(source, "exists", f"is on this machine too, {files} files, {_amount(size)}", size, files)
    except OSError:
        return elsewhere


# ---------------------------------------------------------------- https:


def _url(source: str, url: str, options: SourceOptions) -> SourceReport:
    answer = ask(url, options.web, method="HEAD", headers=_AGENT)
    if answer.status not in (200, 401, 404, 410):
        # Not every server knows HEAD, and some sign an address for GET alone.
        answer = ask(url, options.web, headers={**_AGENT, "Range": "bytes=0-0"})
    host = urlsplit(url).hostname
    if answer.status in (404, 410):
        return SourceReport(source, "missing", f"{host} has no such file (it answered {answer.status})")
    if answer.status in (401, 403):
        words = f"{host} lets nobody read it without a login (it answered {answer.status})"
        return SourceReport(source, "unreachable", words)
    if answer.status not in (200, 206):
        return SourceReport(source, "unreachable", f"{host} answered {answer.status}")
    if answer.headers.get("content-type", "").startswith("text/html"):
        return SourceReport(source, "missing", f"{host} answers with a web page, not with a file")
    size = _content_size(answer)
    words = (
        f"{host} has it, {_amount(size)}" if size is not None else f"{host} has it, and does not say how large it is"
    )
    return SourceReport(source, "exists", words, size, 1)


def _content_size(answer: Answer) -> int | None:
    text = answer.headers.get("content-length", "")
    if answer.status == 206:
        text = answer.headers.get("content-range", "").rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


# ---------------------------------------------------------------- hf:


def _hub(source: str, locator: Locator, options: SourceOptions) -> SourceReport:
    repository = locator.repository
    try:
        secrets = _token(options)
    except SettingsError as error:
        return SourceReport(source, "unreachable", f"the token for the hub cannot be used: {error.faults[0]}")
    # The operator named the endpoint; where it redirects to is judged as the setting says.
    web = _trusting(options.endpoint, options.web)
    base = options.endpoint.rstrip("/")
    revision = f"/revision/{quote(locator.revision, safe='')}" if locator.revision else ""
    listing = f"{base}/api/models/{repository}{revision}?blobs=true"
    answer = ask(listing, web, headers=_AGENT, secrets=secrets, max_bytes=MAX_LISTING)
    if answer.status != 200:
        return _refused(source, locator, answer, bool(secrets))
    found = answer.json()
    files = _listed(found)
    if files is None:
        return SourceReport(
            source, "unreachable", f"{urlsplit(base).hostname} answered with something that is no listing"
        )
    sha = found.get("sha")
    commit = sha if isinstance(sha, str) and _COMMIT.fullmatch(sha) else None
    if found.get("disabled") is True:
        return SourceReport(source, "unreachable", f"{repository} was disabled by the hub", revision=commit)
    chosen = _chosen(locator, files)
    if isinstance(chosen, str):
        return SourceReport(source, "missing", chosen, revision=commit)
    if found.get("gated") not in (None, False):
        probe = f"{base}/{repository}/resolve/{quote(locator.revision or 'main', safe='')}/{quote(next(iter(chosen)))}"
        if ask(probe, web, method="HEAD", headers=_AGENT, secrets=secrets, follow=False).status in (401, 403):
            words = f"{repository} is gated: accept its terms on the hub, and give a token that may read it"
            return SourceReport(source, "unreachable", words, revision=commit)
    sizes = list(chosen.values())
    size = sum(size for size in sizes if size is not None) if None not in sizes else None
    count = "1 file" if len(chosen) == 1 else f"{len(chosen)} files"
    words = f"{repository} has {count}, {_amount(size)}" if size is not None else f"{repository} has {count}"
    return SourceReport(source, "exists", words, size, len(chosen), commit)


def _trusting(endpoint: str, web: WebOptions) -> WebOptions:
    """Options under which the endpoint itself may be inside the site."""
    home = (urlsplit(endpoint).hostname or "").lower()
    return replace(web, trusted=web.trusted | {home}) if endpoint.rstrip("/") != HUB else web


def _token(options: SourceOptions) -> dict[str, str]:
    if options.token_file is None:
        return {}
    return {"Authorization": f"Bearer {read_secret(options.token_file)}"}


def _refused(source: str, locator: Locator, answer: Answer, token: bool) -> SourceReport:
    repository, status = locator.repository, answer.status
    if status == 404:
        missing = (
            f"has no revision {locator.revision}"
            if "revision" in answer.headers.get("x-error-code", "").lower()
            else ""
        )
        return SourceReport(source, "missing", f"{repository} {missing or 'does not exist on the hub'}")
    if status == 401:
        why = "or this token may not see it" if token else "or is private, and no token is set (sources.hf_token_file)"
        return SourceReport(source, "missing", f"{repository} does not exist on the hub, {why}")
    if status == 403:
        words = f"{repository} is gated: accept its terms on the hub, and give a token that may read it"
        return SourceReport(source, "unreachable", words)
    if status == 429:
        return SourceReport(source, "unreachable", "the hub asks to wait before more requests (429)")
    return SourceReport(source, "unreachable", f"the hub answered {status}")


def _listed(found: Any) -> dict[str, int | None] | None:
    """Name and size of every file of a listing; ``None`` if it is no listing."""
    rows = found.get("siblings") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        return None
    files: dict[str, int | None] = {}
    for row in rows[:MAX_FILES]:
        name = row.get("rfilename") if isinstance(row, Mapping) else None
        if isinstance(name, str):
            size = row.get("size")
            files[name] = size if isinstance(size, int) and not isinstance(size, bool) and size >= 0 else None
    return files


def _chosen(locator: Locator, files: Mapping[str, int | None]) -> dict[str, int | None] | str:
    """The files that would be fetched, or why there are none."""
    if locator.file:
        parts = _parts(locator.file, files)
        if parts:
            return parts
        ggufs = sorted(name for name in files if name.lower().endswith(".gguf") and _showable(name))[:MAX_NAMES]
        if not ggufs:
            return f"{locator.repository} holds no .gguf file"
        near = did_you_mean(locator.file, ggufs) or f"; it has {_some(ggufs)}"
        return f"{locator.repository} has no file {locator.file}{near}"
    if not any(name.lower().endswith(_WEIGHTS) for name in files):
        return f"{locator.repository} holds no weights (no {', '.join(_WEIGHTS[:3])} file)"
    return dict(files)


def _parts(name: str, files: Mapping[str, int | None]) -> dict[str, int | None]:
    """A file, with all parts of it if it is the first of several (``-00001-of-00003``)."""
    if name not in files:
        return {}
    stem, mark, total = name.removesuffix(".gguf").rpartition("-of-")
    if not mark or not stem.endswith("-00001") or not total.isdigit():
        return {name: files[name]}
    prefix = stem.removesuffix("00001")
    return {
        other: size for other, size in files.items() if other.startswith(prefix) and other.endswith(f"-of-{total}.gguf")
    }


def _showable(name: str) -> bool:
    """Whether a name from outside may stand in a sentence."""
    return len(name) <= 200 and name.isascii() and name.isprintable()


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


def _amount(size: int) -> str:
    return f"{size / _GB:.1f} GB" if size >= _GB / 10 else f"{size / 1024**2:.1f} MB"
