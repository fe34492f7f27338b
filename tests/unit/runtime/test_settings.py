"""Settings files, environment and flags: precedence, and every fault at once.

Files are written and loaded as a person's would be, never built as objects.
"""

from pathlib import Path

import jsonschema
import pytest
import yaml

from llmgw.runtime import settings as s
from llmgw.runtime.settings import REQUIRED, Address, Setting, Settings, SettingsError, choice, read_secret

TABLE = Settings(
    "agent",
    (
        Setting("node_id", s.TEXT, None, "Name of the node."),
        Setting("token_file", s.PATH, REQUIRED, "File with the token."),
        Setting("agents.listen", s.ADDRESS, "127.0.0.1:7001", "Where agents connect."),
        Setting("agents.heartbeat", s.DURATION, "10s", "Time between heartbeats.", minimum=0.1, maximum=300),
        Setting("engine_ports", s.PORT_RANGE, "20000-20999", "Ports of engines."),
        Setting("labels", s.LABELS, {}, "Labels of the node."),
        Setting("engines", s.MAPPING, {}, "Engines by name."),
        Setting("weights_dirs", s.PATHS, [], "Where weights lie."),
        Setting("control_planes", s.ADDRESSES, ["127.0.0.1:7001"], "Control planes."),
        Setting("workers", s.INTEGER, 2, "Processes.", minimum=1, maximum=64),
        Setting("ratio", s.NUMBER, 0.5, "Share of memory.", unit="of 1", maximum=1),
        Setting("auth", s.BOOLEAN, True, "Ask for keys."),
        Setting("log.level", choice("debug", "info"), "info", "Least level."),
    ),
)
MINIMAL = "token_file: /etc/token\n"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes) -> Path:
        file = tmp_path / "settings.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


def _faults(file: Path, **sources: object) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        TABLE.load(file, **sources)
    assert str(file) in str(caught.value)
    for fault in caught.value.faults:
        assert str(fault) in str(caught.value)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_defaults_are_parsed_like_anything_else(write) -> None:
    """A default is written as a person would write it, and comes out typed."""
    loaded = TABLE.load(write(MINIMAL))
    assert loaded["agents.listen"] == Address("127.0.0.1", 7001)
    assert loaded["agents.heartbeat"] == 10.0
    assert loaded["engine_ports"] == (20000, 20999)
    assert loaded["control_planes"] == (Address("127.0.0.1", 7001),)
    assert loaded["weights_dirs"] == ()
    assert loaded["node_id"] is None
    assert loaded["token_file"] == Path("/etc/token")
    assert loaded.origin("agents.listen") == "default"


def test_flag_beats_environment_beats_file_beats_default(write) -> None:
    """The one order of precedence, each step seen to win, with its origin."""
    file = write(MINIMAL + "workers: 3\nratio: 0.25\nlog: {level: debug}\n")
    variables = {"LLMGW_AGENT_WORKERS": "4", "LLMGW_AGENT_RATIO": "0.75", "LLMGW_ROUTER_WORKERS": "9"}
    loaded = TABLE.load(file, variables, {"workers": 5, "ratio": None})
    assert (loaded["workers"], loaded.origin("workers")) == (5, "flag")
    assert (loaded["ratio"], loaded.origin("ratio")) == (0.75, "environment")
    assert (loaded["log.level"], loaded.origin("log.level")) == ("debug", str(file))
    assert (loaded["auth"], loaded.origin("auth")) == (True, "default")


def test_every_variable_has_its_own_name() -> None:
    """Two settings must not read the same variable."""
    assert TABLE.variable("agents.listen") == "LLMGW_AGENT_AGENTS_LISTEN"
    assert len({TABLE.variable(row.name) for row in TABLE.rows}) == len(TABLE.rows)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("agents.heartbeat", "250ms", 0.25),
        ("agents.heartbeat", "1m30s", 90.0),
        ("agents.heartbeat", "20", 20.0),
        ("agents.listen", "[::1]:0", Address("::1", 0)),
        ("control_planes", "a:1, b:2", (Address("a", 1), Address("b", 2))),
        ("weights_dirs", "/a:/b", (Path("/a"), Path("/b"))),
        ("auth", "off", False),
        ("workers", "8", 8),
        ("engine_ports", "1-65535", (1, 65535)),
    ],
)
def test_text_of_the_environment_becomes_typed(write, name: str, text: str, expected: object) -> None:
    """A variable is text; the setting is not."""
    loaded = TABLE.load(write(MINIMAL), {TABLE.variable(name): text})
    assert loaded[name] == expected


def test_all_faults_are_reported_at_once(write) -> None:
    """CAT-01's rule for settings too: one run of the program names everything."""
    file = write(
        "agents: {listen: nowhere, heartbeat: 5x, hartbeat: 3s}\n"
        "workers: 0\nratio: 1.5\nauth: perhaps\nengine_ports: 9-3\nlabels: {rack: 7}\n"
        "log: {level: loud}\nweights_dirs: 3\ncontrol_planes: []\nengines: [a]\nnode_id: 12\n"
    )
    faults = _faults(file, environment={"LLMGW_AGENT_ENGINE_PORTS": "x"})
    assert set(faults) == {
        "agents.listen",
        "agents.heartbeat",
        "agents.hartbeat",
        "workers",
        "ratio",
        "auth",
        "LLMGW_AGENT_ENGINE_PORTS",
        "labels",
        "log.level",
        "weights_dirs",
        "control_planes",
        "engines",
        "node_id",
        "token_file",
    }
    assert "at least 1" in faults["workers"]
    assert "at most 1" in faults["ratio"]
    assert "debug, info" in faults["log.level"]
    assert "quotes" in faults["labels"]
    assert "required" in faults["token_file"]
    assert faults["agents.hartbeat"].endswith("did you mean agents.heartbeat?")


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("agents: {listen:}", "agents.listen", "has no value"),
        ("token_file:", "token_file", "has no value"),
        ("agents: 3", "agents", "section"),
        ("logs: {level: info}", "logs", "is not a setting; did you mean log?"),
        ("node-id: x", "node-id", "did you mean node_id?"),
        ("agents: {listen: 'a:1'}\nagents.listen: 'b:2'", "agents.listen", "given twice"),
        ("workers: true", "workers", "whole number"),
        ("workers: 2.0", "workers", "whole number"),
        ("ratio: .nan", "ratio", "number"),
        ("ratio: .inf", "ratio", "number"),
        ("agents: {heartbeat: .nan}", "agents.heartbeat", "negative"),
        ("agents: {heartbeat: -1s}", "agents.heartbeat", "duration"),
        ("agents: {heartbeat: 9999d}", "agents.heartbeat", "year"),
        ("agents: {heartbeat: true}", "agents.heartbeat", "duration"),
        ("agents: {listen: 'host:70000'}", "agents.listen", "HOST:PORT"),
        ("agents: {listen: ':7000'}", "agents.listen", "HOST:PORT"),
        ("agents: {listen: 'http://h:1'}", "agents.listen", "HOST:PORT"),
        ("token_file: ''", "token_file", "path"),
        ("node_id: 2024", "node_id", "text"),
        ("engines: {1: a}", "engines", "names"),
        ("1: a", "1", "is not a setting"),
    ],
)
def test_a_fault_says_where_and_what(write, text: str, path: str, words: str) -> None:
    """The place, what is wrong, the remedy."""
    assert words in _faults(write(text))[path]


def test_a_section_without_lines_is_empty_not_wrong(write) -> None:
    """Every line of a section commented out is common in shipped examples."""
    assert TABLE.load(write(MINIMAL + "agents:\n#  listen: x\nlog:\n"))["log.level"] == "info"


def test_an_empty_file_has_the_defaults(write) -> None:
    """Nothing but the required ones is missing."""
    assert set(_faults(write("# nothing\n"))) == {"token_file"}


def test_loopback_is_told_from_the_rest() -> None:
    """Until identity lands, listeners refuse anything but loopback."""
    for text in ("127.0.0.1:1", "127.8.9.1:1", "localhost:1", "[::1]:1"):
        assert s.parse_address(text).loopback
    for text in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "127.0.0.1.evil.org:1"):
        assert not s.parse_address(text).loopback


# ---------------------------------------------------------------- the schema and the page


def test_schema_accepts_what_loads_and_refuses_what_does_not(write) -> None:
    """CAT-16: editors complete from the schema, so it must agree with the loader."""
    schema = TABLE.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    good = (
        "token_file: /t\nagents: {listen: '127.0.0.1:1', heartbeat: 5m}\nlabels: {a: b}\n"
        "engines: {x: {}}\nweights_dirs: [/a]\nworkers: 3\nratio: 0.1\nauth: false\nlog: {level: debug}\n"
    )
    TABLE.load(write(good))
    validator.validate(yaml.safe_load(good))
    for bad in ("workers: 0", "nope: 1", "agents: {listen: 7}", "log: {level: loud}", "labels: {a: 1}", "ratio: 2"):
        assert not validator.is_valid(yaml.safe_load(bad)), bad
        _faults(write(MINIMAL + bad))


def test_schema_has_every_setting_with_its_help() -> None:
    """A setting is declared once; the schema is derived."""
    text = str(TABLE.schema())
    for row in TABLE.rows:
        assert row.name.rpartition(".")[2] in text
        assert row.help in text


def test_a_default_of_this_host_is_not_published() -> None:
    """The reference page is the same wherever it is generated."""
    table = Settings("router", (Setting("router_id", s.TEXT, "host-17", "Name.", shown="the host's name"),))
    assert table.load()["router_id"] == "host-17"
    assert "host-17" not in table.markdown() + str(table.schema())
    assert "the host's name" in table.markdown()


def test_markdown_has_every_setting_and_survives_bars() -> None:
    """DOC-01: ``debug | info`` must not become two columns."""
    lines = TABLE.markdown().splitlines()
    assert len(lines) == 2 + len(TABLE.rows)
    for line in lines:
        assert line.replace("\\|", "").count("|") == 5
    assert any("`workers`" in line and "1 to 64" in line for line in lines)
    assert any("`ratio`" in line and "of 1" in line for line in lines)


# ---------------------------------------------------------------- hostile files


def _bomb(link: str) -> str:
    lines = ["a0: &a0 {x: 1, y: 2}" if "<<" in link else "a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 11):
        nine = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {link.replace('ALIASES', nine)}")
    return "\n".join(lines) + "\n"


HOSTILE = {
    "flow nesting": "a: " + "[" * 100_000,
    "map nesting": "a: " + "{a: " * 50_000,
    "block nesting": "".join(" " * level + "a:\n" for level in range(900)),
    "sequence nesting": "- " * 50_000,
    "alias bomb": _bomb("[ALIASES]"),
    "merge bomb": _bomb("{<<: [ALIASES]}"),
    "a list that holds itself": "a: &a [*a]\n",
    "a map that holds itself": "a: &a {b: *a}\n",
    "half a surrogate pair": 'a: "\\ud800"\n',
    "half a surrogate pair as key": '"\\ud800": a\n',
    "unknown alias": "a: *b\n",
    "python object": "a: !!python/object/apply:os.system [true]\n",
    "bad binary": "a: !!binary x\n",
    "bad date": "a: !!timestamp 2024-13-99\n",
    "number without end": "a: " + "9" * 5000 + "\n",
    "null byte": "a: \0\n",
    "not UTF-8": b"a: \xff\xfe\xfd\n",
    "two documents": "a: 1\n---\na: 2\n",
    "key twice": "a: 1\na: 2\n",
    "key twice inside": "a: {b: 1, b: 2}\n",
    "key twice in other words": "a: {b: 1, 'b': 2}\n",
    "list as key": "? [a]\n: b\n",
    "a list": "- a\n- b\n",
    "a word": "hello\n",
    "tab": "a:\n\t- b\n",
    "unclosed quote": 'a: "b\n',
    "too large": "#" * (s.MAX_FILE + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_fault(write, name: str) -> None:
    """One kind of exception, naming the file, in bounded time and memory."""
    text = HOSTILE[name]
    file = write(text)
    with pytest.raises(SettingsError) as caught:
        s.read_yaml(file)
    (fault,) = caught.value.faults
    assert str(file) in str(caught.value)
    assert len(str(fault)) < 400


def test_a_fault_in_yaml_has_line_and_column(write) -> None:
    """A person finds the place."""
    with pytest.raises(SettingsError) as caught:
        s.read_yaml(write("a: 1\nb:\n  c: 1\n  c: 2\n"))
    assert caught.value.faults[0].path == "line 4, column 3"
    assert "'c' is given twice" in caught.value.faults[0].message


def test_shared_parts_of_a_file_are_allowed(write) -> None:
    """Anchors, aliases and merge keys work; an own key wins over a merged one."""
    tree = s.read_yaml(write("base: &base {x: 1, y: 1}\na: {<<: *base, y: 2}\nb: [*base, *base]\n"))
    assert tree == {"base": {"x": 1, "y": 1}, "a": {"x": 1, "y": 2}, "b": [{"x": 1, "y": 1}] * 2}


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, or a directory: the system's words, no traceback."""
    for path, words in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(SettingsError) as caught:
            s.read_yaml(path)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("OFF", "OFF"),
        ("y", "y"),
        ("18:00", "18:00"),
        ("1:30.5", "1:30.5"),
        ("2026-08-01", "2026-08-01"),
        ("2026-08-01T10:00:00Z", "2026-08-01T10:00:00Z"),
        ("=", "="),
        ("1e3", "1e3"),
        ("1.2.3", "1.2.3"),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("0", 0),
        ("-12", -12),
        ("0600", 0o600),
        ("0x1F", 31),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1.0e+3", -1000.0),
        ("'true'", "true"),
    ],
)
def test_text_without_quotes_is_text(write, written: str, meant: object) -> None:
    """A country, a time of day and a date stay what somebody wrote; YAML 1.1 would make a
    boolean, a number of minutes and a date of them."""
    assert s.read_yaml(write(f"a: {written}\n"))["a"] == meant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:\n\tb: 1\n", "line 2, column 1: is not valid YAML: .*with spaces, not with tabs"),
        ("a: 1\n b: 2\n", "is the line indented as"),
        ("a: [1\n", "is a bracket left open"),
        ("a: 'x\n", "is a quote or a bracket left open"),
        ("a: @x\n", "put text that begins with % @ or ` in quotes"),
        ("a: *x\n", r"put text that begins with \* in quotes"),
        ("a: !x y\n", "put text that begins with ! in quotes"),
        ("a: 1\na: 2\n", r"'a' is given twice \(keep one\)"),
        ("- a\n", "begin with a name and a colon"),
        ("a: \x07\n", r"holds the character U\+0007, which YAML does not allow"),
    ],
)
def test_a_fault_in_yaml_comes_with_what_usually_caused_it(write, text: str, words: str) -> None:
    """The parser says what it stumbled over; people need what to do."""
    with pytest.raises(SettingsError, match=words):
        s.read_yaml(write(text))


def test_another_encoding_is_told_with_its_line(write) -> None:
    """A file saved as Latin-1."""
    with pytest.raises(SettingsError, match=r"line 2: is not UTF-8 text \(byte 0xfc\): save the file as UTF-8"):
        s.read_yaml(write(b"# one\na: f\xfcr\n"))


# ---------------------------------------------------------------- secrets


def _secret(tmp_path: Path, content: bytes, mode: int = 0o600) -> Path:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def test_a_secret_is_read_and_stripped(tmp_path: Path) -> None:
    """SEC-03: mode 0600 or stricter."""
    assert read_secret(_secret(tmp_path, b"at-abc\n")) == "at-abc"
    assert read_secret(_secret(tmp_path, b"at-abc", 0o400)) == "at-abc"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_secret_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """SEC-03: with the command that mends it."""
    with pytest.raises(SettingsError, match="chmod 600"):
        read_secret(_secret(tmp_path, b"hidden", mode))


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"two\nlines", b"x" * 4097, b"caf\xc3\xa9", b"\xff"])
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    """And what it holds is not shown."""
    with pytest.raises(SettingsError) as caught:
        read_secret(_secret(tmp_path, content))
    assert "words" not in str(caught.value)
    assert "xxxx" not in str(caught.value)


def test_a_missing_secret_names_the_file(tmp_path: Path) -> None:
    """The place, and what is wrong."""
    with pytest.raises(SettingsError, match="No such file"):
        read_secret(tmp_path / "none")
