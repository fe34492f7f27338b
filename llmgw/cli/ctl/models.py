"""Models: list, explain, retry."""

from typing import Any

import click

from llmgw.cli.client import Client, segment
from llmgw.cli.options import api, example, output
from llmgw.cli.output import ago, clean, console, plain, table

Model = dict[str, Any]


@click.command(epilog=example("llmgw ctl models", "llmgw ctl models -o json"))
@output
@api
def models(client: Client, form: str) -> None:
    """List models: what they should have, what they have, and why if that differs.

    MODE is what scaling makes of it: always, on-demand or off.
    """
    answer = client.get("models", "models")
    if plain(answer, form):
        return
    wide = form == "wide"
    table(
        ["MODEL", "STATE", "READY", "MODE", "why", *(["aliases", "engines", "FAILURES", "last error"] if wide else [])],
        [
            [
                model["name"],
                model.get("state"),
                f"{model['ready']}/{model['wanted']}",
                model["scaling"]["mode"],
                model.get("reason") or ("" if wide else _last_error(model)),
                *(_more(model) if wide else []),
            ]
            for model in answer["models"]
        ],
        "The catalog has no models. Add one to the catalog file, then: llmgw ctl catalog reload",
    )


def _last_error(model: Model) -> str:
    """What went wrong last, and when: a model that serves again may have one."""
    error = model.get("last_error")
    return f"last error {ago(model.get('last_error_seconds'))} ago: {error}" if error else ""


def _more(model: Model) -> list[Any]:
    return [
        ", ".join(model["aliases"]),
        ", ".join(dict.fromkeys(profile["engine"] for profile in model["profiles"])),
        model["failures"],
        _last_error(model).removeprefix("last error "),
    ]


@click.command(epilog=example("llmgw ctl explain smollm2-135m", "llmgw ctl explain smollm2-135m -o json"))
@click.argument("model")
@output
@api
def explain(client: Client, model: str, form: str) -> None:
    """Say why a model is where it is, and what every candidate for one more replica lacks."""
    answer = client.get(f"models/{segment(model)}/explain", "candidates")
    if plain(answer, form):
        return
    out = console()
    serves = answer["state"] == "ready" and answer["ready"] >= answer["wanted"]
    out.print(
        f"{clean(answer['model'])} is {clean(answer['state'])}, {answer['ready']} of {answer['wanted']} ready"
        + ("" if serves else f": {clean(answer['sentence'])}")
    )
    for blocker in answer["blockers"]:
        out.print(f"Nothing is placed now: {clean(blocker['message'])} ({clean(blocker['code'])})")
    out.print("\nCandidates for one more replica:")
    rows: list[list[Any]] = []
    for candidate in answer["candidates"]:
        verdict = "chosen" if candidate["chosen"] else "fits" if candidate["fits"] else "no"
        words = [f"{reason['message']} ({reason['code']})" for reason in candidate["reasons"]]
        if form == "wide":
            words += [f"{term['term']}={term['value']}" for term in candidate["score"]]
        for index, word in enumerate(words or [""]):
            first = [candidate["profile"], candidate["node"], verdict] if index == 0 else [" ", " ", " "]
            rows.append([*first, word or " "])
    table(["PROFILE", "NODE", "FITS", "why not" if form == "table" else "why"], rows, "There are none.", out)


@click.command(epilog=example("llmgw ctl retry smollm2-135m"))
@click.argument("model")
@output
@api
def retry(client: Client, model: str, form: str) -> None:
    """Try a model again now: ends its backoff, or its parking."""
    answer = client.send("POST", f"models/{segment(model)}/retry", "name")
    if not plain(answer, form):
        click.echo(f"{answer['name']} waits no longer; see: llmgw ctl explain {answer['name']}")
