"""Prometheus' text format. Values are read when somebody scrapes: counting costs the broker nothing
but the plain integers that it keeps anyway.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

Kind = Literal["gauge", "counter"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """One scrape's samples; those of one name stand together, in the order of first use.

    `common` labels are put on every sample.
    """

    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = dict(common)
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, kind: Kind, value: float, **labels: str) -> None:
        family = self._families.setdefault(name, [f"# TYPE {name} {kind}"])
        family.append(f"{name}{_labels(self._common | labels)} {_number(value)}")

    def families(self) -> Iterator[str]:
        """The text, a name with its samples at a time."""
        for family in self._families.values():
            yield "\n".join(family) + "\n"

    def render(self) -> str:
        return "".join(self.families())


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
