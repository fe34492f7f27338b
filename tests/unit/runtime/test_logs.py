"""Logs: structured, live level, and no secret whatever wrote the line (SEC-03)."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.runtime import logs
from llmgw.runtime.logs import Logger, mask

SECRETS = [
    "sk-llmgw-0123456789abcdefABCDEF",
    "ek-" + "0123456789abcdef" * 4,
    "at-" + "A1b2C3d4E5f6G7h8I9j0K1l2",
    "rt-" + "A1b2C3d4E5f6G7h8I9j0K1_-",
]


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _stream(form: str, level: str = "debug") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(level, form, stream)
    return stream


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_masked_wherever_they_stand(form: str, secret: str) -> None:
    """In the message, a field, a field's key, deep inside, behind a newline, in a URL, in an exception."""
    stream = _stream(form)
    log = Logger("t")
    log.info(f"key {secret} seen")
    log.info("fields", key=secret, header=f"Bearer {secret}", text=f"a\n{secret}\n", after_underscore=f"x_{secret}")
    log.info("deep", tree={"a": [{secret: (secret,)}]}, url=f"http://h/?key={secret}&b=1")
    logging.getLogger("third.party").warning("they log %s", secret)
    try:
        try:
            raise KeyError(secret)
        except KeyError as error:
            raise RuntimeError(f"lines\n{secret}") from error
    except RuntimeError as error:
        log.exception("failed", why=error)
        log.failure("failed", error)
    output = stream.getvalue()
    assert secret not in output
    assert secret[-12:-2] not in output
    assert output.count("***") >= 12


def test_words_that_only_look_like_secrets_are_left_alone() -> None:
    """A node named at-frankfurt-07 must be found in the logs."""
    for text in ("at-frankfurt-07", "rt-rack12-node3", "week-12345678901", "sk-other", "task-00000000"):
        assert mask(text) == text


def test_json_lines_are_json() -> None:
    """One object a line, whatever the values are."""
    stream = _stream("json")
    loop: list[object] = []
    loop.append(loop)
    Logger("t").info(
        "line\nbreak", nan=float("nan"), inf=float("-inf"), none=None, flag=True, number=3, text="ü\u2028\x1b[31m",
        data=b"\xff", keys={1: 2, (3, 4): 5}, loop=loop, surrogate="\ud800", items={1, 2},
    )  # fmt: skip
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert entry["message"] == "line\nbreak"
    assert (entry["nan"], entry["inf"], entry["none"], entry["flag"], entry["number"]) == ("nan", "-inf", None, True, 3)
    assert entry["keys"] == {"1": 2, "(3, 4)": 5}
    assert entry["level"] == "info"
    assert entry["time"].endswith("+00:00")


def test_fields_do_not_displace_what_every_line_has() -> None:
    """A field named like a column of the line keeps its value under another name."""
    stream = _stream("json")
    Logger("t").warning("what", message="m", level="l", time=1, logger="g")
    entry = json.loads(stream.getvalue())
    assert (entry["message"], entry["level"], entry["logger"]) == ("what", "warning", "t")
    assert (entry["field_message"], entry["field_level"], entry["field_time"]) == ("m", "l", 1)


@given(st.text(max_size=80), st.text(max_size=80), st.sampled_from(["text", "json"]))
def test_a_line_is_one_line(message: str, value: str, form: str) -> None:
    """Nothing that is logged can start a line of its own or steer a terminal."""
    stream = _stream(form)
    Logger("t").info(message, value=value)
    output = stream.getvalue()
    assert output.endswith("\n")
    assert len(output.splitlines()) == 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in output[:-1])


def test_text_lines_are_for_people() -> None:
    """Moment, level, logger, message, fields; quotes only where needed."""
    stream = _stream("text")
    Logger("llmgw.x").info("node joined", node="gpu-1", reason="came back", empty="", n=3)
    line = stream.getvalue()
    assert line.endswith('info    llmgw.x: node joined node=gpu-1 reason="came back" empty="" n=3\n')


def test_the_level_changes_live() -> None:
    """OBS-01: without a restart, and for loggers made before."""
    stream = _stream("text", "warning")
    log = Logger("t")
    log.info("one")
    logs.set_level("debug")
    log.debug("two")
    logs.set_level("error")
    log.warning("three")
    assert logs.get_level() == "error"
    assert [word for word in ("one", "two", "three") if word in stream.getvalue()] == ["two"]


def test_an_unknown_level_is_refused() -> None:
    """With the words that are known; the level in force stays."""
    _stream("text", "info")
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        logs.set_level("verbose")
    assert logs.get_level() == "info"
