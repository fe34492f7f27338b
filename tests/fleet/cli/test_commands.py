"""Every command against a real control plane."""

import json
import re

import click
import pytest
import yaml

from llmgw import __version__
from llmgw.cli import main
from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.cli.conftest import Run


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command and group there is, from the product itself."""
    found = [(path, group)] if path else []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        else:
            found.append(((*path, name), command))
    return found


BECOME_OTHERS = {("sim-engine",), ("sim-fleet",), ("init",), ("store",)}
"""Their help is written by what they become."""


@pytest.mark.parametrize(
    ("path", "command"), commands(), ids=lambda value: "-".join(value) if isinstance(value, tuple) else ""
)
def test_every_command_has_help_with_an_example(run: Run, path: tuple[str, ...], command: click.Command) -> None:
    """CLI-01: what it does, and how it is called."""
    beginnings = {f"llmgw {path[0]}", f"llmgw {path[1]}" if len(path) > 1 else ""} - {""}
    assert command.help and command.epilog and any(beginning in command.epilog for beginning in beginnings)
    if path not in BECOME_OTHERS:
        shown = run(*path, "--help")
        assert shown.exit_code == 0 and "Example:" in shown.output
        assert max(map(len, shown.output.splitlines())) <= 80 or "http" in shown.output


def test_the_version(run: Run) -> None:
    """CLI-01."""
    assert run("--version").output == f"llmgw {__version__}\n"


READS = {
    ("ctl", "status"): "problems",
    ("ctl", "nodes"): "nodes",
    ("ctl", "models"): "models",
    ("ctl", "replicas"): "replicas",
    ("ctl", "explain", "sim-huge"): "candidates",
    ("ctl", "events"): "events",
    ("ctl", "catalog", "show"): "models",
    ("ctl", "log-level"): "level",
    ("keys", "list"): "keys",
}


@pytest.mark.parametrize("command", READS, ids="-".join)
def test_json_and_yaml_are_what_the_api_says(run: Run, command: tuple[str, ...]) -> None:
    """CLI-01: the same for programs, whole; tables for people are there too."""
    as_json = json.loads(run(*command, "-o", "json").output)
    as_yaml = yaml.safe_load(run(*command, "-o", "yaml").output)
    assert READS[command] in as_json and set(as_json) == set(as_yaml)
    for form in ("table", "wide"):
        shown = run(*command, "-o", form)
        assert shown.exit_code == 0 and shown.output.strip()
        assert "\x1b" not in shown.output


def test_status_shows_problems_first_and_fits_80_columns(run: Run) -> None:
    """CLI-02: problems, capacity with bars, models with why; on a terminal of 80 columns."""
    text = run("ctl", "status", COLUMNS="80").output
    assert max(map(len, text.splitlines())) <= 80
    order = [text.index(word) for word in ("PROBLEMS", "CAPACITY", "MODELS")]
    assert order == sorted(order)
    flat = " ".join(text.split())
    assert "model sim-huge: 0 of 1 ready: cannot be placed" in flat and "999" in flat
    assert re.search(r"memory\s+█+░+ +0\.5 of 16\.0 GB, - used", text)
    assert re.search(r"cores\s+█+░+ +1 of 8, - used", text)
    assert re.search(r"sim-small\s+ready\s+1/1", text)
    assert re.search(r"sim-off\s+off\s+0/0", text)


def test_unknown_is_a_dash_and_zero_is_zero(run: Run) -> None:
    """CLI-03: rule 2 of the product."""
    row = next(line for line in run("ctl", "nodes", "-o", "wide").output.splitlines() if line.startswith("node-1"))
    assert re.search(r"node-1 +connected +█░+ 1/8 +█░+ 0\.5/16\.0 +none +1 +\S+ +sim +- +- +- +127\.0\.0\.1", row)


def test_explain_says_why_for_every_candidate(run: Run) -> None:
    """PLC-24, CLI-03: a sentence, then each profile on each node with figures."""
    text = run("ctl", "explain", "sim-huge").output
    assert text.startswith("sim-huge is unplaceable, 0 of 1 ready: model sim-huge cannot be placed")
    assert re.search(r"p0 +node-1 +no +.*999.*\(memory_claimed\)", text)
    alias = run("ctl", "explain", "small")
    assert alias.exit_code == 0 and alias.output.startswith("sim-small is ready")


def test_replicas_tell_where_and_who(run: Run, control_plane: ControlPlane) -> None:
    """CLI-03."""
    (replica,) = control_plane.get("replicas")["replicas"]
    text = run("ctl", "replicas", "--model", "sim-small", "-o", "wide").output
    assert replica["id"] in text and "4242" in text and f"node-1:{replica['shards'][0]['port']}" in text
    assert run("ctl", "replicas", "--node", "node-2").output == "No replica matches.\n"


def test_events_come_oldest_first(run: Run) -> None:
    """CLI-03: as a log is read."""
    lines = run("ctl", "events", "--limit", "1000").output.splitlines()[1:]
    assert len(lines) > 1 and lines == sorted(lines, key=lambda line: line[:19])
    kinds = {line[19:].split()[0] for line in lines}
    assert "place" in kinds and len(kinds) > 1
    only = run("ctl", "events", "--kind", "place").output.splitlines()[1:]
    assert {line[19:].split()[0] for line in only} == {"place"}


def test_a_key_from_making_to_revoking(run: Run, control_plane: ControlPlane) -> None:
    """SEC-03, CLI-01: standard output is the key alone, so that it can be captured."""
    made = run("keys", "create", "team a", "--model", "small", "--expires", "30d")
    assert made.exit_code == 0 and re.fullmatch(r"sk-llmgw-\S+\n", made.stdout)
    assert "Shown this once" in made.stderr and "sim-small" in made.stderr
    (key,) = [key for key in control_plane.get("keys")["keys"] if key["name"] == "team a"]
    assert re.fullmatch(r"local \(cli:\S+( \(sudo by \S+\))?\)", key["created_by"])
    listed = run("keys", "list").output
    assert key["id"] in listed and made.stdout.strip() not in listed
    assert "is revoked" in run("keys", "revoke", key["id"]).output
    assert re.search(rf"{key['id']} +team a +revoked", run("keys", "list").output)


def test_sudo_is_seen_through(run: Run, control_plane: ControlPlane) -> None:
    """API-05: who was it really."""
    run("keys", "create", "sudo key", SUDO_USER="ada;\x1b[31m")
    (key,) = [key for key in control_plane.get("keys")["keys"] if key["name"] == "sudo key"]
    assert key["created_by"].endswith("(sudo by ada???31m))")


def test_cordon_and_uncordon(run: Run, control_plane: ControlPlane) -> None:
    """PLC-03."""
    assert run("ctl", "cordon", "node-1", "--reason", "fan").output == "node-1 is cordoned; 1 replica there now\n"
    until(lambda: "cordon" in control_plane.get("nodes/node-1"))
    listed = run("ctl", "nodes").output
    assert re.search(r"node-1 +cordoned", listed)
    assert re.search(r"cordoned: fan \(local \(cli:", listed)
    assert run("ctl", "uncordon", "node-1").exit_code == 0
    until(lambda: "cordon" not in control_plane.get("nodes/node-1"))


def test_the_catalog_and_the_log_level(run: Run, control_plane: ControlPlane) -> None:
    """CAT-06: all faults of a refused catalog, exit status 1; the old one stays."""
    good = control_plane.catalog.read_text()
    control_plane.catalog.write_text("models: {a: {scalin: 1, profiles: []}, b: 7}")
    refused = run("ctl", "catalog", "reload")
    assert refused.exit_code == 1
    assert all(
        place in refused.output for place in ("models.a.scalin", "models.a.profiles", "models.b", "catalog_invalid")
    )
    assert "refused" in run("ctl", "catalog", "show").output
    control_plane.catalog.write_text(good)
    assert run("ctl", "catalog", "reload").output.endswith("is in force: 3 models\n")
    assert run("ctl", "log-level", "debug").output == "debug\n" == run("ctl", "log-level").output
    assert run("ctl", "log-level", "info").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ctl", "explain", "sim-smal"], "there is no model 'sim-smal'; did you mean sim-small?"),
        (["ctl", "cordon", "node-2"], "there is no node 'node-2'; did you mean node-1?"),
        (["ctl", "retry", "sim-off"], "is off"),
        (["keys", "revoke", "../status"], "there is no"),
        (["keys", "create", "k", "--model", "nope", "--expires", "never"], "models[0]"),
    ],
)
def test_a_refusal_is_words_and_exit_status_1(run: Run, arguments: list[str], words: str) -> None:
    """CLI-01: with the code and the id under which the log has it."""
    refused = run(*arguments)
    assert refused.exit_code == 1 and words in refused.output
    assert re.search(r"\(\w+, request [0-9a-f]{16}\)", refused.output)
    assert "Traceback" not in refused.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["ctl", "explain"],
        ["ctl", "statsu"],
        ["ctl", "status", "-o", "xml"],
        ["ctl", "log-level", "loud"],
        ["--api", "foo:bar", "ctl", "status"],
        ["ctl", "status", "--api", "ftp://x"],
        ["ctl", "events", "--limit", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_status_2(run: Run, arguments: list[str]) -> None:
    """CLI-01."""
    assert run(*arguments).exit_code == 2


def test_which_api_is_asked(run: Run, control_plane: ControlPlane) -> None:
    """CLI-01: the command's option, then the program's, then the environment."""
    dead = "http://127.0.0.1:9"
    assert run("ctl", "log-level", "--api", control_plane.api, LLMGW_API=dead).exit_code == 0
    assert run("--api", control_plane.api, "ctl", "log-level", LLMGW_API=dead).exit_code == 0
    assert run("--api", dead, "ctl", "log-level", "--api", control_plane.api.removeprefix("http://")).exit_code == 0
    assert run("--api", dead, "ctl", "log-level").exit_code == 3


def test_no_color_and_terminals(run: Run) -> None:
    """CLI-01: nothing but text without a terminal, whatever the state's colour."""
    assert "\x1b" not in run("ctl", "models", NO_COLOR="1", TERM="xterm-256color").output


def test_the_api_is_not_asked_through_a_proxy(run: Run) -> None:
    """SEC-03: a proxy of the environment does not see keys being made."""
    assert run("ctl", "log-level", HTTP_PROXY="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9").exit_code == 0
