"""Formats a result as JSON or as a table."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def shown(answer: Any, as_table: bool) -> str:
    """The text to print, without a final newline; empty if there is no result."""
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer.rstrip("\n")
    return "\n".join(_table(answer)) if as_table else json.dumps(answer, indent=2)


def _table(answer: Any) -> Iterator[str]:
    """A table with a row for each object in a list or an object; for another object, with a row for
    each field.
    """
    if isinstance(answer, Mapping):
        rows = list(answer.values())
        if rows and all(isinstance(row, Mapping) for row in rows):
            yield from _rows([{"name": str(key)} | _flat(row) for key, row in answer.items()])
        else:
            yield from aligned([[key, _cell(value)] for key, value in _flat(answer).items()])
    elif isinstance(answer, list) and answer and all(isinstance(row, Mapping) for row in answer):
        yield from _rows([_flat(row) for row in answer])
    elif isinstance(answer, list):
        yield from map(_cell, answer)
    else:
        yield _cell(answer)


def _rows(rows: list[dict[str, Any]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    yield from aligned([columns, *([_cell(row.get(c)) for c in columns] for row in rows)])


def _flat(answer: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Flattens nested objects; joins their names by dots."""
    found: dict[str, Any] = {}
    for key, value in answer.items():
        name = f"{within}{key}"
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def aligned(rows: list[list[str]]) -> Iterator[str]:
    """Aligns columns. Escapes newlines and control characters, so that each row is one line."""
    rows = [[_CONTROLS.sub(_escaped, cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _cell(value: Any) -> str:
    if value is None or value in ({}, []):
        return "-"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)
