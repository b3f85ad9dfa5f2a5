"""Metrics in Prometheus' text format and in OpenMetrics.

Values are read at each scrape. Between scrapes the broker only counts, in plain integers that it
keeps anyway.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["gauge", "counter", "summary", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text"
OPENMETRICS_CONTENT_TYPE: Final = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
SAMPLES_A_PIECE: Final = 500
_HELP: Final = b"# HELP "
_APART: Final = 37  # samples; so that families that grow together are not joined at the same time
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` come in addition to the common labels; `source` is for the documentation."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    source: str


@dataclass(slots=True)
class _Family:
    """The samples of one metric, as text. Avoids lists of many thousand objects: the garbage
    collector visits each of them while the list is young, and freeing them takes long.
    """

    metric: Metric
    room: int  # until the next piece
    pieces: list[str] = field(default_factory=list)  # at most SAMPLES_A_PIECE samples each
    samples: list[str] = field(default_factory=list)  # not yet in a piece


class Exposition:
    """The samples of one scrape. Those of one metric are grouped, in the order of first use.

    `common` labels are added to every sample. Only metrics in `table` can be added.
    """

    def __init__(self, common: Mapping[str, str], table: Mapping[str, Metric]) -> None:
        self._common = dict(common)
        self._none = self.labels()
        self._table = table
        self._families: dict[str, _Family] = {}

    def labels(self, **labels: str) -> str:
        """Labels for `add`, to be built once for all samples that share them."""
        pairs = (
            f'{name}="{value.translate(_ESCAPES)}"'
            for name, value in (self._common | labels).items()
        )
        return "{" + ",".join(pairs) + "}"

    def add(self, name: str, value: float, labels: str | None = None, suffix: str = "") -> None:
        """`suffix` follows the name in samples of summaries and histograms."""
        family = self._families.get(name)
        if family is None:
            ahead = len(self._families) * _APART % SAMPLES_A_PIECE
            family = self._families[name] = _Family(self._table[name], SAMPLES_A_PIECE - ahead)
        shown = repr(value) if value == value else "NaN"
        sample = f"{name}{suffix}{self._none if labels is None else labels} {shown}\n"
        family.samples.append(sample)
        family.room -= 1
        if not family.room:
            family.pieces.append("".join(family.samples))
            family.samples.clear()
            family.room = SAMPLES_A_PIECE

    def pieces(self) -> Iterator[str]:
        """Yields the text once, some samples at a time, and frees what it has yielded."""
        for name, family in self._families.items():
            metric = family.metric
            yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
            family.pieces.reverse()
            while family.pieces:
                yield family.pieces.pop()
            if family.samples:
                yield "".join(family.samples)

    def render(self) -> str:
        return "".join(self.pieces())


def as_openmetrics(pieces: Sequence[bytes]) -> list[bytes]:
    """The same samples in OpenMetrics, which names a counter without `_total` in HELP and TYPE, and
    marks the end. `pieces`: the encoded output of `Exposition.pieces`.
    """
    return [_openmetrics_head(p) if p.startswith(_HELP) else p for p in pieces] + [b"# EOF\n"]


def _openmetrics_head(head: bytes) -> bytes:
    if not head.endswith(b"_total counter\n"):
        return head
    help_line, type_line, _ = head.split(b"\n")
    name = type_line.split(b" ")[2]
    family = name.removesuffix(b"_total")
    about = help_line.removeprefix(_HELP + name)
    return b"# HELP %s%s\n# TYPE %s counter\n" % (family, about, family)
