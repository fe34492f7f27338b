"""Write the pages of docs/reference that come from the code (DOC-01, CAT-16).

``python docs/generate.py`` writes them, ``--check`` only says which differ and fails
if one does; a test runs the same comparison.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import click
from flask import Flask

import llmgw
from agent.settings import SETTINGS as AGENT
from controlplane.api.app import create_app
from controlplane.catalog.engines import ALLOWABLE, ENGINES, ENVIRONMENT, NOT_YET
from controlplane.catalog.schema import json_schema
from controlplane.commands.__main__ import main as offline
from controlplane.metrics import Metrics
from controlplane.settings import SETTINGS as CONTROLPLANE
from llmgw.runtime.settings import Settings
from llmgw.wire import errors
from router.settings import SETTINGS as ROUTER

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `make docs` from the code. Do not edit: change the code and run it again. -->\n"

Page = tuple[str, str]


def pages() -> dict[str, str]:
    """Every generated file: name under docs/reference and content."""
    makers: tuple[Callable[[], Iterator[Page]], ...] = (_settings, _catalog, _error_codes, _metrics, _api, _cli)
    return dict(page for make in makers for page in make())


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- settings


def _settings() -> Iterator[Page]:
    parts = (
        ("controlplane", CONTROLPLANE, "the control plane", "server"),
        ("agent", AGENT, "an agent", "agent"),
        ("router", ROUTER, "a router", "router"),
    )
    for name, settings, words, command in parts:
        yield f"settings-{name}.md", _settings_page(settings, words, command)
        yield f"schema/{name}.json", _json(settings.schema())


def _settings_page(settings: Settings, words: str, command: str) -> str:
    example = next(row for row in settings.rows if "." in row.name)
    flag = "The flag `--log-level` beats all of them. " if command == "server" else ""
    section, _, leaf = example.name.partition(".")
    return f"""{NOTE}
# Settings of {words}

`llmgw {command} --config FILE` reads a YAML file of nested sections: `{example.name}` is written

```yaml
{section}:
  {leaf}: {example.default}
```

An environment variable beats the file, which beats the default. The variable of a setting is its name in
capitals with `{settings.variable("")}` in front: `{settings.variable(example.name)}`.
{flag}All faults of a file are reported at once.
[schema/{settings.part}.json](schema/{settings.part}.json) is the JSON Schema for editors.

Durations are written `250ms`, `30s`, `5m`, `1h30m`; addresses `127.0.0.1:7000` or `[::1]:7000`.

{settings.markdown()}"""


# ---------------------------------------------------------------- catalog


def _catalog() -> Iterator[Page]:
    schema = json_schema()
    yield "schema/catalog.json", _json(schema)
    model = schema["properties"]["models"]["additionalProperties"]
    parts = model["properties"]
    tables = [
        ("A model", "`models.NAME`: it has `profiles`, or is `external`, or is an `adapter`.", model),
        ("A profile", "`models.NAME.profiles[]`", parts["profiles"]["items"]),
        ("Its scaling", "`models.NAME.scaling`", parts["scaling"]),
        ("A schedule", "`models.NAME.scaling.schedule[]`", parts["scaling"]["properties"]["schedule"]["items"]),
        ("An external model", "`models.NAME.external`", parts["external"]),
        ("An adapter", "`models.NAME.adapter`", parts["adapter"]),
        ("Resources", "`models.NAME.resources`", parts["resources"]),
        ("A weighted alias", "`aliases.NAME`", schema["properties"]["aliases"]["additionalProperties"]),
    ]
    body = "\n".join(f"## {title}\n\n{place}\n\n{_fields(part)}" for title, place, part in tables)
    engines = "\n".join(
        f"| `{name}` | {', '.join(f'`{scheme}:`' for scheme in rules.schemes)} | "
        f"{'tp, pp, dp' if rules.spreads else 'by itself'} | {', '.join(rules.launch_modes) or 'one node'} | "
        f"{'yes' if rules.adapters else 'no'} |"
        for name, rules in ENGINES.items()
    )
    denied = "\n".join(
        f"| `{name}` | {', '.join(f'`{flag}`' for flag in flags)} | {reason}{' (*)' if reason in ALLOWABLE else ''} |"
        for name, rules in ENGINES.items()
        for reason, flags in _by_reason(rules.denied).items()
    )
    variables = "\n".join(
        f"| {name} | {', '.join(f'`{variable}`' for variable in names)} | {reason} |"
        for name, table in [("every", ENVIRONMENT), *((f"`{n}`", r.environment) for n, r in ENGINES.items())]
        for reason, names in _by_reason(table).items()
    )
    later = ", ".join(f"`{scheme}:`" for scheme in NOT_YET)
    yield (
        "catalog.md",
        f"""{NOTE}
# Catalog

The catalog says which models should be served and how. It is one YAML file, or all `*.yaml` files of a directory
(`catalog` in the [settings of the control plane](settings-controlplane.md)). It is validated whole: a catalog with a
fault is refused with all its faults, and the one in use stays. [schema/catalog.json](schema/catalog.json) is the JSON
Schema for editors; `examples/catalog.yaml` is an example with comments.

Models can also be added live (`llmgw ctl model add`, the admin API): the body is what stands here under the model's
name. A name in both a file and the store is a fault that names both. A name stands for one thing: no two models and
aliases share one, and fallbacks name models that exist and do not go round in a circle.

{body}
## Devices and nodes

`nodes` x `gpus` must equal `tp` x `pp` x `dp`. `tp` divides the devices of a node, or is a multiple of them and spans
whole nodes. On one node `tp` is what is left; on several `tp` or `pp` must be said. A MIG class means one instance:
exactly one device, and all of these 1.

## Engines and sources

| engine | sources it can load | spreads by | over nodes | adapters |
|---|---|---|---|---|
{engines}

| source | means |
|---|---|
| `file:/absolute/path` | a file or a directory that is on the node |
| `hf:ORG/NAME` | a repository of the hub; `hf:ORG/NAME@REVISION` a branch, tag or commit of it |
| `hf:ORG/NAME:PATH.gguf` | one GGUF file of a repository, also with `@REVISION` before the colon |
| `https://HOST/PATH.gguf` | one file |
| `sim:` | nothing: the simulated engine has no weights |

Known, but not fetched by this release: {later}.

A node runs a profile only if its agent can get the source: `llmgw ctl explain` names those that cannot
(`source_not_fetched`). `file:` needs nobody to fetch it.

A source is looked at before a model is added: whether it exists, can be reached, and how large it is. Addresses inside
the site are asked only if the cluster setting `sources.private` says so (but for the hub that `sources.hf_endpoint`
names); link-local and metadata addresses never. What a `file:` source holds is known to nodes alone.

## Arguments a profile may not set

`args` go to the engine as they are, except for what `llmgw` decides itself or what would open the node. Every spelling
of a flag counts: `_` for `-`, `--flag=value`, `--no-flag`, and where the engine takes abbreviations, those. What is
marked (*) an admin can permit for one engine with the cluster setting `engines.allow`: `vllm --trust-remote-code`.

| engine | arguments | why |
|---|---|---|
{denied}

## Variables a profile may not set

Any name that ends in `KEY`, `TOKEN`, `SECRET`, `PASSWORD` or `CREDENTIALS`, and:

| engine | variables | why |
|---|---|---|
{variables}
""",
    )


def _fields(schema: Mapping[str, Any]) -> str:
    lines = ["| field | kind | meaning |", "|---|---|---|"]
    for name, entry in schema["properties"].items():
        needed = " (required)" if name in schema.get("required", ()) else ""
        lines.append(f"| `{name}`{needed} | {_kind(entry)} | {entry.get('description', '')} |")
    return "\n".join(lines) + "\n"


def _kind(entry: Mapping[str, Any]) -> str:
    if "anyOf" in entry and all("type" in each for each in entry["anyOf"]):
        return " or ".join(_kind(each) for each in entry["anyOf"])
    kind = entry.get("type", "any")
    if "$ref" in entry:
        return f"{entry['$ref'].rpartition('/')[2]}"
    if isinstance(kind, list):
        return " or ".join(each for each in kind if each != "null")
    if kind == "array":
        return f"list of {_kind(entry.get('items', {}))}"
    if "enum" in entry:
        return ", ".join(f"`{word}`" for word in entry["enum"])
    return "mapping" if kind == "object" else str(kind)


def _by_reason(denied: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for flag, reason in denied.items():
        grouped.setdefault(reason, []).append(flag)
    return grouped


# ---------------------------------------------------------------- error codes


def _error_codes() -> Iterator[Page]:
    router = "\n".join(
        f"| `{row.code}` | {row.status} | `{row.type}` | {'yes' if row.retry else 'no'} |"
        for row in errors.ROUTER.values()
    )
    groups: tuple[tuple[str, str, Mapping[str, str]], ...] = (
        ("Why a candidate was turned down", "In `ctl explain`, for each profile on each node.", errors.REASON),
        (
            "Why a shard ended",
            "In `ctl replicas` and in the control plane's log, with the engine's last output.",
            errors.SHARD,
        ),
        ("Why an agent's session ended", "In the agent's log.", errors.SESSION),
        ("Errors of the admin API", "The field `code` of every error's body.", errors.ADMIN),
    )
    tables = "\n".join(
        f"## {title}\n\n{words}\n\n| code | meaning |\n|---|---|\n"
        + "".join(f"| `{code}` | {text} |\n" for code, text in rows.items())
        for title, words, rows in groups
    )
    yield (
        "error-codes.md",
        f"""{NOTE}
# Error codes

Codes are append-only: a code, once released, keeps its meaning. Texts may change; match on codes.
[Read a refusal](../howto/read-a-refusal.md) shows them at work.

## Answers of the router

In OpenAI's shape: `{{"error": {{"message": …, "type": …, "param": …, "code": …}}}}`. Where trying again cannot help,
the answer has `x-should-retry: false`, which the official SDKs obey.

| code | status | type | worth a retry |
|---|---|---|---|
{router}

{tables}""",
    )


# ---------------------------------------------------------------- metrics


def _metrics() -> Iterator[Page]:
    # The families are asked for their names: what their figures are read from may be anything.
    rows = "\n".join(
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '-'} | {text} |"
        for name, kind, labels, text in Metrics(MagicMock()).described()
    )
    yield (
        "metrics.md",
        f"""{NOTE}
# Metrics

The control plane exports them at `/metrics` of its admin listener, for itself and for the fleet; nodes need no target
of their own. A figure that is not known has no sample: it is never 0.

| metric | type | labels | meaning |
|---|---|---|---|
{rows}
""",
    )


# ---------------------------------------------------------------- admin API


def _app() -> Flask:
    return create_app(MagicMock(), llmgw.__version__)


def _api() -> Iterator[Page]:
    document = _app().test_client().get("/api/v1/openapi.json").get_json()
    yield "openapi.json", _json(document)
    operations = [
        (path, method.upper(), operation, [*entry.get("parameters", ()), *operation.get("parameters", ())])
        for path, entry in document["paths"].items()
        for method, operation in entry.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]
    summary = "\n".join(
        f"| `{method} {path}` | {_line(operation.get('summary', ''))} |" for path, method, operation, _ in operations
    )
    yield "roles.md", _roles([(path, method, operation) for path, method, operation, _ in operations])
    common = document.get("components", {}).get("responses", {})
    details = "\n".join(_operation(*each, common) for each in operations)
    schemas = "\n".join(
        f"### {name}\n\n{_fields(schema)}"
        for name, schema in sorted(document.get("components", {}).get("schemas", {}).items())
        if schema.get("properties")
    )
    yield (
        "api.md",
        f"""{NOTE}
# Admin API

On the control plane's `admin.listen`, loopback by default. [openapi.json](openapi.json) is the whole as OpenAPI
{document["openapi"]}; a running control plane serves it at `/api/v1/openapi.json`. Errors have one body:
`code` (see [error codes](error-codes.md)), `message`, `faults` with the place of each, `request_id`. A value that is
not known is absent.

| operation | does |
|---|---|
{summary}

## Operations

{details}
## Schemas

{schemas}""",
    )


ROLES = ("admin", "operator", "owner", "auditor")


def _roles(operations: list[tuple[str, str, Mapping[str, Any]]]) -> str:
    rows = []
    for path, method, operation in operations:
        told = re.search(r"^Roles: (.+)\.$", operation.get("description", ""), re.MULTILINE)
        if told is None:
            raise ValueError(f"{method} {path} does not say which roles it needs")
        allowed = told[1].split(", ")
        cells = ["-" if role not in allowed else "its scopes" if role == "owner" else "yes" for role in ROLES]
        rows.append(f"| `{method} {path}` | {' | '.join(cells)} |")
    listed = "\n".join(rows)
    return f"""{NOTE}
# Roles

What each role may do over the [admin API](api.md), and so with `llmgw ctl` and `llmgw keys`. A user may have several
roles, and may do what any of them allows. An owner sees and changes what belongs to its scopes and those beneath; the
rest does not exist for it. How people get roles: [manage access](../howto/manage-access.md).

| operation | {" | ".join(ROLES)} |
|---|{"---|" * len(ROLES)}
{listed}
"""


def _line(text: str) -> str:
    return " ".join(text.split())


def _operation(
    path: str,
    method: str,
    operation: Mapping[str, Any],
    parameters: list[Mapping[str, Any]],
    common: Mapping[str, Any],
) -> str:
    lines = [f"### {method} {path}", "", _line(operation.get("summary", "")), ""]
    if operation.get("description"):
        lines += [operation["description"].strip(), ""]
    for parameter in parameters:
        described = f": {parameter['description']}" if parameter.get("description") else ""
        lines.append(f"- `{parameter['name']}` in {parameter['in']}, {_kind(parameter.get('schema', {}))}{described}")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        lines.append(f"- body: {_kind(body)}")
    for status, given in sorted(operation.get("responses", {}).items()):
        response = common.get(given["$ref"].rpartition("/")[2], {}) if "$ref" in given else given
        words = "any error" if status == "default" else status
        schema = response.get("content", {}).get("application/json", {}).get("schema")
        lines.append(f"- {words}: {_kind(schema) if schema else response.get('description', '')}")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- the command


def _cli() -> Iterator[Page]:
    from llmgw.cli import main  # noqa: PLC0415 - the command may load slowly, and only this page needs it

    sections = "\n".join(_command(main, ["llmgw"], None))
    yield (
        "cli.md",
        f"""{NOTE}
# The llmgw command

Exit status:

| status | means |
|---|---|
| 0 | done |
| 1 | the control plane refused, with its words; or what was asked about has faults |
| 2 | wrong usage or settings |
| 3 | no control plane answers, or what answers is not one |
| 4 | it does not know who asks, or does not let them |
| 130 | ended by Ctrl-C |

The address of the admin API is `--api`, else `LLMGW_API`, else `http://127.0.0.1:7000`. The certificate authority of an
`https://` address is `--ca`, else `LLMGW_CA`, else what the system trusts.

Who asks is proven by a token: of the file `--token-file`, else of the file `LLMGW_TOKEN_FILE`, else `LLMGW_TOKEN`, else
of the file `~/.config/llmgw/token`, else, on the control plane's own machine, of
`/var/lib/llmgw/controlplane/admin.token`. There is no option for the token itself: everybody on a machine can see
arguments. A token is sent over `https://` or to this machine alone.

Tables round, `-o json` does not. On a terminal, words that do not fit stand below their row; elsewhere a row is one
line. `NO_COLOR` takes the colours away. With `--watch` an answer is shown again as it changes: in place on a terminal,
as a new block (with `-o json` a line) elsewhere.

{sections}""",
    )


def _command(command: click.Command, path: list[str], parent: click.Context | None) -> Iterator[str]:
    options: Any = {**command.context_settings, "terminal_width": 100, "max_content_width": 100}
    context = click.Context(command, info_name=path[-1], parent=parent, **options)
    yield f"## {' '.join(path)}\n\n```\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = offline.commands.get(name) if parent is None else None
            child = child or command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _command(child, [*path, name], context)


def differences() -> list[str]:
    """Names of generated files that are not as the code says, and of leftovers."""
    wanted = pages()
    stale = [name for name, text in wanted.items() if _read(REFERENCE / name) != text]
    generated = [file for file in REFERENCE.rglob("*") if file.suffix in (".md", ".json")]
    extra = [str(file.relative_to(REFERENCE)) for file in generated]
    return sorted(stale + [name for name in extra if name not in wanted and name != "README.md"])


def _read(file: Path) -> str | None:
    return file.read_text() if file.is_file() else None


def main(arguments: list[str]) -> int:
    """Write or compare. Exit status 1 if something differs."""
    if arguments == ["--check"]:
        stale = differences()
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is not what the code says: run make docs\n")
        return 1 if stale else 0
    for name, text in pages().items():
        file = REFERENCE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
