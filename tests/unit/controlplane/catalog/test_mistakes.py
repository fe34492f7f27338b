"""A person's mistakes, as files, with the exact words they get. Each message says where,
what is wrong and what to do; they were read as whoever has to mend the file at night.

After a change of words: read the difference of ``mistakes/*.txt`` like that before it
becomes the new text.
"""

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from controlplane.catalog.load import load_catalog
from controlplane.catalog.schema import json_schema
from llmgw.runtime.settings import SettingsError

MISTAKES = sorted((Path(__file__).parent / "mistakes").glob("*.yaml"))

BEYOND_A_SCHEMA = {
    "duplicate_model.yaml": "YAML, as an editor reads it, keeps the last",
    "engines_without_adapters.yaml": "another model decides",
}
"""Files that load as YAML and that no schema can refuse, and why."""


def told(file: Path) -> str:
    """What is said about a file, a line for each fault."""
    with pytest.raises(SettingsError) as caught:
        load_catalog(file)
    return "".join(f"{fault}\n" for fault in caught.value.faults)


def test_there_are_enough_of_them() -> None:
    """A directory that went missing must not pass."""
    assert len(MISTAKES) >= 30
    assert {file.stem for file in (Path(__file__).parent / "mistakes").glob("*.txt")} == {f.stem for f in MISTAKES}


@pytest.mark.parametrize("file", MISTAKES, ids=lambda file: file.stem)
def test_a_mistake_gets_its_words(file: Path) -> None:
    """CAT-01: golden messages."""
    assert told(file) == file.with_suffix(".txt").read_text()


@pytest.mark.parametrize("file", MISTAKES, ids=lambda file: file.stem)
def test_a_mistake_is_seen_by_an_editor(file: Path) -> None:
    """CAT-16: what is YAML is refused by the JSON Schema too, but for what no schema can see."""
    try:
        content = yaml.safe_load(file.read_bytes())
    except yaml.YAMLError:
        return
    refused = [*jsonschema.Draft202012Validator(json_schema()).iter_errors(_with_text_keys(content))]
    assert bool(refused) is (file.name not in BEYOND_A_SCHEMA)


def _with_text_keys(content: object) -> object:
    if isinstance(content, dict):
        return {str(key): _with_text_keys(value) for key, value in content.items()}
    return [_with_text_keys(value) for value in content] if isinstance(content, list) else content


def test_words_do_not_depend_on_chance() -> None:
    """The order of faults is the same in every process, whatever its hash seed."""
    code = (
        "import sys; from pathlib import Path; from controlplane.catalog.load import load_catalog\n"
        "from llmgw.runtime.settings import SettingsError\n"
        "try: load_catalog(Path(sys.argv[1]))\n"
        "except SettingsError as error: print(error)"
    )
    file = Path(__file__).parent / "mistakes/wrong_nesting.yaml"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code, str(file)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1
    assert b"13 faults" in answers.pop()


def test_no_message_repeats_a_secret() -> None:
    """SEC-03: what stands behind --api-key or in an environment is not shown or logged."""
    text = (Path(__file__).parent / "mistakes/secrets.yaml").read_text()
    words = told(Path(__file__).parent / "mistakes/secrets.yaml")
    for secret in ("sk-very-secret", "hf_abc", "sk-abc", "me:pw", "Signature=abc"):
        assert secret in text
        assert secret not in words


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (
            "windows line ends",
            b'models:\r\n  m:\r\n    profiles: [{engine: sim, source: "sim:", min_memory_gb: 1}]\r\n',
        ),
        ("byte order mark", b'\xef\xbb\xbfmodels: {m: {profiles: [{engine: sim, source: "sim:", min_memory_gb: 1}]}}'),
        ("UTF-16", 'models: {m: {profiles: [{engine: sim, source: "sim:", min_memory_gb: 1}]}}'.encode("utf-16")),
        ("JSON", b'{"models": {"m": {"profiles": [{"engine": "sim", "source": "sim:", "min_memory_gb": 1}]}}}'),
        (
            "country",
            b'models: {m: {profiles: [{engine: sim, source: "sim:", node_selector: {at: no}, min_memory_gb: 1}]}}',
        ),
        ("date", b'models: {m: {aliases: [2026-08-01], profiles: [{engine: sim, source: "sim:", min_memory_gb: 1}]}}'),
    ],
)
def test_what_looks_like_a_mistake_but_is_none(tmp_path: Path, name: str, data: bytes) -> None:
    """Editors of other systems, and words that older YAML took for something else."""
    file = tmp_path / "catalog.yaml"
    file.write_bytes(data)
    assert [*load_catalog(file).models] == ["m"]


def test_a_huge_file_is_told_its_limit(tmp_path: Path) -> None:
    """Bounded, and quickly: before anything looks at it."""
    file = tmp_path / "catalog.yaml"
    file.write_bytes(b"#" * (9 * 1024 * 1024))
    assert told(file) == "is larger than 8388608 bytes, the limit\n"


def test_a_bomb_of_aliases_is_refused(tmp_path: Path) -> None:
    """A small file that grows when read."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"] + [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    file = tmp_path / "catalog.yaml"
    file.write_text("\n".join(lines))
    assert "more than 200000 values in all" in told(file)
