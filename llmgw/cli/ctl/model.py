"""``ctl model``: one model, looked at and changed live (CAT-06, CAT-12)."""

from typing import Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Answer, Client, segment
from llmgw.cli.ctl.models import CLASSES, kind
from llmgw.cli.editor import edit as in_editor
from llmgw.cli.groups import Group
from llmgw.cli.options import api, confirm, example, file_or_stdin, output, yes
from llmgw.cli.output import UNKNOWN, ago, as_yaml, clean, listed, plain, plural, say
from llmgw.cli.yamltext import assign, mapping

Definition = dict[str, Any]


@click.group(
    cls=Group,
    epilog=example(
        "llmgw ctl model add qwen --engine llamacpp --source file:/srv/q.gguf --memory-gb 6 --cores 4",
        "llmgw ctl model edit qwen",
    ),
)
def model() -> None:
    """One model: add, change, remove. Takes effect at once, without a restart.

    Models that stand in a catalog file are changed there: llmgw ctl catalog reload.
    """


def _unchecked(command: Any) -> Any:
    """``--dry-run`` and ``--no-check``, for changes of what a model is."""
    for option in (
        click.option("--no-check", is_flag=True, help="Do not look whether the source is there."),
        click.option("--dry-run", is_flag=True, help="Only say whether it would be taken."),
    ):
        command = option(command)
    return command


def _query(dry_run: bool, no_check: bool) -> dict[str, Any]:
    return {"dry_run": "true" if dry_run else None, "check": "false" if no_check else None}


@model.command("show", epilog=example("llmgw ctl model show qwen", "llmgw ctl model show qwen -o yaml"))
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@output
@api
def show_model(client: Client, name: str, form: str) -> None:
    """Show a model: its state, and its definition as a catalog file would have it."""
    found = client.get(f"models/{segment(name)}", "name")
    if plain(found, form):
        return
    say(f"{found['name']} is {clean(found.get('state'))}, {found['ready']} of {found['wanted']} ready ({kind(found)})")
    if found.get("reason"):
        say(f"  {found['reason']}")
    if found.get("last_error"):
        say(f"  last error {ago(found.get('last_error_seconds'))} ago: {found['last_error']}")
    for line in found.get("last_output") or ():
        say(f"  | {line}")
    say(f"from {found.get('origin', UNKNOWN)}" + (f", version {found['version']}" if "version" in found else ""))
    click.echo("\n" + as_yaml(found.get("definition", {})), nl=False)


@model.command(
    epilog=example(
        "llmgw ctl model add qwen --engine llamacpp --source file:/srv/q.gguf --memory-gb 6 --cores 4",
        "llmgw ctl model add qwen -f qwen.yaml --dry-run",
        "llmgw ctl model add -f models.yaml",
    )
)
@click.argument("name", metavar="MODEL", required=False)
@click.option("-f", "--file", metavar="FILE", help="Definition in YAML; - is standard input.")
@click.option("--engine", metavar="NAME", help="Engine that runs it, such as llamacpp.")
@click.option("--source", metavar="SOURCE", help="Where the weights are, such as file:/srv/q.gguf.")
@click.option("--memory-gb", type=float, metavar="GB", help="Memory that a replica claims on its node.")
@click.option("--cores", type=float, metavar="N", help="Cores that a replica claims on its node.")
@click.option("--gpu-class", metavar="NAME", help="Class of the devices it needs.")
@click.option("--gpus", type=int, metavar="N", help="How many of them on its node.")
@click.option("--context", type=int, metavar="TOKENS", help="Context length.")
@click.option("--slots", type=int, metavar="N", help="Sequences it works on at once.")
@click.option("--min", "least", type=int, metavar="N", default=1, show_default=True, help="Replicas that always run.")
@click.option("--max", "most", type=int, metavar="N", help="Most replicas. Default: as --min, at least 1.")
@click.option("--alias", "aliases", multiple=True, metavar="NAME", help="Another name; may be repeated.")
@click.option("--owner", metavar="SCOPE", help="Scope it belongs to, such as acme/ml.")
@click.option("--class", "service_class", type=click.Choice(CLASSES), help="Who goes first where room is short.")
@click.option("--arg", "args", multiple=True, metavar="WORD", help="Argument of the engine; may be repeated.")
@_unchecked
@output
@api
def add(
    client: Client, name: str | None, file: str | None, *, dry_run: bool, no_check: bool, form: str, **flags: Any
) -> None:
    """Add a model: from a file, or by options for the common case of one profile.

    Without --max it gets --min replicas that always run.
    """
    given = [option for option, value in flags.items() if value not in (None, ()) and option != "least"]
    if file is not None and given:
        raise click.UsageError("give either -f FILE or options, not both: options describe a model without a file")
    if file is not None:
        wanted = _from_file(file, name)
    elif name is None:
        raise click.UsageError("name the model, or give a file with -f FILE")
    else:
        wanted = {name: _from_flags(**flags)}
    made = []
    for each, definition in wanted.items():
        body = {"name": each, **definition}
        made.append(client.send("POST", "models", "name", body, query=_query(dry_run, no_check)))
        if form in ("table", "wide"):
            _said(made[-1], each, "added")
    plain(made[0] if len(made) == 1 else {"models": made}, form)


def _from_file(file: str, name: str | None) -> dict[str, Definition]:
    """Models by name: from a catalog file, or one definition whose name was given."""
    what = "standard input" if file == "-" else file
    tree = mapping(file_or_stdin(file), what)
    if "models" not in tree:
        if name is None and isinstance(tree.get("name"), str):
            name = tree.pop("name")
        if name is None:
            raise click.UsageError(
                f"{what} is one definition: name the model, as in: llmgw ctl model add NAME -f {file}"
            )
        return {name: tree}
    models = tree["models"]
    if not isinstance(models, dict) or not models or not all(isinstance(each, dict) for each in models.values()):
        raise click.UsageError(f"{what} has no models: they stand under models by their names")
    if name is None:
        return {str(each): definition for each, definition in models.items()}
    if name not in models:
        raise click.UsageError(f"{what} has no model {name!r}: it has {', '.join(map(str, models))}")
    return {name: models[name]}


def _from_flags(
    *,
    engine: str | None,
    source: str | None,
    memory_gb: float | None,
    cores: float | None,
    least: int,
    most: int | None,
    aliases: tuple[str, ...],
    owner: str | None,
    service_class: str | None,
    args: tuple[str, ...],
    **same_name: Any,
) -> Definition:
    missing = [flag for flag, value in (("--engine", engine), ("--source", source)) if value is None]
    if missing:
        raise click.UsageError(f"{' and '.join(missing)} must be given, or a definition with -f FILE")
    profile = {
        "engine": engine,
        "source": source,
        "min_memory_gb": _whole(memory_gb),
        "cpu_cores": _whole(cores),
        **same_name,
        "args": list(args) or None,
    }
    definition = {
        "aliases": list(aliases) or None,
        "owner": owner,
        "class": service_class,
        "scaling": {"min": least, "max": max(least, 1) if most is None else most},
        "profiles": [{field: value for field, value in profile.items() if value is not None}],
    }
    return {field: value for field, value in definition.items() if value is not None}


def _whole(value: float | None) -> float | None:
    """``4`` rather than ``4.0``, as a person would write it."""
    return int(value) if value is not None and value.is_integer() else value


def _said(answer: dict[str, Any], name: str, done: str) -> None:
    """What a change did, or would do, and what was found of the sources."""
    for source in answer.get("sources") or ():
        say(f"  {_source(source)}")
    say(f"{name} would be {done}" if answer.get("dry_run") else f"{name} is {done}; see: llmgw ctl explain {name}")


def _source(found: dict[str, Any]) -> str:
    return f"{found['source'].removesuffix(':')}: {found['words']}"


# ---------------------------------------------------------------- changes


def _definition(client: Client, name: str) -> Answer:
    found = client.read(f"models/{segment(name)}", "name")
    if not isinstance(found.body.get("definition"), dict):
        raise click.ClickException(f"the control plane does not say how {name} is defined")
    return found


@model.command(epilog=example("llmgw ctl model edit qwen", "EDITOR=nano llmgw ctl model edit qwen"))
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@_unchecked
@api
def edit(client: Client, name: str, dry_run: bool, no_check: bool) -> None:
    """Change a model's definition in your editor. A refusal is shown there, and nothing you wrote is lost."""
    found = _definition(client, name)
    real = found.body["name"]
    origin = found.body.get("origin", "store")
    if origin != "store":
        raise click.ClickException(
            f"{real} stands in the file {clean(origin)}: change it there, then run llmgw ctl catalog reload"
        )
    answers: list[dict[str, Any]] = []

    def submit(text: str) -> None:
        definition = mapping(text, "the definition")
        answers.append(
            client.send(
                "PUT",
                f"models/{segment(real)}",
                "name",
                definition,
                match=found.tag,
                query=_query(dry_run, no_check),
            )
        )

    head = (
        f"The definition of the model {real}. Save and leave the editor to put it in force;\n"
        "leave it unchanged, or empty it, to change nothing."
    )
    if in_editor(as_yaml(found.body["definition"]), head, real, submit):
        _said(answers[-1], real, "changed")
    else:
        click.echo("nothing was changed")


@model.command(
    "set",
    epilog=example(
        "llmgw ctl model set qwen scaling.max=4",
        "llmgw ctl model set qwen 'profiles[0].context=8192' 'aliases=[q, qwen-small]'",
        "llmgw ctl model set qwen owner-",
    ),
)
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE | FIELD-...")
@_unchecked
@output
@api
def set_fields(client: Client, name: str, fields: tuple[str, ...], *, dry_run: bool, no_check: bool, form: str) -> None:
    """Change fields of a model's definition. Values are YAML; FIELD- takes one away."""
    found = _definition(client, name)
    definition = found.body["definition"]
    assign(definition, fields)
    real = found.body["name"]
    answer = client.send(
        "PUT", f"models/{segment(real)}", "name", definition, match=found.tag, query=_query(dry_run, no_check)
    )
    if not plain(answer, form):
        _said(answer, real, "changed")


def _patch(client: Client, name: str, changes: Definition, form: str) -> None:
    """Change what needs no look at the rest of the definition."""
    answer = client.send("PATCH", f"models/{segment(name)}", "name", changes)
    if not plain(answer, form):
        _said(answer, answer["name"], "changed")


@model.command("class", epilog=example("llmgw ctl model class qwen critical", "llmgw ctl model class qwen none"))
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@click.argument("service_class", metavar="CLASS", type=click.Choice([*CLASSES, "none"]))
@output
@api
def set_class(client: Client, name: str, service_class: str, form: str) -> None:
    """Say who goes first where room is short: critical, standard, opportunistic; none: as scaling says."""
    _patch(client, name, {"class": None if service_class == "none" else service_class}, form)


@model.command(epilog=example("llmgw ctl model owner qwen acme/ml", "llmgw ctl model owner qwen --none"))
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@click.argument("scope", required=False)
@click.option("--none", "nobody", is_flag=True, help="It belongs to no scope.")
@output
@api
def owner(client: Client, name: str, scope: str | None, nobody: bool, form: str) -> None:
    """Say which scope a model belongs to, such as acme/ml."""
    if (scope is None) != nobody:
        raise click.UsageError("give a scope, or --none")
    _patch(client, name, {"owner": scope}, form)


@model.command(
    epilog=example("llmgw ctl model resources qwen --cores 8 --memory-gb 24", "llmgw ctl model resources qwen --none")
)
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@click.option("--cores", type=float, metavar="N", help="Cores that each replica claims.")
@click.option("--memory-gb", type=float, metavar="GB", help="Memory that each replica claims.")
@click.option("--none", "nothing", is_flag=True, help="Go back to what the profiles say.")
@output
@api
def resources(
    client: Client, name: str, *, cores: float | None, memory_gb: float | None, nothing: bool, form: str
) -> None:
    """Let every profile of a model claim this much instead of what it says itself."""
    if nothing == (cores is not None or memory_gb is not None):
        raise click.UsageError("give --cores, --memory-gb or both, or --none")
    given = {"cpu_cores": _whole(cores), "min_memory_gb": _whole(memory_gb)}
    changes = None if nothing else {field: value for field, value in given.items() if value is not None}
    _patch(client, name, {"resources": changes}, form)


@model.command(epilog=example("llmgw ctl model scale qwen 3", "llmgw ctl model scale qwen 0 --max 2"))
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@click.argument("least", metavar="MIN", type=click.IntRange(0))
@click.option("--max", "most", type=click.IntRange(0), metavar="N", help="Most replicas. Default: as MIN.")
@output
@api
def scale(client: Client, name: str, least: int, most: int | None, form: str) -> None:
    """Say how many replicas a model has. 0 is off; 0 with --max 1 or more is on demand."""
    _patch(client, name, {"scaling": {"min": least, "max": least if most is None else most}}, form)


@model.command(epilog=example("llmgw ctl model remove qwen", "llmgw ctl model remove qwen --yes"))
@click.argument("name", metavar="MODEL", shell_complete=completion.models)
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@yes
@output
@api
def remove(client: Client, name: str, yes: bool, dry_run: bool, form: str) -> None:
    """Remove a model: its replicas finish what they do and are stopped."""
    found = client.read(f"models/{segment(name)}", "name")
    real = found.body["name"]
    running = len(found.body.get("replicas", []))
    confirm(f"Remove the model {real}, which has {plural(running, 'replica')}?", yes or dry_run)
    query = _query(dry_run, no_check=False)
    answer = client.send("DELETE", f"models/{segment(real)}", "name", match=found.tag, query=query)
    if plain(answer, form):
        return
    if answer.get("keys"):
        then = "would be good for nothing" if dry_run else "are good for nothing now"
        say(f"  these API keys are for it alone, and {then}: {listed(answer['keys'], 12)}")
    say(f"{real} would be removed" if dry_run else f"{real} is removed; its replicas are drained and stopped")


@model.command(
    epilog=example("llmgw ctl model check qwen", "llmgw ctl model check --source hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF")
)
@click.argument("name", metavar="MODEL", required=False, shell_complete=completion.models)
@click.option("--source", metavar="SOURCE", help="A source that no model has yet.")
@output
@api
def check(client: Client, name: str | None, source: str | None, form: str) -> None:
    """Look whether a model's sources are there, and how large they are."""
    if (name is None) == (source is None):
        raise click.UsageError("name a model, or a source with --source")
    if source is not None:
        answer = client.send("POST", "catalog/check-source", "words", {"source": source})
    else:
        answer = client.send("POST", f"models/{segment(name or '')}/check", "sources")
    found = answer["sources"] if source is None else [answer]
    if not plain(answer, form):
        for each in found:
            say(_source(each))
        if not found:
            say(f"{name} has no source to look at")
    if any(each.get("usable") is False for each in found):
        click.get_current_context().exit(1)
