"""Marshmallow fields with strict types, our words, and a JSON Schema each."""

import math
import re
from typing import Any, Generic, TypeVar

from marshmallow import ValidationError, fields

from llmgw.runtime.settings import DURATION, parse_duration

GIB = 1024**3
"""Bytes of one GB as people write memory here: 2**30, as operating systems show it."""


T = TypeVar("T")


class Plain(fields.Field[T], Generic[T]):
    """A field that is read by ``parse`` alone."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **_: Any) -> T:  # noqa: ARG002 - marshmallow's
        return self.parse(value)

    def parse(self, value: Any) -> T:
        """The typed value. Raises ``ValidationError`` in words that follow the place."""
        raise NotImplementedError

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of the value."""
        raise NotImplementedError


class Text(Plain[str]):
    """Text that matches ``pattern``; ``expected`` says so in words."""

    def __init__(self, pattern: str = r"[^\x00]{1,4096}", expected: str = "must be text", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pattern = re.compile(pattern)
        self.expected = expected

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            hint = " (put it in quotes)" if isinstance(value, int | float) else ""
            raise ValidationError(f"must be text{hint}")
        if not self.pattern.fullmatch(value):
            raise ValidationError(self.expected)
        return value

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.pattern.pattern}$"}


class Number(Plain[float]):
    """A finite number; ``whole`` for whole numbers, ``above`` excludes its bound."""

    def __init__(
        self, *, whole: bool = False, minimum: float | None = None, above: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.whole = whole
        self.minimum = minimum
        self.above = above

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            raise ValidationError("must be a whole number" if self.whole else "must be a number")
        if not math.isfinite(value) or abs(value) > 1e12:
            raise ValidationError("is not a usable number")
        if self.minimum is not None and value < self.minimum:
            raise ValidationError(f"must be at least {self.minimum:g}")
        if self.above is not None and value <= self.above:
            raise ValidationError(f"must be more than {self.above:g}")
        return value

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of the value."""
        schema: dict[str, Any] = {"type": "integer" if self.whole else "number"}
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.above is not None:
            schema["exclusiveMinimum"] = self.above
        return schema


class Duration(Plain[float]):
    """Seconds, from ``90s``, ``5m`` or a bare number of seconds; more than zero."""

    def parse(self, value: Any) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        if seconds <= 0:
            raise ValidationError("must be more than 0")
        return seconds

    def json_schema(self) -> dict[str, Any]:
        return dict(DURATION.schema)


class Words(Plain[tuple[str, ...]]):
    """A list of text, each like ``item``, at most ``limit`` of them."""

    def __init__(self, item: Text, limit: int = 64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.item = item
        self.limit = limit

    def parse(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValidationError("must be a list")
        if len(value) > self.limit:
            raise ValidationError(f"has {len(value)} entries; the limit is {self.limit}")
        faults: dict[int, Any] = {}
        words = []
        for index, entry in enumerate(value):
            try:
                words.append(self.item.parse(entry))
            except ValidationError as error:
                faults[index] = error.messages
        if faults:
            raise ValidationError(faults)
        return tuple(words)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.json_schema(), "maxItems": self.limit}


class Table(Plain[dict[str, str]]):
    """A mapping of names to text, such as labels or an environment."""

    def __init__(self, value: Text, limit: int = 64, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value = value
        self.limit = limit

    def parse(self, value: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValidationError("must be a mapping of names to text")
        if len(value) > self.limit:
            raise ValidationError(f"has {len(value)} entries; the limit is {self.limit}")
        faults: dict[str, Any] = {}
        table: dict[str, str] = {}
        for name, entry in value.items():
            if not isinstance(name, str):
                faults[str(name)] = ["the name must be text (put it in quotes)"]
                continue
            try:
                table[name] = self.value.parse(entry)
            except ValidationError as error:
                faults[name] = error.messages
        if faults:
            raise ValidationError(faults)
        return table

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.json_schema(), "maxProperties": self.limit}
