"""Prometheus' text format. Values are read when somebody scrapes: counting costs the broker nothing
but the plain integers that it keeps anyway.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["gauge", "counter"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_A_PIECE: Final = 500
_APART: Final = 37  # samples: families that grow together do not become pieces in one moment
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class _Family:
    """The samples of one name, as text. No list of many thousand things: the garbage collector
    looks at each of them while the list is young, and they would be let go of all in one moment.
    """

    kind: Kind
    room: int  # until the next piece
    pieces: list[str] = field(default_factory=list)  # of SAMPLES_A_PIECE each, or fewer
    samples: list[str] = field(default_factory=list)  # that are in no piece yet


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
            ahead = len(self._families) * _APART % SAMPLES_A_PIECE
            family = self._families[name] = _Family(kind, SAMPLES_A_PIECE - ahead)
        sample = f"{name}{self._none if labels is None else labels} {value!r}\n"
        family.samples.append(sample)
        family.room -= 1
        if not family.room:
            family.pieces.append("".join(family.samples))
            family.samples.clear()
            family.room = SAMPLES_A_PIECE

    def pieces(self) -> Iterator[str]:
        """The text, some samples at a time, once: it lets go of what it has given away."""
        for name, family in self._families.items():
            yield f"# TYPE {name} {family.kind}\n"
            family.pieces.reverse()
            while family.pieces:
                yield family.pieces.pop()
            if family.samples:
                yield "".join(family.samples)

    def render(self) -> str:
        return "".join(self.pieces())
