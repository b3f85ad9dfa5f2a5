import itertools
from dataclasses import replace

import pytest

from pybroker.base.names import TxnId
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
WORK = Work("query", 7, PROGRESS, "digest", goes_on_at_cursor=True)
EMPTY = Work("query", 7, {}, "digest", goes_on_at_cursor=True)
# A query that also reads files, or a batch of the sink, which does not know its sources.
WITH_FILES = replace(WORK, goes_on_at_cursor=False)
BEFORE = {ONE: Position(3, 4), TWO: Position(5, -1)}
PAST = {ONE: Position(3, 9), TWO: Position(7, 0)}
ELSEWHERE = [
    {ONE: Position(3, 9), TWO: Position(5, -1)},  # one cursor after the batch, one before it
    {ONE: Position(3, 6), TWO: Position(5, -1)},  # one cursor within the batch
]
BEHIND = [
    {ONE: Position(3, 2), TWO: Position(5, -1)},  # one cursor reset to before the batch
    {ONE: Position(3, 2), TWO: Position(7, 0)},  # and the other moved past it
]


def marker(batch_id, work=WORK):
    return Marker.of(replace(work, batch_id=batch_id), TxnId(0, 1))


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


def test_cursors_past_the_batch_without_its_marker_are_no_proof_of_output():
    with pytest.raises(BatchRefused, match="has not been committed by this query"):
        decide(WORK, PAST, marker(6))


@pytest.mark.parametrize(
    ("newest", "told"),
    [(marker(3), "is that of batch 3"), (Marker.opening("query"), "no batch marker")],
)
def test_cursors_past_the_batch_without_any_marker_may_mean_another_control_topic(newest, told):
    with pytest.raises(BatchRefused, match=f"{told}.* another control topic, set it again"):
        decide(WORK, PAST, newest)


@pytest.mark.parametrize("cursors", [*ELSEWHERE, *BEHIND])
def test_anything_else_fails_and_says_where_each_cursor_is(cursors):
    account = rf"is at {cursors[ONE]}, the batch reads \(3:4, 3:9\]"
    with pytest.raises(CursorsDisagree, match=account):
        decide(WORK, cursors, marker(6))


@pytest.mark.parametrize("cursors", [BEFORE, *ELSEWHERE, *BEHIND])
def test_a_committed_batch_in_front_of_its_cursors_was_rewound(cursors):
    with pytest.raises(CursorsDisagree, match="was reset"):
        decide(WORK, cursors, marker(7))


def test_a_batch_without_pulsar_input_is_known_by_its_marker_alone():
    assert decide(EMPTY, {}, marker(6)) is Decision.RUN
    assert decide(EMPTY, {}, marker(7, EMPTY)) is Decision.SKIP
    first = Work("query", 0, {})
    assert decide(first, {}, Marker.opening("query")) is Decision.RUN


def test_without_the_marker_of_the_batch_before_nobody_knows():
    with pytest.raises(BatchRefused, match="used another control topic"):
        decide(EMPTY, {}, marker(4, EMPTY))
    with pytest.raises(BatchRefused, match="used another control topic"):
        decide(EMPTY, {}, Marker.opening("query"))


def test_a_marker_of_an_earlier_version_knows_no_files():
    assert decide(replace(WORK, files="digest"), PAST, marker(7)) is Decision.SKIP


def test_a_committed_batch_is_not_skipped_when_its_input_can_no_longer_be_compared():
    with pytest.raises(BatchRefused, match="Make it readable there"):
        decide(replace(EMPTY, sources=""), {}, marker(7, EMPTY))


@pytest.mark.parametrize(
    "newest",
    [
        marker(7, Work("query", 7, {ONE: PROGRESS[ONE]}, "digest")),
        marker(7, Work("query", 7, PROGRESS, "of other sources")),
        marker(7, replace(WORK, files="other files")),
    ],
)
def test_a_batch_that_was_committed_with_other_ends_is_refused(newest):
    with pytest.raises(BatchRefused, match="with ends other than"):
        decide(WORK, PAST, newest)


def test_a_marker_of_an_earlier_version_says_nothing_of_other_sources():
    assert decide(WORK, PAST, Marker("query", 7, TxnId(0, 1), PROGRESS)) is Decision.SKIP


@pytest.mark.parametrize("cursors", [BEFORE, PAST])
def test_a_checkpoint_that_is_older_than_the_newest_marker_is_refused(cursors):
    with pytest.raises(BatchRefused, match="last commit, batch 9"):
        decide(WORK, cursors, marker(9))


# --- remedies ------------------------------------------------------------------------------------

# The cause of each refusal: the cursors, and the newest marker.
CASES = {
    Refusal.MOVED: (ELSEWHERE[0], marker(6)),
    Refusal.RESET: (BEHIND[0], marker(6)),
    Refusal.RESET_OR_RESTORED: (BEHIND[0], marker(3)),
    Refusal.REWOUND: (BEFORE, marker(7)),
    Refusal.NOT_OURS: (PAST, marker(6)),
    Refusal.NO_MARKER: (PAST, marker(3)),
    Refusal.UNKNOWN: ({}, marker(3)),
    Refusal.OTHER_ENDS: (PAST, marker(7, replace(WORK, sources="of other sources"))),
    Refusal.UNREADABLE: (PAST, marker(7)),
    Refusal.OUTDATED: (PAST, marker(9)),
}
GOES_ON_AT_THE_CURSOR = "which continues at the cursor"


def advice(refusal, work):
    cursors, newest = CASES[refusal]
    if not cursors:
        work = replace(work, progress={})
    if refusal is Refusal.UNREADABLE:
        work = replace(work, sources="")
    with pytest.raises(BatchRefused) as error:
        decide(work, cursors, newest)
    return str(error.value)


def test_each_refusal_comes_from_somewhere():
    cells = {cell for row in TABLE.values() for cell in row.values()}
    assert cells - set(Decision) == set(CASES) == set(Refusal)


@pytest.mark.parametrize("refusal", Refusal)
@pytest.mark.parametrize("work", [WORK, WITH_FILES])
def test_each_refusal_says_what_to_do(refusal, work):
    assert "start" in advice(refusal, work)
    assert "{" not in advice(refusal, work)


@pytest.mark.parametrize("refusal", Refusal)
def test_nobody_whose_sources_have_no_cursor_is_told_that_a_new_checkpoint_goes_on_there(refusal):
    told = advice(refusal, WITH_FILES)
    assert GOES_ON_AT_THE_CURSOR not in told
    assert "new checkpoint" not in told or "a second time" in told


@pytest.mark.parametrize("refusal", [Refusal.RESET, Refusal.REWOUND])
def test_where_the_cursor_is_behind_what_was_published_a_new_checkpoint_is_no_way_out(refusal):
    assert GOES_ON_AT_THE_CURSOR not in advice(refusal, WORK)
    assert "Starting from a new checkpoint would publish" in advice(refusal, WORK)
    assert "start the query again" in advice(refusal, WORK)


@pytest.mark.parametrize("refusal", [Refusal.OTHER_ENDS, Refusal.OUTDATED])
def test_a_query_with_cursors_may_go_on_there_from_a_new_checkpoint(refusal):
    assert GOES_ON_AT_THE_CURSOR in advice(refusal, WORK)
    assert "first set the subscription" not in advice(refusal, WORK)


def test_a_cursor_that_was_moved_back_must_be_set_before_a_new_checkpoint_goes_on_there():
    with pytest.raises(BatchRefused, match=r"first set the subscription to where batch 9 .*3:9"):
        decide(WORK, BEFORE, marker(9))


def test_an_account_of_thousands_of_topics_stays_short():
    progress = {
        CursorName(f"persistent://public/default/t{n}", "s"): Span(Position(3, 4), Position(3, 9))
        for n in range(5000)
    }
    with pytest.raises(BatchRefused, match="and 4990 more") as error:
        decide(replace(WORK, progress=progress), dict.fromkeys(progress, Position(3, 6)), marker(6))
    assert len(str(error.value)) < 5000


def test_after_an_older_backup_was_restored_a_query_goes_on_where_the_backup_stands():
    assert "restored from an older backup" in advice(Refusal.RESET_OR_RESTORED, WORK)
    assert GOES_ON_AT_THE_CURSOR in advice(Refusal.RESET_OR_RESTORED, WORK)
    assert "a checkpoint of the same time" in advice(Refusal.RESET_OR_RESTORED, WITH_FILES)
    assert "a checkpoint of the same time" in advice(Refusal.UNKNOWN, WITH_FILES)
