"""Prometheus' text format. Values are read when somebody scrapes: counting costs the broker nothing
but the plain integers that it keeps anyway.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["gauge", "counter"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_A_PIECE: Final = 500
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class _Family:
    """The samples of one name, by column: strings and numbers are nothing to the collector."""

    kind: Kind
    labels: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Exposition:
    """One scrape's samples; those of one name stand together, in the order of first use.

    `common` labels are put on every sample.
    """

    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = dict(common)
        self._none = self.labels()
        self._families: dict[str, _Family] = {}

    def labels(self, **labels: str) -> str:
        """For `add`: made once for all samples that have them."""
        pairs = (
            f'{name}="{value.translate(_ESCAPES)}"'
            for name, value in (self._common | labels).items()
        )
        return "{" + ",".join(pairs) + "}"

    def add(self, name: str, kind: Kind, value: float, labels: str | None = None) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind)
        family.labels.append(self._none if labels is None else labels)
        family.values.append(value)

    def pieces(self) -> Iterator[str]:
        """The text, some samples at a time."""
        for name, family in self._families.items():
            yield f"# TYPE {name} {family.kind}\n"
            for start in range(0, len(family.values), SAMPLES_A_PIECE):
                part = slice(start, start + SAMPLES_A_PIECE)
                samples = zip(family.labels[part], family.values[part], strict=True)
                yield "".join(f"{name}{labels} {value!r}\n" for labels, value in samples)

    def render(self) -> str:
        return "".join(self.pieces())
