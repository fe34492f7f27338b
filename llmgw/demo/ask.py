"""Asking a question as any client would: with OpenAI's package, streaming."""

import time
from collections.abc import Callable
from typing import NamedTuple

import openai

from llmgw.demo.engine import DemoError

QUESTION = "What is the capital of France? Answer in one sentence."


class Answer(NamedTuple):
    """What came back. Times in seconds; ``rate`` is tokens per second after the first,
    ``None`` when there were too few to tell."""

    text: str
    first_token: float
    total: float
    tokens: int | None
    rate: float | None


def ask(url: str, key: str, model: str, question: str, piece: Callable[[str], None]) -> Answer:
    """Ask and hand on each piece of the answer as it comes. Raises ``DemoError``."""
    text, first, tokens = "", None, None
    begin = time.monotonic()
    try:
        with openai.OpenAI(base_url=url, api_key=key, timeout=60, max_retries=3) as client:
            stream = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                max_tokens=120,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            for chunk in stream:
                if chunk.usage is not None:
                    tokens = chunk.usage.completion_tokens
                said = chunk.choices[0].delta.content if chunk.choices else None
                if said:
                    first = first or time.monotonic()
                    text += said
                    piece(said)
    except openai.OpenAIError as error:
        raise DemoError(f"the question was not answered: {error}") from error
    end = time.monotonic()
    if first is None or not text.strip():
        raise DemoError("the answer was empty")
    rate = (tokens - 1) / (end - first) if tokens is not None and tokens > 1 and end > first else None
    return Answer(text, first - begin, end - begin, tokens, rate)
