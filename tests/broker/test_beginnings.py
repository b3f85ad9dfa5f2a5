"""Where a cursor begins that shall begin at the end, or is moved there."""

from types import SimpleNamespace
from typing import Any

import pytest

from managed_ledger.position import EARLIEST, LATEST, Position
from pybroker.broker.subscriptions.beginnings import begin_after, next_after_seek
from pybroker.broker.subscriptions.isolation import Isolation

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
END = Position(3, 9)
OLDEST = Position(2, 4)  # the last entry before an open transaction
COPY = Position(3, 6)  # the last entry before those that a commit is copying


def topic(committed: Position = OLDEST, uncommitted: Position = COPY) -> Any:
    return SimpleNamespace(
        ledger=SimpleNamespace(last_confirmed=END),
        max_read_position=committed,
        max_uncommitted_position=uncommitted,
    )


@pytest.mark.parametrize("asked", [None, LATEST.before, END, END.after, Position(4, -1)])
def test_whoever_begins_at_the_end_begins_before_what_may_not_be_read(
    asked: Position | None,
) -> None:
    assert begin_after(topic(), asked, COMMITTED) == OLDEST
    assert begin_after(topic(), asked, UNCOMMITTED) == COPY, "else part of a copy would come"
    assert begin_after(topic(END, END), asked, COMMITTED) == asked, "nothing is open"


@pytest.mark.parametrize("asked", [EARLIEST, OLDEST.before, OLDEST.after, END.before])
def test_a_place_in_the_log_is_taken_as_it_was_named(asked: Position) -> None:
    assert begin_after(topic(), asked, COMMITTED) == asked
    assert next_after_seek(topic().ledger, asked.after, OLDEST) == asked.after


@pytest.mark.parametrize("asked", [LATEST, END.after, Position(4, 0)])
def test_whoever_goes_to_the_end_goes_to_what_may_not_be_read_yet(asked: Position) -> None:
    assert next_after_seek(topic().ledger, asked, OLDEST) == OLDEST.after
