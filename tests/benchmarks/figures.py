"""The output of a benchmark: figures with their targets, as a table or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Target:
    """The required performance. `stretch` is a stricter target, if there is one."""

    target: float
    stretch: float | None = None
    higher_is_better: bool = False

    def is_met_by(self, value: float) -> bool:
        return value >= self.target if self.higher_is_better else value <= self.target

    def describe(self) -> str:
        sign = "≥" if self.higher_is_better else "≤"
        return f"{sign} {short(self.target)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number: the median of `runs`. Units are in the name or in `unit`."""

    name: str
    unit: str
    runs: Sequence[float]
    target: Target | None = None

    @property
    def value(self) -> float:
        return median(self.runs)

    @property
    def is_met(self) -> bool:
        return self.target is None or self.target.is_met_by(self.value)


@dataclass(frozen=True, slots=True)
class RowResult:
    """The figures of a row, with the disk's fdatasync in the same minute."""

    row: str
    figures: Sequence[Figure]
    fdatasync_p50_ms: float
    fdatasync_p99_ms: float


def short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


_COLUMNS = "{:<60} {:>8} {:<7} {:>9} {:>8} {:<6} {:>17} {:>13}"
HEADER = (
    _COLUMNS.format("", "median", "", "target", "stretch", "", "runs", "fdatasync ms")
    + "\n"
    + _COLUMNS.format("", "", "", "", "", "", "min – max", "p50 / p99")
)


def table_lines(result: RowResult) -> list[str]:
    sync = f"{result.fdatasync_p50_ms:.2f} / {result.fdatasync_p99_ms:.1f}"
    lines = []
    for figure in result.figures:
        target, stretch, verdict = "", "", ""
        if figure.target is not None:
            target = figure.target.describe()
            stretch = short(figure.target.stretch) if figure.target.stretch is not None else ""
            verdict = "met" if figure.is_met else "MISSED"
        spread = f"{short(min(figure.runs))} – {short(max(figure.runs))}"
        value = short(figure.value)
        lines.append(
            _COLUMNS.format(
                figure.name, value, figure.unit, target, stretch, verdict, spread, sync
            ).rstrip()
        )
    return lines


def as_json(results: Sequence[RowResult]) -> str:
    rows = []
    for result in results:
        row = asdict(result)
        for figure, described in zip(result.figures, row["figures"], strict=True):
            described["median"] = figure.value
            described["is_met"] = figure.is_met
        rows.append(row)
    return json.dumps(rows, indent=2, ensure_ascii=False)
