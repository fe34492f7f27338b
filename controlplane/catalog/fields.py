"""Marshmallow fields with strict types, our words, and a JSON Schema each."""

import math
import re
from typing import Any, Generic, TypeVar

from marshmallow import ValidationError, fields

from llmgw.runtime.settings import DURATION, did_you_mean, parse_duration

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
            raise ValidationError("must be text" + unquoted(value))
        if not self.pattern.fullmatch(value):
            raise ValidationError(self.expected)
        return value

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.pattern.pattern}$"}


def unquoted(value: Any) -> str:
    """What YAML made of text that somebody forgot to quote, and the remedy."""
    if isinstance(value, bool):
        return f": put it in quotes (without them it means {'true' if value else 'false'})"
    if isinstance(value, int | float):
        return ": put it in quotes (without them it is a number" + (", and 1.10 is 1.1)" if value % 1 else ")")
    if value is None:
        return ", not nothing"
    return f", not a {'list' if isinstance(value, list) else 'mapping'}"


class Choice(Text):
    """One of a few words."""

    def __init__(self, *words: str, other: str = "", **kwargs: Any) -> None:
        listed = " or ".join([part for part in (", ".join(words[:-1]), words[-1]) if part])
        super().__init__("|".join(re.escape(word) for word in words), f"must be {listed}{other}", **kwargs)
        self.words = words

    def parse(self, value: Any) -> str:
        if isinstance(value, str) and value not in self.words:
            raise ValidationError(f"{self.expected}{did_you_mean(value, self.words)}")
        return super().parse(value)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}


class Flag(Plain[bool]):
    """true or false."""

    def parse(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValidationError("must be true or false, without quotes")
        return value

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


_AMOUNT = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_UNITS = {
    "": ("1", ("",)),
    "GB": ("24", ("", "g", "gb", "gib")),
    "cores": ("8", ("", "core", "cores", "cpu", "cpus")),
    "watts": ("700", ("", "w", "watt", "watts")),
    "tokens": ("32768", ("", "token", "tokens")),
}
"""Of each unit: an example, and the ways people write it behind a number."""


class Number(Plain[float]):
    """A finite number; ``whole`` for whole numbers, ``above`` excludes its bound.
    ``unit`` is what it counts (one of ``_UNITS``), for the words about a number that came
    with one; ``note`` explains the bounds."""

    def __init__(
        self,
        *,
        whole: bool = False,
        minimum: float | None = None,
        above: float | None = None,
        maximum: float | None = None,
        unit: str = "",
        note: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.unit = unit
        self.note = f" ({note})" if note else ""
        self.whole = whole
        self.minimum = minimum
        self.above = above
        self.maximum = maximum

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            raise ValidationError(self._no_number(value))
        if abs(value) > 1e12 or not math.isfinite(value):  # in this order: a float holds no whole number of any size
            raise ValidationError("is not a usable number")
        if self.minimum is not None and value < self.minimum:
            raise ValidationError(f"is {value:g}, but must be at least {self.minimum:g}{self.note}")
        if self.above is not None and value <= self.above:
            raise ValidationError(f"is {value:g}, but must be more than {self.above:g}{self.note}")
        if self.maximum is not None and value > self.maximum:
            raise ValidationError(f"is {value:g}, but must be at most {self.maximum:g}{self.note}")
        return value

    def _no_number(self, value: Any) -> str:
        words = f"must be a {'whole ' if self.whole else ''}number{f' of {self.unit}' if self.unit else ''}"
        if isinstance(value, float) and value.is_integer():
            return f"{words}: write {value:.0f}"
        example, units = _UNITS[self.unit]
        amount = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
        if amount and amount[2].lower() in units:
            return f"{words}: write {amount[1]}, without quotes{' or a unit' if amount[2] else ''}"
        return f"{words}: digits only, such as {example}" if isinstance(value, str) else words

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of the value."""
        schema: dict[str, Any] = {"type": "integer" if self.whole else "number"}
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.above is not None:
            schema["exclusiveMinimum"] = self.above
        if self.maximum is not None:
            schema["maximum"] = self.maximum
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
            raise ValidationError("must be a list: in brackets, each word by itself, such as [one, two]")
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
            hint = ", not a list: write NAME: text" if isinstance(value, list) else ""
            raise ValidationError(f"must be a mapping of names to text{hint}")
        if len(value) > self.limit:
            raise ValidationError(f"has {len(value)} entries; the limit is {self.limit}")
        faults: dict[str, Any] = {}
        table: dict[str, str] = {}
        for name, entry in value.items():
            if not isinstance(name, str):
                faults[str(name)] = ["the name must be text" + unquoted(name)]
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


class Weights(Plain[dict[str, float]]):
    """A mapping of names to shares, not negative, at least one of them above 0."""

    def parse(self, value: Any) -> dict[str, float]:
        if not isinstance(value, dict):
            raise ValidationError("must be a mapping of models to weights, such as {qwen: 90, qwen-new: 10}")
        share = Number(minimum=0)
        faults: dict[str, Any] = {}
        weights: dict[str, float] = {}
        for name, entry in value.items():
            if not isinstance(name, str):
                faults[str(name)] = ["the name must be text" + unquoted(name)]
                continue
            try:
                weights[name] = share.parse(entry)
            except ValidationError as error:
                faults[name] = error.messages
        if not faults and not any(weights.values()):
            raise ValidationError("must give at least one model a weight above 0")
        if len(value) > MAX_TARGETS:
            raise ValidationError(f"has {len(value)} entries; the limit is {MAX_TARGETS}")
        if faults:
            raise ValidationError(faults)
        return weights

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": {"type": "number", "minimum": 0},
            "minProperties": 1,
            "maxProperties": MAX_TARGETS,
        }


MAX_TARGETS = 32
"""Most models of one weighted alias."""

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = rf"(?:{'|'.join(DAYS)})"


class Days(Plain[frozenset[int]]):
    """Days of the week, 0 is Monday: ``[mon, wed]``, ``mon-fri`` or both, ``[mon-wed, sat]``."""

    EXPECTED = "must be days such as [mon, wed] or mon-fri (mon tue wed thu fri sat sun)"

    def parse(self, value: Any) -> frozenset[int]:
        words = [value] if isinstance(value, str) else value
        if not isinstance(words, list) or not words or len(words) > len(DAYS):
            raise ValidationError(self.EXPECTED)
        days: set[int] = set()
        for word in words:
            if not isinstance(word, str) or not re.fullmatch(rf"{_DAY}(?:-{_DAY})?", word):
                raise ValidationError(self.EXPECTED)
            first, _, last = word.partition("-")
            start, span = DAYS.index(first), (DAYS.index(last or first) - DAYS.index(first)) % 7
            days |= {(start + offset) % 7 for offset in range(span + 1)}
        return frozenset(days)

    def json_schema(self) -> dict[str, Any]:
        day = {"type": "string", "pattern": f"^{_DAY}(-{_DAY})?$"}
        return {"anyOf": [day, {"type": "array", "items": day, "minItems": 1, "maxItems": len(DAYS)}]}


class TimeOfDay(Plain[int]):
    """Minutes after midnight, from ``"08:30"``; ``"24:00"`` is the end of the day."""

    PATTERN = r"(?:[01]?[0-9]|2[0-3]):[0-5][0-9]|24:00"

    def parse(self, value: Any) -> int:
        if not isinstance(value, str) or not re.fullmatch(self.PATTERN, value):
            raise ValidationError('must be a time of day such as "08:30", up to "24:00"')
        hours, _, minutes = value.partition(":")
        return int(hours) * 60 + int(minutes)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.PATTERN})$"}
