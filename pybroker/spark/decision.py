"""Whether a batch runs: a table over where the cursors stand and what this query has committed.

A transaction moves the cursors over the batch's spans and publishes the output and a marker at
once. Cursors at the spans' beginnings say that nobody committed the batch. Cursors past them say
that somebody did, or that somebody skipped it: that it was this query, only its own marker says,
for this batch, with these ends. Whatever does not fit is refused, in a sentence that says what to
do: a batch that is repeated or left out in silence is the one thing that must not happen.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from pybroker.errors import PulsarError
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import CursorName, Position, Progress
from pybroker.spark.work import Work


class Cursors(Enum):
    """Where the sources' cursors stand."""

    NONE = "the batch reads nothing from Pulsar"
    BEFORE = "all at the batch's beginning"
    PAST = "all at or past its end"
    ELSEWHERE = "anything else"


class Evidence(Enum):
    """This query's newest marker."""

    PRECEDING = "that of the batch before, or none before the first batch"
    ABSENT = "that of an earlier batch, or none though there were batches"
    THIS = "that of this batch, with its ends"
    OTHER_ENDS = "that of this batch, with other ends"
    LATER = "that of a later batch"


class Decision(Enum):
    RUN = "run"
    SKIP = "skip"


class Refusal(Enum):
    DISAGREE = (
        "is neither committed nor untouched, so running it would repeat or lose messages: "
        "{cursors}. Another query or consumer uses this subscription, or it was reset: stop the "
        "other one, then start from a new checkpoint, which begins at the cursor"
    )
    REWOUND = (
        "was committed, but the cursors are no longer past it: {cursors}. The subscription was "
        "reset: start from a new checkpoint to read it again from there, or reset it to the ends "
        "of the batch to go on with this one"
    )
    NOT_OURS = (
        "has not been committed by this query, but the cursors are past it: {cursors}. Another "
        "query uses this subscription, or somebody skipped its messages, or the control topic is "
        "not the one that this query had: give each query a subscription of its own; then start "
        "from a new checkpoint, which goes on at the cursor, or reset the subscription to the "
        "batch's beginning to publish it"
    )
    UNKNOWN = (
        "reads nothing from Pulsar, and the control topic holds no marker of the batch before it, "
        "so nobody knows whether it was committed: give exactly_once the control topic that this "
        "query had before; if that is gone, start from a new checkpoint"
    )
    OTHER_ENDS = (
        "was committed with other ends than those that Spark's checkpoint has for it now: the "
        "checkpoint was restored or lost a file. Start from a new checkpoint, which goes on at "
        "the cursor"
    )
    OUTDATED = (
        "is older than what this query committed last, batch {newest}: the checkpoint was restored "
        "from a copy or lost its newest files. Start from a new checkpoint, which goes on at the "
        "cursor"
    )


class BatchRefused(PulsarError):
    """A batch is neither run nor skipped, because either might repeat or lose messages."""


class CursorsDisagree(BatchRefused):
    """The cursors are neither before nor behind the batch: somebody else moves them."""


TABLE: Final[Mapping[Cursors, Mapping[Evidence, Decision | Refusal]]] = {
    Cursors.NONE: {
        Evidence.PRECEDING: Decision.RUN,
        Evidence.ABSENT: Refusal.UNKNOWN,
        Evidence.THIS: Decision.SKIP,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.BEFORE: {
        Evidence.PRECEDING: Decision.RUN,
        Evidence.ABSENT: Decision.RUN,  # The cursors alone are proof: the control topic may change.
        Evidence.THIS: Refusal.REWOUND,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.PAST: {
        Evidence.PRECEDING: Refusal.NOT_OURS,
        Evidence.ABSENT: Refusal.NOT_OURS,
        Evidence.THIS: Decision.SKIP,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.ELSEWHERE: {
        Evidence.PRECEDING: Refusal.DISAGREE,
        Evidence.ABSENT: Refusal.DISAGREE,
        Evidence.THIS: Refusal.REWOUND,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.LATER: Refusal.OUTDATED,
    },
}


def decide(work: Work, cursors: Mapping[CursorName, Position], newest: Marker) -> Decision:
    """`work.progress` holds no empty span, `newest` is of this query. Raises BatchRefused."""
    decision = TABLE[_place(work.progress, cursors)][_evidence(work, newest)]
    if isinstance(decision, Decision):
        return decision
    raise _refused(decision, work, cursors, newest)


def _place(progress: Progress, cursors: Mapping[CursorName, Position]) -> Cursors:
    if not progress:
        return Cursors.NONE
    if all(cursors[name] >= span.to for name, span in progress.items()):
        return Cursors.PAST
    if all(cursors[name] == span.after for name, span in progress.items()):
        return Cursors.BEFORE
    return Cursors.ELSEWHERE


def _evidence(work: Work, newest: Marker) -> Evidence:
    if newest.batch_id > work.batch_id:
        return Evidence.LATER
    if newest.batch_id == work.batch_id:
        return Evidence.THIS if newest.is_of(work) else Evidence.OTHER_ENDS
    if newest.batch_id == work.batch_id - 1:
        return Evidence.PRECEDING
    return Evidence.ABSENT


def _refused(
    refusal: Refusal, work: Work, cursors: Mapping[CursorName, Position], newest: Marker
) -> BatchRefused:
    account = refusal.value.format(cursors=_account(work.progress, cursors), newest=newest.batch_id)
    kind = CursorsDisagree if refusal in (Refusal.DISAGREE, Refusal.REWOUND) else BatchRefused
    return kind(f"Batch {work.batch_id} of query {work.query_id} {account}")


def _account(progress: Progress, cursors: Mapping[CursorName, Position]) -> str:
    return "; ".join(
        f"{name} is at {cursors[name]}, the batch reads ({span.after}, {span.to}]"
        for name, span in progress.items()
    )
