"""``ctl model``: what is sent, the editor, and that nothing a person wrote is lost (CAT-06, CAT-12)."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import responses
import yaml
from click.testing import CliRunner, Result
from responses.matchers import query_param_matcher

from llmgw.cli import main

URL = "http://127.0.0.1:7000"
MODELS = f"{URL}/api/v1/models"
DEFINITION = {"scaling": {"min": 1, "max": 1}, "profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1}]}
MODEL = {"name": "qwen", "ready": 1, "wanted": 1, "state": "ready", "replicas": ["qwen-1"], "definition": DEFINITION}
SOURCES = [{"source": "file:/srv/q.gguf", "words": "nodes will tell"}]


def run(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
    return CliRunner().invoke(main, ["--api", URL, "ctl", "model", *arguments], input=stdin, env=environment)


def sent(number: int = -1) -> Any:
    return json.loads(responses.calls[number].request.body or "null")


@responses.activate
def test_the_common_case_in_one_line() -> None:
    """CLI-01: options become the definition that a file would hold; whole numbers stay whole."""
    responses.post(MODELS, status=201, json={**MODEL, "sources": SOURCES}, match=[query_param_matcher({})])
    done = run(
        "add",
        "qwen",
        *["--engine", "llamacpp", "--source", "file:/srv/q.gguf", "--memory-gb", "6", "--cores", "4", "--alias", "q"],
    )
    assert done.exit_code == 0, done.output
    assert sent() == {
        "name": "qwen",
        "aliases": ["q"],
        "scaling": {"min": 1, "max": 1},
        "profiles": [{"engine": "llamacpp", "source": "file:/srv/q.gguf", "min_memory_gb": 6, "cpu_cores": 4}],
    }
    assert (
        "file:/srv/q.gguf: nodes will tell" in done.output
        and "qwen is added; see: llmgw ctl explain qwen" in done.output
    )


@responses.activate
def test_without_changing_anything() -> None:
    """CAT-09: --dry-run and --no-check are the API's; it says "would"."""
    query = {"dry_run": "true", "check": "false"}
    responses.post(MODELS, status=201, json={**MODEL, "dry_run": True}, match=[query_param_matcher(query)])
    done = run("add", "qwen", "--engine", "sim", "--source", "sim:", "--dry-run", "--no-check")
    assert done.output == "qwen would be added\n"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (DEFINITION, "qwen", {"qwen": DEFINITION}),
        ({"name": "qwen", **DEFINITION}, None, {"qwen": DEFINITION}),
        ({"models": {"a": DEFINITION, "b": DEFINITION}}, None, {"a": DEFINITION, "b": DEFINITION}),
        ({"models": {"a": DEFINITION, "b": DEFINITION}}, "b", {"b": DEFINITION}),
    ],
)
@pytest.mark.parametrize("from_stdin", [False, True])
@responses.activate
def test_files(tmp_path: Path, text: Any, name: str | None, expected: dict[str, Any], from_stdin: bool) -> None:
    """CLI-01: one definition, or a catalog file as it is."""
    responses.post(MODELS, status=201, json=MODEL)
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump(text))
    words = [*([name] if name else []), "-f", "-" if from_stdin else str(file)]
    done = run("add", *words, stdin=file.read_text() if from_stdin else None)
    assert done.exit_code == 0, done.output
    bodies = [sent(number) for number in range(len(responses.calls))]
    assert {body.pop("name"): body for body in bodies} == expected


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        (["add"], "", "name the model, or give a file"),
        (["add", "m"], "", "--engine and --source must be given"),
        (["add", "m", "--engine", "sim"], "", "--source must be given"),
        (["add", "m", "-f", "-", "--cores", "2"], "", "not both"),
        (["add", "-f", "-"], "engine: sim", "is one definition: name the model"),
        (["add", "c", "-f", "-"], "models: {a: {}}", "has no model 'c': it has a"),
        (["add", "-f", "-"], "models: []", "has no models"),
        (["add", "-f", "-"], "a: [", "standard input, line 1"),
        (["add", "-f", "-"], "- a", "must be a mapping"),
        (["add", "-f", "/nonexistent.yaml"], "", "cannot read /nonexistent.yaml: No such file"),
        (["owner", "m"], "", "give a scope, or --none"),
        (["resources", "m"], "", "give --cores, --memory-gb or both, or --none"),
        (["check"], "", "name a model, or a source"),
        (["class", "m", "gold"], "", "'gold' is not one of"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str, words: str) -> None:
    """CLI-01: exit status 2, what is wrong, and nothing is sent."""
    done = run(*arguments, stdin=text)
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["class", "qwen", "critical"], {"class": "critical"}),
        (["class", "qwen", "none"], {"class": None}),
        (["owner", "qwen", "acme/ml"], {"owner": "acme/ml"}),
        (["owner", "qwen", "--none"], {"owner": None}),
        (["resources", "qwen", "--cores", "8"], {"resources": {"cpu_cores": 8}}),
        (
            ["resources", "qwen", "--cores", "1.5", "--memory-gb", "24"],
            {"resources": {"cpu_cores": 1.5, "min_memory_gb": 24}},
        ),
        (["resources", "qwen", "--none"], {"resources": None}),
        (["scale", "qwen", "3"], {"scaling": {"min": 3, "max": 3}}),
        (["scale", "qwen", "0", "--max", "2"], {"scaling": {"min": 0, "max": 2}}),
    ],
)
@responses.activate
def test_parts_of_a_model(arguments: list[str], body: Any) -> None:
    """CAT-12: only what is changed is sent."""
    responses.patch(f"{MODELS}/qwen", json=MODEL)
    assert run(*arguments).exit_code == 0
    assert sent() == body


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["scaling.max=4"], {**DEFINITION, "scaling": {"min": 1, "max": 4}}),
        (["owner=acme"], {**DEFINITION, "owner": "acme"}),
        (["aliases=[a, b]"], {**DEFINITION, "aliases": ["a", "b"]}),
        (["resources.cpu_cores=2"], {**DEFINITION, "resources": {"cpu_cores": 2}}),
        (["profiles[0].context=8192"], {**DEFINITION, "profiles": [{**DEFINITION["profiles"][0], "context": 8192}]}),  # type: ignore[dict-item]
        (["scaling-"], {"profiles": DEFINITION["profiles"]}),
        (["profiles[0]-"], {**DEFINITION, "profiles": []}),
    ],
)
@responses.activate
def test_fields(fields: list[str], expected: Any) -> None:
    """CAT-06: values are YAML."""
    responses.get(f"{MODELS}/qwen", json=MODEL, headers={"ETag": '"1"'})
    responses.put(f"{MODELS}/qwen", json=MODEL)
    assert run("set", "qwen", *fields).exit_code == 0
    assert sent() == expected


@pytest.mark.parametrize(
    "field",
    [
        "owner",
        "a..b=1",
        "[0]=1",
        "profiles[7].context=1",
        "profiles[0]x=1",
        "scaling.min.x=1",
        "a=[",
        "=1",
        "profiles[3]-",
    ],
)
@responses.activate
def test_fields_that_are_none(field: str) -> None:
    """CLI-01: exit status 2; nothing is sent."""
    responses.get(f"{MODELS}/qwen", json=MODEL)
    assert run("set", "qwen", field).exit_code == 2
    assert len(responses.calls) == 1


# ---------------------------------------------------------------- the editor


def editor(tmp_path: Path, *steps: str) -> str:
    """An editor that carries out one step of Python each time it is opened; ``text`` is the file."""
    script = tmp_path / "editor.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "file = pathlib.Path(sys.argv[1])\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "seen.mkdir(exist_ok=True)\n"
        "number = len(list(seen.iterdir()))\n"
        "text = file.read_text()\n"
        "(seen / f'{number}').write_text(f'{file.parent.stat().st_mode & 0o777:o}\\n{text}')\n"
        f"steps = {list(steps)!r}\n"
        "exec(steps[number])\n"
        "file.write_text(text)\n"
    )
    return f"python3 {script}"


def opened(tmp_path: Path, number: int) -> str:
    return (tmp_path / "seen" / str(number)).read_text().partition("\n")[2]


REFUSAL = {
    "code": "catalog_invalid",
    "message": "the catalog has faults: nothing was changed",
    "faults": [{"path": "models.qwen.scaling.max", "message": "must be at least min, which is 1"}],
    "request_id": "1",
}


@responses.activate
def test_an_edit(tmp_path: Path) -> None:
    """CAT-06: what was saved is sent, for the version that was shown; the file is nobody else's, and goes."""
    responses.get(f"{MODELS}/q", json=MODEL, headers={"ETag": '"3"'})
    responses.put(f"{MODELS}/qwen", json=MODEL)
    done = run("edit", "q", EDITOR=editor(tmp_path, "text = text.replace('max: 1', 'max: 4')"), TMPDIR=str(tmp_path))
    assert done.exit_code == 0, done.output
    assert sent() == {**DEFINITION, "scaling": {"min": 1, "max": 4}}
    assert responses.calls[-1].request.headers["If-Match"] == '"3"'
    assert (tmp_path / "seen" / "0").read_text().startswith("700\n# The definition of the model qwen.")
    assert not list(tmp_path.glob("llmgw-*"))


@responses.activate
def test_a_refusal_is_shown_in_the_editor(tmp_path: Path) -> None:
    """CLI-01: as comments above what was written, which is still there; then it is taken."""
    responses.get(f"{MODELS}/qwen", json=MODEL)
    responses.put(f"{MODELS}/qwen", status=422, json=REFUSAL)
    responses.put(f"{MODELS}/qwen", json=MODEL)
    steps = ("text = text.replace('max: 1', 'max: 0') + '# mine\\n'", "text = text.replace('max: 0', 'max: 2')")
    done = run("edit", "qwen", EDITOR=editor(tmp_path, *steps))
    assert done.exit_code == 0, done.output
    again = opened(tmp_path, 1)
    assert "#   models.qwen.scaling.max: must be at least min, which is 1" in again
    assert "max: 0" in again and "# mine" in again
    assert sent()["scaling"] == {"min": 1, "max": 2}


@responses.activate
def test_what_is_no_yaml_is_shown_too(tmp_path: Path) -> None:
    """CLI-01: nothing is sent before it can be read."""
    responses.get(f"{MODELS}/qwen", json=MODEL)
    responses.put(f"{MODELS}/qwen", json=MODEL)
    steps = ("text = 'scaling: [\\n'", "text = 'scaling: {min: 0, max: 1}\\n'")
    assert run("edit", "qwen", EDITOR=editor(tmp_path, *steps)).exit_code == 0
    assert "# the definition, line 2" in opened(tmp_path, 1) and len(responses.calls) == 2


@pytest.mark.parametrize("step", ["pass", "text = ''", "text = '# only a comment\\n'"])
@responses.activate
def test_an_edit_that_changes_nothing(tmp_path: Path, step: str) -> None:
    """CLI-01: unchanged or emptied: nothing is sent."""
    responses.get(f"{MODELS}/qwen", json=MODEL)
    done = run("edit", "qwen", EDITOR=editor(tmp_path, step))
    assert done.exit_code == 0 and done.output == "nothing was changed\n" and len(responses.calls) == 1


KEPT = {
    "refused, and left as it was": (422, REFUSAL, ["text = text.replace('max: 1', 'max: 0')", "pass"], 1),
    "changed by somebody else": (
        412,
        {"code": "precondition_failed", "message": "somebody changed it", "request_id": "1"},
        ["text = text.replace('max: 1', 'max: 0')"],
        1,
    ),
    "not allowed": (
        403,
        {"code": "forbidden", "message": "this needs a role", "request_id": "1"},
        ["text = text.replace('max: 1', 'max: 0')"],
        4,
    ),
    "the API is gone": (200, "<html>", ["text = text.replace('max: 1', 'max: 0')"], 3),
    "the editor fails": (200, MODEL, ["file.write_text('max: 0'); sys.exit(3)"], 1),
}


@pytest.mark.parametrize(("status", "body", "steps", "code"), KEPT.values(), ids=KEPT)
@responses.activate
def test_nothing_that_was_written_is_lost(tmp_path: Path, status: int, body: Any, steps: list[str], code: int) -> None:
    """CLI-01: the file stays, for its owner's eyes, and is named."""
    responses.get(f"{MODELS}/qwen", json=MODEL)
    responses.put(f"{MODELS}/qwen", status=status, body=body if isinstance(body, str) else json.dumps(body))
    done = run("edit", "qwen", EDITOR=editor(tmp_path, *steps), TMPDIR=str(tmp_path))
    assert done.exit_code == code, done.output
    kept = re.search(r"What you wrote is kept in (\S+)", done.output)
    assert kept is not None and "max: 0" in Path(kept[1]).read_text()
    assert stat.S_IMODE(Path(kept[1]).parent.stat().st_mode) == 0o700


@responses.activate
def test_an_editor_that_is_not_there() -> None:
    """CLI-01: in words."""
    responses.get(f"{MODELS}/qwen", json=MODEL)
    done = run("edit", "qwen", EDITOR="/nonexistent/editor")
    assert done.exit_code == 2 and "the editor /nonexistent/editor does not run" in done.output


# ---------------------------------------------------------------- removing, checking


@responses.activate
def test_removing_says_what_else_it_breaks() -> None:
    """CAT-07: the version that was seen; keys that are good for nothing now are named."""
    responses.get(f"{MODELS}/q", json=MODEL, headers={"ETag": '"3"'})
    answer = {"name": "qwen", "replicas": ["qwen-1"], "keys": ["key-1"], "dry_run": False}
    responses.delete(f"{MODELS}/qwen", json=answer)
    done = run("remove", "q")
    assert done.exit_code == 0 and "key-1" in done.output and "qwen is removed" in done.output
    assert responses.calls[-1].request.headers["If-Match"] == '"3"'


@pytest.mark.parametrize(("usable", "code"), [(True, 0), (None, 0), (False, 1)])
@responses.activate
def test_checking(usable: bool | None, code: int) -> None:
    """CAT-09: the exit status says whether it can be used; unknown is no fault."""
    found = {"source": "hf:a/b", "words": "is there, 6.0 GB", "size_bytes": 6 * 1024**3}
    found |= {} if usable is None else {"usable": usable}
    responses.post(f"{MODELS}/qwen/check", json={"model": "qwen", "sources": [found]})
    responses.post(f"{URL}/api/v1/catalog/check-source", json=found)
    for arguments in (["qwen"], ["--source", "hf:a/b"]):
        done = run("check", *arguments)
        assert done.exit_code == code and done.output == "hf:a/b: is there, 6.0 GB\n"
