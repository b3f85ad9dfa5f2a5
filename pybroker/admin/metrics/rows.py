"""Parses rows of the table of metrics, as written in each area's module."""

from typing import cast

from pybroker.base.metrics import Kind, Metric


def rows(kind: str, labels: str, text: str) -> tuple[Metric, ...]:
    """Each line is a metric: name | source | help. Continuation lines of a help begin with two
    spaces.
    """
    found = []
    for line in text.strip().replace("\n  ", " ").splitlines():
        name, source, help_text = (part.strip() for part in line.split("|"))
        found.append(Metric(name, cast(Kind, kind), tuple(labels.split()), help_text, source))
    return tuple(found)
