import json

import pytest

from llmgw.wire.errors import ROUTER
from router.errors import _STATE_WORDS, RETRY_AFTER, STATE_CODES, Refused, event


@pytest.mark.parametrize("code", ROUTER)
def test_every_row_is_an_openai_error(code):
    """RTR-02: each failure of the table has OpenAI's body, and tells whether to retry."""
    refused = Refused(code, "words", param="model")
    row = ROUTER[code]
    assert json.loads(refused.body) == {"error": {"message": "words", "type": row.type, "param": "model", "code": code}}
    headers = dict(line.split(b": ", 1) for line in refused.headers.split(b"\r\n") if line)
    assert headers[b"content-type"] == b"application/json"
    assert (b"retry-after" in headers) == row.retry
    assert headers.get(b"x-should-retry") == (None if row.retry else b"false")
    assert (b"www-authenticate" in headers) == (row.status == 401)


def test_every_code_that_can_be_retried_says_when():
    """RTR-02: SDKs retry at once when there is no Retry-After."""
    assert set(RETRY_AFTER) == {code for code, row in ROUTER.items() if row.retry}
    assert all(seconds > 0 for seconds in RETRY_AFTER.values())


def test_every_state_has_an_answer():
    """RTR-02: each state a model can be in has a code, and each code its words."""
    from typing import get_args

    from llmgw.wire.routing import ModelState

    assert set(STATE_CODES) == set(get_args(ModelState))
    assert set(STATE_CODES.values()) == set(_STATE_WORDS)
    assert set(STATE_CODES.values()) <= set(ROUTER)


def test_an_event_is_one_line_of_data():
    """RTR-09: whatever the message holds, the event is one and can be read."""
    raw = event("upstream_error", 'bad\n\ndata: [DONE]\r\n"')
    (line,) = [line for line in raw.split(b"\n") if line]
    assert json.loads(line.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
