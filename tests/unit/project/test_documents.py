"""Pages that come from the code are what the code says (DOC-01), and examples load (CAT-15, CAT-16)."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import click
import jsonschema
import pytest
import yaml

import agent.settings
import controlplane.settings
import router.settings
from controlplane.catalog.load import load_catalog
from controlplane.commands.__main__ import main as offline
from llmgw.cli import main
from tests.unit.project.tree import ROOT, code_blocks, documents

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
LOADERS = {
    "agent": lambda file: agent.settings.configure(agent.settings.SETTINGS.load(file), str(file)),
    "catalog": load_catalog,
    "controlplane": controlplane.settings.load,
    "router": router.settings.load,
}


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_what_the_code_says() -> None:
    """DOC-01: run `make docs` after a change of settings, commands, codes, metrics or the API."""
    assert _generator().differences() == []


def test_a_stale_page_is_seen(tmp_path: Path) -> None:
    """The comparison can fail: on a changed page, a missing one and one too many."""
    generator = _generator()
    wanted = generator.pages()
    generator.REFERENCE = tmp_path
    for name, text in wanted.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert generator.differences() == []
    (tmp_path / "cli.md").write_text("old")
    (tmp_path / "api.md").unlink()
    (tmp_path / "settings-gone.md").write_text("x")
    assert generator.differences() == ["api.md", "cli.md", "settings-gone.md"]


def test_every_example_has_a_loader() -> None:
    """A new example is not forgotten here."""
    assert {file.stem for file in EXAMPLES} == set(LOADERS)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_load_through_the_production_code(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CAT-15: what is published works as it stands."""
    monkeypatch.setattr("os.environ", {"HOME": "/nonexistent"})
    assert LOADERS[file.stem](file) is not None


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_satisfy_the_shipped_schemas(file: Path) -> None:
    """CAT-16: an editor must not underline what the product accepts."""
    schema = json.loads((ROOT / f"docs/reference/schema/{file.stem}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(file.read_text()), schema)


def test_the_index_has_every_page() -> None:
    """DOC-01: a reader finds each page from docs/README.md."""
    index = ROOT / "docs/README.md"
    linked = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#]+)", index.read_text())}
    pages = {page for page in documents() if (ROOT / "docs") in page.parents} - {index}
    assert len(pages) > 20
    assert pages - linked == set()


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(ROOT)))
def test_yaml_in_pages_is_yaml(page: Path) -> None:
    """What a reader copies must at least parse."""
    for language, block in code_blocks(page):
        if language == "yaml":
            yaml.safe_load(block)


def _commands() -> list[tuple[str, str]]:
    """Every `llmgw …` line in code of a page that a person wrote."""
    found = []
    for page in documents():
        if page.parent.name == "reference":
            continue
        text = page.read_text()
        lines = [line for _, block in code_blocks(page) for line in _typed(block)]
        lines += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        for line in lines:
            for match in re.findall(r"(?:^|&& |\$\()(?:\.venv/bin/)?(llmgw [a-z][^&)>]*)", line.strip()):
                found.append((str(page.relative_to(ROOT)), match))
    return found


def _typed(block: str) -> list[str]:
    """The lines of a block that a reader types: those behind a prompt, or all if there is none."""
    lines = block.replace("\\\n", " ").splitlines()
    prompts = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return prompts or lines


def test_commands_in_pages_exist() -> None:
    """Every command and every option that a page tells a reader to type."""
    commands = _commands()
    assert len(commands) > 10
    faults = []
    for page, line in commands:
        words = shlex.split(line.partition(" | ")[0].replace("…", "").replace("|", " "), comments=True)[1:]
        command: click.Command = main
        context = click.Context(main)
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            child = offline.commands.get(words[0]) if command is main else None
            child = child or command.get_command(context, words[0])
            if child is None:
                faults.append(f"{page}: {line}: there is no command {words[0]!r}")
                break
            command = child
            words = words[1:]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        known |= {option for parameter in main.params for option in parameter.opts} | {"--help"}
        for word in words:
            if word.startswith("-") and word.partition("=")[0] not in known and word != "-":
                faults.append(f"{page}: {line}: {command.name} has no option {word}")
    assert faults == []


def test_two_control_planes_start_as_the_page_says(tmp_path: Path) -> None:
    """DOC-01, HA-01: copied as it stands, without and with an admin API that others reach; nobody is led astray."""
    blocks = [
        yaml.safe_load(text) for kind, text in code_blocks(ROOT / "docs/explanation/leadership.md") if kind == "yaml"
    ]
    alone, tls = blocks
    together = alone | tls | {"ha": alone["ha"] | {"advertise": alone["ha"]["advertise"] | tls["ha"]["advertise"]}}
    for name, tree in (("alone", alone), ("together", together)):
        file = tmp_path / name
        file.write_text(yaml.safe_dump(tree))
        assert controlplane.settings.sent_nowhere(controlplane.settings.load(file)) == {}
