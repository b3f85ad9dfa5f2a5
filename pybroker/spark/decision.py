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

from pybroker.base.errors import PulsarError
from pybroker.spark.marker import Marker
from pybroker.spark.new_checkpoint import new_checkpoint
from pybroker.spark.offsets import CursorName, Position, Progress
from pybroker.spark.work import Work


class Cursors(Enum):
    """Where the sources' cursors stand."""

    NONE = "the batch has no cursor to go by"
    BEFORE = "all at the batch's beginning"
    PAST = "all at or past its end"
    BEHIND = "one of them before its beginning"
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
    """What is wrong, and a way out that neither repeats nor loses a row.

    Whether a new checkpoint is one depends on the query: see pybroker.spark.new_checkpoint.
    """

    MOVED = (
        "is neither committed nor untouched, so running it would repeat or lose messages: "
        "{cursors}. Another query or consumer moves this subscription, or somebody skipped "
        "messages: stop the other one. To publish the whole batch, set the subscription to its "
        "beginning and start the query again; to leave out what was passed over, {new_checkpoint}"
    )
    RESET = (
        "begins ahead of the cursors: {cursors}. The subscription was reset or deleted. Set it to "
        "the batch's beginning and start the query again. From a new checkpoint it would publish "
        "what lies between, which was published before, a second time"
    )
    RESET_OR_RESTORED = (
        "begins ahead of the cursors: {cursors}; and {evidence}. If the broker was restored from "
        "an older backup, what was published later is gone, too: {after_restoring}. If not, the "
        "subscription was reset or deleted: set it to the batch's beginning and start the query "
        "again"
    )
    REWOUND = (
        "was committed, but the cursors are no longer past it: {cursors}. The subscription was "
        "reset or deleted. Set it to the end of the batch and start the query again. From a new "
        "checkpoint it would publish what lies behind the cursors a second time"
    )
    NOT_OURS = (
        "has not been committed by this query, but the cursors are past it: {cursors}. Another "
        "query uses this subscription, or somebody skipped its messages: give each query a "
        "subscription of its own. To publish the batch, set the subscription to its beginning and "
        "start the query again; to leave it out, {new_checkpoint}"
    )
    NO_MARKER = (
        "has not been committed by this query, as far as is known, but the cursors are past it: "
        "{cursors}; and {evidence}. If the query had another control topic, give it back. If not, "
        "another query uses this subscription, or somebody skipped its messages: to publish the "
        "batch, set the subscription to its beginning and start the query again; to leave it out, "
        "{new_checkpoint}"
    )
    UNKNOWN = (
        "has no cursor to go by, and nobody knows whether the batch before it was committed: "
        "{evidence}. If the query had another control topic (control_topic of exactly_once, the "
        "option controlTopic of writeStream), give it back. If the broker was restored from an "
        "older backup, {after_restoring}. If the control topic is gone, look up in the outputs "
        "what was published; then {new_checkpoint}"
    )
    OTHER_ENDS = (
        "was committed with other ends than those that Spark's checkpoint has for it now: the "
        "checkpoint was restored from a copy or lost a file. Bring the newest checkpoint back. If "
        "it is gone, {new_checkpoint}"
    )
    OUTDATED = (
        "is older than what this query committed last, batch {newest}: the checkpoint was restored "
        "from a copy or lost its newest files. Bring the newest checkpoint back. If it is gone, "
        "{new_checkpoint}"
    )


_AFTER_RESTORING: Final = {
    True: "start from a new checkpoint, which goes on at the cursor, where the backup stands",
    False: "bring back a checkpoint of the same time, whose last finished batch is that one",
}


class BatchRefused(PulsarError):
    """A batch is neither run nor skipped, because either might repeat or lose messages."""


class CursorsDisagree(BatchRefused):
    """The cursors are neither before nor behind the batch: somebody else moves them."""


# A pattern may have thousands of topics, and an error is read by people.
_MOST_TOLD: Final = 10


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
        Evidence.ABSENT: Refusal.NO_MARKER,
        Evidence.THIS: Decision.SKIP,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.BEHIND: {
        Evidence.PRECEDING: Refusal.RESET,
        Evidence.ABSENT: Refusal.RESET_OR_RESTORED,
        Evidence.THIS: Refusal.REWOUND,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.ELSEWHERE: {
        Evidence.PRECEDING: Refusal.MOVED,
        Evidence.ABSENT: Refusal.MOVED,
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
    if any(cursors[name] < span.after for name, span in progress.items()):
        return Cursors.BEHIND
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
    words = {
        "cursors": _account(work.progress, cursors),
        "newest": newest.batch_id,
        "evidence": _told(newest),
        "after_restoring": _AFTER_RESTORING[work.goes_on_at_cursor],
        "new_checkpoint": new_checkpoint(work, cursors, newest),
    }
    account = refusal.value.format(**words)
    kind = CursorsDisagree if refusal in _DISAGREEMENTS else BatchRefused
    return kind(f"Batch {work.batch_id} of query {work.query_id} {account}")


def _told(newest: Marker) -> str:
    if newest.is_opening:
        return "the control topic holds no marker of a batch of this query"
    return f"this query's newest marker on the control topic is that of batch {newest.batch_id}"


def _account(progress: Progress, cursors: Mapping[CursorName, Position]) -> str:
    told = [
        f"{name} is at {cursors[name]}, the batch reads ({span.after}, {span.to}]"
        for name, span in progress.items()
    ]
    more = [f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return "; ".join([*told[:_MOST_TOLD], *more])


_DISAGREEMENTS: Final = (
    Refusal.MOVED,
    Refusal.RESET,
    Refusal.RESET_OR_RESTORED,
    Refusal.REWOUND,
)
