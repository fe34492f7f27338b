"""Cluster settings (API-06)."""

from typing import Any

import click

from llmgw.cli import completion
from llmgw.cli.client import Client, segment
from llmgw.cli.groups import Group
from llmgw.cli.options import api, example, output
from llmgw.cli.output import UNKNOWN, ago, as_json, clean, console, plain, say, utc
from llmgw.cli.tables import Row, table
from llmgw.cli.yamltext import parse

Setting = dict[str, Any]


@click.group(cls=Group, epilog=example("llmgw ctl settings list", "llmgw ctl settings set requests.retention 14d"))
def settings() -> None:
    """Settings of the whole cluster, changed live. The store's value rules, then the file's, then the default."""


def _shown(value: Any, unit: str | None) -> str:
    if value is None:
        return UNKNOWN
    if unit == "seconds" and isinstance(value, int | float) and not isinstance(value, bool):
        return ago(value)
    return clean(value) if isinstance(value, str) else as_json(value, None)


def _origin(setting: Setting, part: str) -> str:
    found = setting.get(part)
    return UNKNOWN if not found else _shown(found["value"], setting.get("unit"))


@settings.command("list", epilog=example("llmgw ctl settings list", "llmgw ctl settings list --process"))
@click.option("--process", is_flag=True, help="The settings of this control plane's own process instead.")
@output
@api
def list_settings(client: Client, process: bool, form: str) -> None:
    """List every setting: its value, which one rules, and what the store and the file say."""
    answer = client.get("settings", "cluster")
    if plain(answer, form):
        return
    wide = form == "wide"
    if process:
        columns = ["SETTING", "value", "from", *(["does"] if wide else [])]
        rows = [
            Row(
                [
                    each["name"],
                    _shown(each.get("value"), None),
                    each["origin"],
                    *([each.get("help", "")] if wide else []),
                ]
            )
            for each in answer["settings"]
        ]
    else:
        columns = ["SETTING", "VALUE", "FROM", "store", "file", "default", *(["does"] if wide else [])]
        rows = [Row(_cells(each, wide), _faults(each)) for each in answer["cluster"]]
    table(columns, rows, "There are no settings.", console())


def _cells(setting: Setting, wide: bool) -> list[Any]:
    unit = setting.get("unit")
    return [
        setting["name"],
        _shown(setting.get("value"), unit),
        setting["rules"],
        _origin(setting, "store"),
        _origin(setting, "file"),
        _shown(setting["default"], unit),
        *([setting["help"]] if wide else []),
    ]


def _faults(setting: Setting) -> list[str]:
    stored = setting.get("store") or {}
    return [f"the store's value cannot be used: {stored['fault']}"] if stored.get("fault") else []


@settings.command(epilog=example("llmgw ctl settings get requests.retention"))
@click.argument("name", metavar="SETTING", shell_complete=completion.settings)
@output
@api
def get(client: Client, name: str, form: str) -> None:
    """Show a setting: its value, where it is from, and what the others say."""
    found = client.get(f"settings/{segment(name)}", "name")
    if plain(found, form):
        return
    unit = found.get("unit")
    _say_what_rules(found)
    stored, given = found.get("store"), found.get("file")
    if stored:
        who = f"set by {stored.get('updated_by', UNKNOWN)} at {utc(stored.get('updated_at'))}"
        say(f"  store    {_shown(stored['value'], unit)} ({who})")
    if given:
        say(f"  file     {_shown(given['value'], unit)} ({given.get('origin', UNKNOWN)})")
    say(f"  default  {_shown(found.get('default'), unit)}")
    for fault in _faults(found):
        say(f"  {fault}")
    if found.get("help"):
        say(found["help"])


def _say_what_rules(setting: Setting) -> None:
    rules = setting["rules"]
    origin = {"store": "the store", "default": "the default"}.get(rules, clean(rules))
    say(f"{setting['name']} = {_shown(setting['value'], setting.get('unit'))}, from {origin}")


@settings.command(
    "set",
    epilog=example("llmgw ctl settings set requests.retention 14d", "llmgw ctl settings set sources.private true"),
)
@click.argument("name", metavar="SETTING", shell_complete=completion.settings)
@click.argument("value")
@output
@api
def set_setting(client: Client, name: str, value: str, form: str) -> None:
    """Set a value in the store: it rules from now on. VALUE is YAML, such as true, 14d or [a, b]."""
    body = {"value": parse(value, "VALUE")}
    found = client.read(f"settings/{segment(name)}", "name")
    answer = client.send("PUT", f"settings/{segment(name)}", "name", body, match=found.tag)
    if not plain(answer, form):
        _say_what_rules(answer)


@settings.command(epilog=example("llmgw ctl settings unset requests.retention"))
@click.argument("name", metavar="SETTING", shell_complete=completion.settings)
@output
@api
def unset(client: Client, name: str, form: str) -> None:
    """Take the store's value away: the file's value or the default rules again."""
    answer = client.send("DELETE", f"settings/{segment(name)}", "name")
    if not plain(answer, form):
        _say_what_rules(answer)
