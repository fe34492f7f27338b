"""Changes through the command and a real control plane, from asking to the audit."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.fakes.controlplane import ControlPlane, until
from tests.fleet.cli.conftest import Run
from tests.unit.cli.terminal import Terminal

OFF = ("--engine", "sim", "--source", "sim:", "--memory-gb", "1", "--min", "0", "--max", "0")


def ok(run: Run, *arguments: str, **options: str) -> str:
    done = run(*arguments, **options)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_model_from_adding_to_removing(run: Run, control_plane: ControlPlane) -> None:
    """CAT-06, CAT-12: live, without a file, each change with its version and in the audit."""
    assert ok(run, "ctl", "model", "add", "live", *OFF, "--dry-run").endswith("live would be added\n")
    assert run("ctl", "model", "show", "live").exit_code == 1, "a dry run changes nothing"
    assert "live is added" in ok(run, "ctl", "model", "add", "live", *OFF, "--alias", "lively")
    assert re.search(r"live +off +0/0", ok(run, "ctl", "models"))
    ok(run, "ctl", "model", "set", "lively", "profiles[0].context=2048")
    ok(run, "ctl", "model", "class", "live", "critical")
    ok(run, "ctl", "model", "resources", "live", "--cores", "2", "--memory-gb", "3")
    editor = "sed -i s/2048/4096/"
    assert "live is changed" in ok(run, "ctl", "model", "edit", "live", EDITOR=editor)
    shown = json.loads(ok(run, "ctl", "model", "show", "live", "-o", "json"))
    assert shown["definition"] == {
        "aliases": ["lively"],
        "class": "critical",
        "resources": {"cpu_cores": 2, "min_memory_gb": 3},
        "scaling": {"min": 0, "max": 0},
        "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1, "context": 4096}],
    }
    assert (shown["origin"], shown["version"]) == ("store", 5)
    assert "live is removed" in ok(run, "ctl", "model", "remove", "lively")
    assert run("ctl", "model", "show", "live").exit_code == 1
    entries = json.loads(ok(run, "ctl", "audit", "--target", "live", "-o", "json"))["audit"]
    assert len(entries) == 6 and {entry["user"] for entry in entries} == {"local"}
    assert all(entry["actor"].startswith("local (cli:") for entry in entries)
    assert "nothing -> {" in ok(run, "ctl", "audit", "--target", "live", "-o", "wide")


def test_what_stands_in_a_file_is_not_edited_in_vain(run: Run) -> None:
    """CAT-06: said before the editor opens, with the file."""
    refused = run("ctl", "model", "edit", "sim-off", EDITOR="false")
    assert refused.exit_code == 1 and "catalog.yaml: change it there" in refused.output
    assert run("ctl", "model", "scale", "sim-off", "1").exit_code == 1


def test_a_refused_model_has_all_its_faults(run: Run) -> None:
    """CAT-01: with places and the nearest known names."""
    refused = run(
        "ctl", "model", "add", "-f", "-", stdin="models: {m: {scalin: {}, profiles: [{engine: simm, source: 7}]}}"
    )
    assert refused.exit_code == 1
    for words in (
        "models.m.scalin",
        "did you mean scaling",
        "models.m.profiles[0].engine",
        "models.m.profiles[0].source",
    ):
        assert words in refused.output, refused.output


def test_labels_and_holds(run: Run) -> None:
    """PLC-09, PLC-15: a place, and a hold on it, seen where nodes are listed."""
    assert "it is at r12" in ok(run, "ctl", "label", "node-1", "llmgw.io/rack=r12", "tier=gold")
    assert ok(run, "ctl", "label", "node-1", "tier-") == "node-1: llmgw.io/rack=r12\nit is at r12\n"
    own = run("ctl", "label", "node-1", "rack=r1")
    assert "llmgw.io/rack" in own.stderr, "a label of one's own is no place"
    assert "llmgw.io/rack=r12 is held: 1 node in it (node-1)" in ok(run, "ctl", "hold", "rack=r12", "--reason", "power")
    assert re.search(r"llmgw.io/rack=r12 +1 .*power", ok(run, "ctl", "holds"))
    assert re.search(
        r"node-1 +r12 +held .*held: llmgw.io/rack=r12: power", ok(run, "ctl", "nodes", "--domain", "rack=r12")
    )
    assert ok(run, "ctl", "nodes", "--domain", "rack=r13") == "No node matches.\n"
    assert ok(run, "ctl", "release", "rack=r12") == "llmgw.io/rack=r12 is held no longer\n"
    assert ok(run, "ctl", "holds").startswith("Nothing is held. Hold a rack:")
    assert ok(run, "ctl", "label", "node-1", "a=b", "--replace") == "node-1: a=b\n"
    ok(run, "ctl", "label", "node-1", "a-")
    assert run("ctl", "label", "node-1", "x").exit_code == 2


def test_people_and_what_they_may(run: Run, tmp_path: Path) -> None:
    """API-08, TEN-01: a team's owner from scope to token; what is not theirs is refused with status 4."""
    ok(run, "ctl", "scope", "add", "acme")
    ok(run, "ctl", "scope", "add", "acme/ml", "--title", "Machine learning")
    ok(run, "ctl", "user", "add", "grace", "--role", "owner=acme")
    made = run("ctl", "token", "add", "grace", "--name", "laptop", "--expires", "90d")
    assert re.fullmatch(r"adm-llmgw-\S+\n", made.stdout) and "Shown this once" in made.stderr
    own = tmp_path / "grace"
    own.touch(0o600)
    own.write_text(made.stdout)
    as_grace = {"LLMGW_TOKEN_FILE": str(own)}
    assert "grace" in ok(run, "ctl", "whoami", **as_grace) and "owner of acme" in ok(run, "ctl", "whoami", **as_grace)
    assert ok(run, "keys", "create", "k", "--scope", "acme/ml", **as_grace)
    refused = run("ctl", "status", **as_grace)
    assert refused.exit_code == 4 and "llmgw ctl whoami" in refused.output and "PUT /api" not in refused.output
    listed = ok(run, "ctl", "tokens")
    token = re.search(r"tok-\w+", listed)
    assert token is not None and made.stdout.strip() not in listed
    ok(run, "ctl", "token", "revoke", token[0])
    gone = run("ctl", "whoami", **as_grace)
    assert gone.exit_code == 4 and f"LLMGW_TOKEN_FILE ({own})" in gone.output and "revoked" in gone.output
    assert re.search(r"tok-\w+ +grace +laptop +revoked", ok(run, "ctl", "tokens"))
    assert "grace is disabled" in ok(run, "ctl", "user", "set", "grace", "--disable")
    assert re.search(r"grace +disabled +owner of acme", ok(run, "ctl", "users"))
    assert ok(run, "ctl", "user", "remove", "grace") == "grace is removed\n"
    used = run("ctl", "scope", "remove", "acme/ml")
    assert used.exit_code == 1 and "is in use: keys k" in used.output


def test_settings(run: Run) -> None:
    """API-06: YAML scalars; who set it; which one rules."""
    assert (
        ok(run, "ctl", "settings", "set", "requests.retention", "14d") == "requests.retention = 14d, from the store\n"
    )
    assert re.search(r"requests.retention +14d +store +14d +- +7d", ok(run, "ctl", "settings", "list"))
    assert "set by local (cli:" in ok(run, "ctl", "settings", "get", "requests.retention")
    assert ok(run, "ctl", "settings", "unset", "requests.retention") == "requests.retention = 7d, from the default\n"
    assert ok(run, "ctl", "settings", "set", "requests.log", "false") == "requests.log = false, from the store\n"
    ok(run, "ctl", "settings", "unset", "requests.log")
    wrong = run("ctl", "settings", "set", "request.log", "true")
    assert wrong.exit_code == 1 and "did you mean requests.log" in wrong.output
    assert "state_dir" in ok(run, "ctl", "settings", "list", "--process")


def test_the_catalog_as_a_file(run: Run, tmp_path: Path) -> None:
    """CAT-06: what is exported is valid; faults of a file are told with exit status 1."""
    exported = ok(run, "ctl", "catalog", "export")
    assert set(yaml.safe_load(exported)["models"]) == {"sim-small", "sim-huge", "sim-off"}
    file = tmp_path / "catalog.yaml"
    file.write_text(exported)
    assert ok(run, "ctl", "catalog", "validate", str(file)) == f"{file} has no faults\n"
    faults = run("ctl", "catalog", "validate", "-", stdin="models: {a: {scalin: 1}}")
    assert (
        faults.exit_code == 1
        and "models.a.scalin: " in faults.output
        and "standard input has 2 faults" in faults.output
    )


def test_names_that_are_nearly_right(run: Run) -> None:
    """CLI-03: an alias will do, a typing error is told with what was meant."""
    assert "node-1:" in ok(run, "ctl", "replicas", "--model", "small")
    wrong = run("ctl", "replicas", "--model", "smal")
    assert wrong.exit_code == 1 and "did you mean small" in wrong.output
    assert "'ctl nodes'" in run("nodess").output and "'status'" in run("ctl", "statsu").output


@pytest.mark.parametrize("shown", ["replica", "node show"])
def test_one_of_them(run: Run, control_plane: ControlPlane, shown: str) -> None:
    """CLI-03: everything that is known, with dashes for what is not."""
    (replica,) = control_plane.get("replicas?model=sim-small")["replicas"]
    text = ok(run, "ctl", *shown.split(), replica["id"] if shown == "replica" else "node-1")
    assert replica["id"] in text and "127.0.0.1" in text and re.search(r"(?<!\w)-(?!\w)", text)


def test_use_that_nobody_made(run: Run) -> None:
    """CLI-05: empty answers say so; CSV has its heading all the same."""
    late = "some seconds after they ended"
    none = ok(run, "ctl", "requests")
    assert none.startswith("No request has been logged") and late in none
    failed = ok(run, "ctl", "requests", "--failed")
    assert failed.startswith("No request matches") and late in failed
    unused = ok(run, "ctl", "usage", "--by", "day,key")
    assert unused.startswith("Nothing was used in that time") and late in unused
    assert ok(run, "ctl", "usage", "--by", "model", "--csv").startswith("model,requests,failed")
    assert run("ctl", "usage", "--by", "colour").exit_code == 2
    assert run("ctl", "request", "none").exit_code == 1


def test_events_as_they_happen(run: Run, control_plane: ControlPlane) -> None:
    """API-04: the stream of a real control plane."""
    environment = {"LLMGW_TOKEN_FILE": str(control_plane.state / "admin.token")}
    with Terminal("--api", control_plane.api, "ctl", "events", "--limit", "1", "-w", **environment) as terminal:
        terminal.until(lambda text: bool(text.strip()), "the last event")
        ok(run, "ctl", "cordon", "node-1", "--reason", "a fan that nobody hears")
        terminal.until(lambda text: "a fan that nobody hears" in text, "the cordon")
        ok(run, "ctl", "uncordon", "node-1")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.ends() == 130
    until(lambda: "cordon" not in control_plane.get("nodes/node-1"))
