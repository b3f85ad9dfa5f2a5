import pytest

from pybroker.spark.decision import CursorsDisagree, Decision, decide
from pybroker.spark.offsets import CursorName, Position, Span

ONE = CursorName("persistent://public/default/t-partition-0", "s")
TWO = CursorName("persistent://public/default/t-partition-1", "s")
PROGRESS = {
    ONE: Span(Position(3, 4), Position(3, 9)),
    TWO: Span(Position(5, -1), Position(6, 2)),
}


def test_a_batch_behind_all_cursors_is_skipped():
    cursors = {ONE: Position(3, 9), TWO: Position(7, 0)}
    assert decide(PROGRESS, cursors) is Decision.SKIP


def test_a_batch_that_begins_at_all_cursors_runs():
    cursors = {ONE: Position(3, 4), TWO: Position(5, -1)}
    assert decide(PROGRESS, cursors) is Decision.RUN


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Position(3, 9), Position(5, -1)),  # one committed, one not
        (Position(3, 6), Position(5, -1)),  # one within the batch
        (Position(3, 2), Position(5, -1)),  # one reset to before the batch
    ],
)
def test_anything_else_fails_and_says_where_each_cursor_is(one, two):
    with pytest.raises(CursorsDisagree, match=rf"is at {one}, the batch reads \(3:4, 3:9\]"):
        decide(PROGRESS, {ONE: one, TWO: two})
