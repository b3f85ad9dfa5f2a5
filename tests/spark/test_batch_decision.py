import itertools

import pytest

from pybroker.names import TxnId
from pybroker.spark.decision import (
    TABLE,
    BatchRefused,
    Cursors,
    CursorsDisagree,
    Decision,
    Evidence,
    Refusal,
    decide,
)
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import CursorName, Position, Span
from pybroker.spark.work import Work

ONE = CursorName("persistent://public/default/t-partition-0", "s")
TWO = CursorName("persistent://public/default/t-partition-1", "s")
PROGRESS = {
    ONE: Span(Position(3, 4), Position(3, 9)),
    TWO: Span(Position(5, -1), Position(6, 2)),
}
WORK = Work("query", 7, PROGRESS, "digest")
EMPTY = Work("query", 7, {}, "digest")
BEFORE = {ONE: Position(3, 4), TWO: Position(5, -1)}
PAST = {ONE: Position(3, 9), TWO: Position(7, 0)}
ELSEWHERE = [
    {ONE: Position(3, 9), TWO: Position(5, -1)},  # one committed, one not
    {ONE: Position(3, 6), TWO: Position(5, -1)},  # one within the batch
    {ONE: Position(3, 2), TWO: Position(5, -1)},  # one reset to before the batch
]


def marker(batch_id, work=WORK):
    return Marker("query", batch_id, TxnId(0, 1), work.progress, work.sources)


def test_the_table_is_total():
    cells = {(cursors, evidence) for cursors, row in TABLE.items() for evidence in row}
    assert cells == set(itertools.product(Cursors, Evidence))


def test_only_a_batch_with_this_querys_own_marker_is_ever_skipped():
    for row in TABLE.values():
        for evidence, decision in row.items():
            assert decision is not Decision.SKIP or evidence is Evidence.THIS


def test_a_batch_behind_all_cursors_with_its_marker_is_skipped():
    assert decide(WORK, PAST, marker(7)) is Decision.SKIP


def test_a_batch_that_begins_at_all_cursors_runs():
    assert decide(WORK, BEFORE, marker(6)) is Decision.RUN


def test_the_cursors_are_proof_enough_when_the_control_topic_was_changed():
    assert decide(WORK, BEFORE, Marker.opening("query")) is Decision.RUN


@pytest.mark.parametrize("newest", [marker(6), marker(3), Marker.opening("query")])
def test_cursors_past_the_batch_without_its_marker_are_no_proof_of_output(newest):
    with pytest.raises(BatchRefused, match="has not been committed by this query"):
        decide(WORK, PAST, newest)


@pytest.mark.parametrize("cursors", ELSEWHERE)
def test_anything_else_fails_and_says_where_each_cursor_is(cursors):
    account = rf"is at {cursors[ONE]}, the batch reads \(3:4, 3:9\]"
    with pytest.raises(CursorsDisagree, match=account):
        decide(WORK, cursors, marker(6))


@pytest.mark.parametrize("cursors", [BEFORE, *ELSEWHERE])
def test_a_committed_batch_in_front_of_its_cursors_was_rewound(cursors):
    with pytest.raises(CursorsDisagree, match="was reset"):
        decide(WORK, cursors, marker(7))


def test_a_batch_without_pulsar_input_is_known_by_its_marker_alone():
    assert decide(EMPTY, {}, marker(6)) is Decision.RUN
    assert decide(EMPTY, {}, marker(7, EMPTY)) is Decision.SKIP
    first = Work("query", 0, {})
    assert decide(first, {}, Marker.opening("query")) is Decision.RUN


def test_without_the_marker_of_the_batch_before_nobody_knows():
    with pytest.raises(BatchRefused, match="the control topic that this query had"):
        decide(EMPTY, {}, marker(4, EMPTY))
    with pytest.raises(BatchRefused, match="the control topic that this query had"):
        decide(EMPTY, {}, Marker.opening("query"))


@pytest.mark.parametrize(
    "newest",
    [
        marker(7, Work("query", 7, {ONE: PROGRESS[ONE]}, "digest")),
        marker(7, Work("query", 7, PROGRESS, "of other sources")),
    ],
)
def test_a_batch_that_was_committed_with_other_ends_is_refused(newest):
    with pytest.raises(BatchRefused, match="with other ends"):
        decide(WORK, PAST, newest)


def test_a_marker_of_an_earlier_version_says_nothing_of_other_sources():
    assert decide(WORK, PAST, Marker("query", 7, TxnId(0, 1), PROGRESS)) is Decision.SKIP


@pytest.mark.parametrize("cursors", [BEFORE, PAST])
def test_a_checkpoint_that_is_older_than_the_newest_marker_is_refused(cursors):
    with pytest.raises(BatchRefused, match="committed last, batch 9"):
        decide(WORK, cursors, marker(9))


@pytest.mark.parametrize("refusal", Refusal)
def test_each_refusal_says_what_to_do(refusal):
    assert "start from a new checkpoint" in refusal.value.lower()
