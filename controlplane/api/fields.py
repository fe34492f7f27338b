"""Fields that several resources take."""

import unicodedata
from typing import Any

import marshmallow as ma

PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,200}"
"""No control characters, line separators or changes of direction (of the last both kinds)."""

_JOINERS = "\u200c\u200d"
"""What nobody sees but some scripts cannot do without."""


class _Name(ma.validate.Regexp):
    """Text whose every character can be seen: two names that look the same would not be."""

    def __call__(self, value: Any) -> Any:
        name = super().__call__(value)
        if any(unicodedata.category(character) == "Cf" and character not in _JOINERS for character in name):
            raise ma.ValidationError("holds a character that nobody can see: type it anew instead of pasting it")
        return name


NAME = _Name(PRINTABLE + r"\Z", error="must be 1 to 200 printable characters")

LINE = ma.validate.Regexp(rf"(?:{PRINTABLE})?\Z", error="must be at most 200 printable characters")

SCOPE = ma.validate.Regexp(
    r"[a-z0-9][a-z0-9._-]{0,62}(?:/[a-z0-9][a-z0-9._-]{0,62}){0,2}\Z",
    error="must be the path of a scope: org, org/team or org/team/project",
)


class Text(ma.fields.String):
    """Text that people typed: without blanks around it, in one form of Unicode (NFC)."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return unicodedata.normalize("NFC", super()._deserialize(value, *args, **kwargs)).strip()


def text(**options: Any) -> Text:
    """A field for text that people typed."""
    return Text(**options)
