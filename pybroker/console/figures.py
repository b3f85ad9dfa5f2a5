"""The broker's own figures, from /metrics."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from pybroker.console.api import Api

_SAMPLE: Final = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
Figures = Mapping[str, list[float]]


async def broker_figures(api: Api) -> Figures:
    """Figures by name: lists, because some exist several times, such as one per coordinator."""
    reply = await api.ask("GET", "/metrics", {"topics": "false"})
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in _samples(reply.check().body.decode()):
        found[name].append(value)
    return found


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for match in _SAMPLE.finditer(text):
        yield match[1], float(match[3])


def total(figures: Figures, name: str) -> float | None:
    """The sum of a figure; None if the broker does not report it."""
    values = figures.get(name)
    return sum(values) if values else None


def highest(figures: Figures, name: str) -> float | None:
    return max(figures.get(name, ()), default=None)
