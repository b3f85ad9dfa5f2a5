"""An answer on the screen: JSON, or a table."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def shown(answer: Any, as_table: bool) -> str:
    """Text without a newline at its end; empty for no answer."""
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer.rstrip("\n")
    return "\n".join(_table(answer)) if as_table else json.dumps(answer, indent=2)


def _table(answer: Any) -> Iterator[str]:
    if isinstance(answer, Mapping):
        yield from _aligned([[str(key), _cell(value)] for key, value in answer.items()])
    elif isinstance(answer, list) and answer and all(isinstance(row, Mapping) for row in answer):
        columns = list(dict.fromkeys(key for row in answer for key in row))
        rows = [[_cell(row.get(column)) for column in columns] for row in answer]
        yield from _aligned([columns, *rows])
    elif isinstance(answer, list):
        yield from map(_cell, answer)
    else:
        yield _cell(answer)


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
