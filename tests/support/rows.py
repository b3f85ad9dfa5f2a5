"""A table whose rows are checked alike is one test: a test per row costs more than its check."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Row = TypeVar("Row")


def check_each(
    rows: Iterable[Row], check: Callable[[Row], object], name: Callable[[Row], str]
) -> None:
    """Check all rows; the failure names those that failed."""
    failed, checked = [], 0
    for row in rows:
        checked += 1
        try:
            check(row)
        except Exception as error:
            failed.append(f"{name(row)}: {type(error).__name__}: {error}")
    assert checked, "no rows"
    assert not failed, "\n\n".join([f"{len(failed)} of {checked} rows", *failed])
