"""The text format of Prometheus, written by hand where there are many samples (OBS-01).

The client library makes several objects of each sample: of a fleet's hundreds of thousands
that takes seconds, in which nothing else runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Sample = tuple[Sequence[str], float | None]
"""The values of the labels, and the figure; ``None`` is not known, and has no sample."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its name, what it means, and the names of its labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    kind: str = "gauge"

    @property
    def head(self) -> str:
        """What comes before its samples. ``help`` has neither line breaks nor backslashes."""
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"

    def labelled(self, values: Sequence[str]) -> str:
        """The labels of a sample with these values, braces and all."""
        pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(self.labels, values, strict=True))
        return f"{{{','.join(pairs)}}}"

    def line(self, values: Sequence[str], figure: float) -> bytes:
        """One sample. The figure is finite."""
        return f"{self.name}{self.labelled(values)} {float(figure)!r}\n".encode()

    def text(self, samples: Iterable[Sample]) -> bytes:
        """The whole family."""
        lines = (self.line(values, figure) for values, figure in samples if figure is not None)
        return self.head.encode() + b"".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
