"""Models: list, explain, retry."""

from typing import TYPE_CHECKING, Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, example, output, watch
from llmgw.cli.output import ago, clean, listed, plain, say
from llmgw.cli.tables import Row, below, table
from llmgw.cli.watch import view

if TYPE_CHECKING:
    from rich.console import Console

Model = dict[str, Any]

CLASSES = ("critical", "standard", "opportunistic")
STATES = ("ready", "loading", "unplaceable", "parked", "off", "stopped")


@click.command(
    epilog=example("llmgw ctl models", "llmgw ctl models --state unplaceable", "llmgw ctl models --owner acme -o wide")
)
@click.option("--owner", metavar="SCOPE", help="Only models of this scope and all beneath it.")
@click.option("--state", type=click.Choice(STATES), help="Only models in this state.")
@click.option("--class", "service_class", type=click.Choice(CLASSES), help="Only models of this class.")
@click.option("--name", metavar="PART", help="Only models with this in their name or an alias.")
@watch
@output
@api
def models(client: Client, form: str, watch: float | None, service_class: str | None, **query: Any) -> None:
    """List models: what they should have, what they have, and why if that differs.

    MODE is what scaling makes of it: always, on-demand or off.
    """
    query["class"] = service_class
    none = (
        "No model matches." if any(query.values()) else "The catalog has no models. Add one: llmgw ctl model add --help"
    )
    view(
        form,
        watch,
        lambda: client.all("models", "models", **query),
        lambda out, answer: show(out, answer["models"], form == "wide", none),
    )


def show(out: "Console", found: list[Model], wide: bool, none: str) -> None:
    """The table of models."""
    table(
        [
            *("MODEL", "STATE", ">READY", "MODE"),
            *(["class", "owner", "aliases", "engines", ">FAILURES", "origin", "error"] if wide else []),
            "why",
        ],
        [
            Row(
                [
                    model["name"],
                    model.get("state"),
                    f"{model['ready']}/{model['wanted']}",
                    kind(model),
                    *(_more(model) if wide else []),
                    model.get("reason") or ("" if wide else _last_error(model)),
                ]
            )
            for model in found
        ],
        none,
        out,
    )


def kind(model: Model) -> str:
    """What serves a model: replicas by its scaling, a provider, or another model's replicas."""
    for word in ("external", "adapter"):
        if model.get(word):
            return word
    return str(model["scaling"]["mode"])


def _last_error(model: Model) -> str:
    """What went wrong last, and when: a model that serves again may have one."""
    error = model.get("last_error")
    if error and str(error) in (model.get("reason") or ""):
        return ""
    return f"last error {ago(model.get('last_error_seconds'))} ago: {error}" if error else ""


def _more(model: Model) -> list[Any]:
    return [
        model.get("class", ""),
        model.get("owner", ""),
        ", ".join(model["aliases"]),
        ", ".join(dict.fromkeys(profile["engine"] for profile in model["profiles"])),
        model["failures"],
        model.get("origin", ""),
        _last_error(model),
    ]


@click.command(
    epilog=example(
        "llmgw ctl explain smollm2-135m", "llmgw ctl explain smollm2-135m --watch", "llmgw ctl explain m -o json"
    )
)
@click.argument("model", shell_complete=completion.models)
@watch
@output
@api
def explain(client: Client, model: str, form: str, watch: float | None) -> None:
    """Say why a model is where it is, and what every candidate for one more replica lacks."""
    view(
        form,
        watch,
        lambda: client.get(f"models/{segment(model)}/explain", "candidates"),
        lambda out, answer: show_explained(out, answer, form == "wide"),
    )


FITTING, TURNED_DOWN = 5, 10
"""So many candidates are shown one by one; those of a large fleet are told by what they lack."""


def show_explained(out: "Console", answer: Model, wide: bool) -> None:
    """A sentence, then every candidate: those that fit first."""
    serves = answer["state"] == "ready" and answer["ready"] >= answer["wanted"]
    head = f"{clean(answer['model'])} is {clean(answer['state'])}, {answer['ready']} of {answer['wanted']} ready"
    below(out, head + ("" if serves else f": {clean(answer['sentence'])}"), 0)
    for blocker in answer["blockers"]:
        below(out, f"Nothing is placed now: {clean(blocker['message'])} ({clean(blocker['code'])})", 0, "yellow")
    if not answer["candidates"] and not answer["wanted"]:
        return  # a provider serves it, or another model's replicas
    candidates = sorted(answer["candidates"], key=lambda each: (not each["chosen"], not each["fits"]))
    fits = sum(1 for candidate in candidates if candidate["fits"])
    out.print()
    below(out, f"Candidates for one more replica: {fits} of {len(candidates)} fit", 0, "bold")
    fitting, others = candidates[:fits], candidates[fits:]
    rows = [_candidate(candidate, wide) for candidate in (fitting if wide else fitting[:FITTING])]
    if not wide and fits > FITTING:
        rows.append(Row([" ", f"… +{fits - FITTING}", "fits"]))
    if wide or len(others) <= TURNED_DOWN:
        rows += [_candidate(candidate, wide) for candidate in others]
    else:
        rows += _alike(others)
    table(["PROFILE", "NODE", "FITS"], rows, "There are none.", out)
    if len(rows) < len(candidates):
        out.print("Each by itself: -o wide")


def _candidate(candidate: Model, wide: bool) -> Row:
    verdict = "chosen" if candidate["chosen"] else "fits" if candidate["fits"] else "no"
    notes = [f"{reason['message']} ({reason['code']})" for reason in candidate["reasons"]]
    if wide and candidate["score"]:
        notes.append(", ".join(f"{term['term']}={term['value']}" for term in candidate["score"]))
    return Row([candidate["profile"], candidate["node"], verdict], notes)


def _alike(candidates: list[Model]) -> list[Row]:
    """Those turned down, together with all that lack the same; most of them first."""
    groups: dict[tuple[str, ...], list[Model]] = {}
    for candidate in candidates:
        lacks = (candidate["profile"], *(reason["code"] for reason in candidate["reasons"]))
        groups.setdefault(lacks, []).append(candidate)
    rows = []
    for members in sorted(groups.values(), key=len, reverse=True):
        first, single = members[0], len(members) == 1
        notes = [f"{reason['message']} ({reason['code']})" for reason in first["reasons"]]
        names = listed([member["node"] for member in members])
        rows.append(
            Row(
                [first["profile"], first["node"] if single else f"{len(members)} nodes", "no"],
                notes if single else [names, *(f"such as on {first['node']}: {note}" for note in notes)],
            )
        )
    return rows


@click.command(epilog=example("llmgw ctl retry smollm2-135m"))
@click.argument("model", shell_complete=completion.models)
@output
@api
def retry(client: Client, model: str, form: str) -> None:
    """Try a model again now: ends its backoff, or its parking."""
    answer = client.send("POST", f"models/{segment(model)}/retry", "name")
    if not plain(answer, form):
        say(f"{answer['name']} waits no longer; see: llmgw ctl explain {answer['name']}")
