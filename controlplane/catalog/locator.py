"""Where weights are, as a profile's ``source`` says it (CAT-04). Pure.

====================================  ======================================================
``file:/absolute/path``               a file or directory that is on the node
``hf:ORG/NAME``                       a repository of the hub; ``@REVISION`` is a branch, tag or commit
``hf:ORG/NAME@REVISION:PATH.gguf``    one GGUF file in a repository (``@REVISION`` may be left out)
``https://HOST/PATH.gguf``            one file
``sim:``                              the simulated engine has no weights
====================================  ======================================================
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from controlplane.catalog.engines import ENGINES, NOT_YET, SCHEMES
from llmgw.runtime.faults import did_you_mean

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REPOSITORY = re.compile(rf"(?:{_NAME}/)?{_NAME}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_FILE = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_. +()/-]{0,255}", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|[0-9A-Fa-f:.]+")
_SECRET = re.compile(r"token|sig|key|secret|passw|credential|auth", re.IGNORECASE)
HUB = "https://huggingface.co"
"""The hub that ``hf:`` means unless a setting names another."""

_EXAMPLES = "file:/srv/models/m.gguf, hf:org/name or https://host/m.gguf"


@dataclass(frozen=True, slots=True)
class Locator:
    """A source, taken apart. ``path`` is that of ``file:``, the whole URL of ``https:``;
    ``repository``, ``revision`` and ``file`` are those of ``hf:``."""

    scheme: str
    path: str = ""
    repository: str = ""
    revision: str = ""
    file: str = ""


def parse_locator(source: str) -> Locator:
    """Raises ``ValueError`` in words that follow the place, with the remedy."""
    scheme, colon, rest = source.partition(":")
    if not colon or scheme not in SCHEMES:
        raise ValueError(_no_scheme(source, scheme if colon else ""))
    if scheme in NOT_YET:
        raise ValueError(f"{scheme}: is not fetched by this release: use hf:, https: or file:")
    if scheme == "sim":
        if rest:
            raise ValueError("must be just sim: (a simulated engine has no weights)")
        return Locator("sim")
    if scheme == "file":
        return Locator("file", path=_path(rest))
    if scheme == "https":
        return Locator("https", path=parse_url(source, ("https",)))
    return _hub(rest)


def engine_fault(engine: str, source: str) -> str | None:
    """Why ``engine`` (one of ``ENGINES``) cannot load a source that ``parse_locator`` takes."""
    rules, locator = ENGINES[engine], parse_locator(source)
    if locator.scheme not in rules.schemes:
        ways = " or ".join(f"{known}:" for known in rules.schemes)
        more = "; it loads a repository or a directory, not one file" if locator.scheme == "https" else ""
        return f"{engine} cannot load {locator.scheme}: use {ways}{more}"
    if rules.one_file and locator.scheme == "hf" and not locator.file:
        return f"{engine} loads one GGUF file: name it, such as hf:{locator.repository}:model-q4_k_m.gguf"
    if rules.one_file and locator.scheme == "https" and not _is_gguf(urlsplit(locator.path).path):
        return f"{engine} loads one GGUF file: the URL must end in .gguf"
    return None


def parse_url(url: str, schemes: tuple[str, ...]) -> str:
    """``url`` if it is one that may stand in a catalog. Raises ``ValueError``."""
    expected = " or ".join(f"{scheme}://" for scheme in schemes)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"is not a URL ({expected}host/path)") from None
    if parts.scheme not in schemes:
        weak = (
            " (http: is not encrypted, and what it brings can be swapped on the way)" if parts.scheme == "http" else ""
        )
        raise ValueError(f"must begin with {expected}{weak}")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or a password: a catalog holds no secret")
    if not _HOST.fullmatch(parts.hostname or ""):
        raise ValueError(f"is not a URL ({expected}host/path)")
    if port == 0:
        raise ValueError("has the port 0, which nothing listens on")
    if parts.fragment or url.endswith("#"):
        raise ValueError("must not hold a # part: a server never sees it")
    if any(_SECRET.search(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise ValueError("must not hold a key or a signature in its ?query: a catalog holds no secret")
    if re.search(r"[\s\x00-\x20\x7f-\uffff\\]", url):
        raise ValueError("holds a character that must be %-encoded in a URL")
    return url


def _no_scheme(source: str, scheme: str) -> str:
    if scheme in ("http", "s3", "gs", "oci", "docker", "ollama"):
        remedy = "use https:, or put the file on the nodes and use file:" if scheme == "http" else f"use {_EXAMPLES}"
        return f"{scheme}: is not a source: {remedy}"
    if scheme:
        return f"must begin with {', '.join(f'{known}:' for known in SCHEMES if known not in NOT_YET)}" + did_you_mean(
            scheme, SCHEMES
        )
    if source.startswith("/"):
        return f"must say what it is: file:{source}"
    if _REPOSITORY.fullmatch(source) and "/" in source:
        return f"must say what it is: hf:{source}"
    return f"must say what it is: {_EXAMPLES}"


def _path(rest: str) -> str:
    if rest.startswith("//"):
        raise ValueError(f"must be written file:/{rest.lstrip('/')} (one slash)")
    if not rest.startswith("/") or ".." in rest.split("/") or rest.endswith("/"):
        raise ValueError("must be file: and an absolute path without '..', such as file:/srv/models/m.gguf")
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e]", rest):
        raise ValueError("holds a character that cannot be seen: type the path anew")
    return rest


def _hub(rest: str) -> Locator:
    if rest.startswith("//"):
        raise ValueError(f"must be written hf:{rest.lstrip('/')} (no slashes before the name)")
    name, colon, file = rest.partition(":")
    repository, at, revision = name.partition("@")
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        near = " (a file in it comes after a colon)" if repository.count("/") > 1 else ""
        raise ValueError(f"must be hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME:FILE.gguf{near}")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ValueError("has no usable revision after the @: a branch, a tag or a commit")
    if colon:
        if "@" in file:
            raise ValueError(f"must name the revision before the file: hf:{repository}@REVISION:FILE.gguf")
        if not _FILE.fullmatch(file) or any(part in ("", ".", "..") for part in file.split("/")):
            raise ValueError(f"must name a file of the repository after the colon: hf:{repository}:FILE.gguf")
        if not _is_gguf(file):
            raise ValueError("can name one file only if it is a .gguf: leave it out to load the repository")
    return Locator("hf", repository=repository, revision=revision, file=file)


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")
