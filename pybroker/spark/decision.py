"""Decides whether a batch runs, from the cursors' positions and what this query has committed.

A transaction atomically moves the cursors over the batch's spans and publishes the output and a
marker. Cursors at the spans' beginnings mean that the batch was not committed. Cursors past them
mean that it was committed or skipped; only this query's marker, for this batch with these ends,
proves that this query committed it. Anything inconsistent is refused with an error that says what
to do, because a batch must never be repeated or left out silently.
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

    NONE = "the batch has no cursor to check"
    BEFORE = "all at the batch's beginning"
    PAST = "all at or past its end"
    BEHIND = "one of them before its beginning"
    ELSEWHERE = "anything else"


class Evidence(Enum):
    """This query's newest marker."""

    PRECEDING = "the previous batch's marker, or none before the first batch"
    ABSENT = "an earlier batch's marker, or none although there were batches"
    THIS = "this batch's marker, with the same ends"
    OTHER_ENDS = "this batch's marker, with other ends"
    UNREADABLE = "this batch's marker, but the ends in the checkpoint cannot be read"
    LATER = "a later batch's marker"


class Decision(Enum):
    RUN = "run"
    SKIP = "skip"


class Refusal(Enum):
    """What is wrong, and a remedy that neither repeats nor loses a row.

    Whether a new checkpoint is such a remedy depends on the query: see
    pybroker.spark.new_checkpoint.
    """

    MOVED = (
        "is neither committed nor untouched, so running it would repeat or lose messages: "
        "{cursors}. Another query or consumer moves this subscription, or messages were skipped: "
        "stop the other one. To publish the whole batch, set the subscription to the batch's "
        "beginning and start the query again; to leave out the skipped messages, {new_checkpoint}"
    )
    RESET = (
        "begins ahead of the cursors: {cursors}. The subscription was reset or deleted. Set it to "
        "the batch's beginning and start the query again. Starting from a new checkpoint would "
        "publish the messages in between, which were already published, a second time"
    )
    RESET_OR_RESTORED = (
        "begins ahead of the cursors: {cursors}; and {evidence}. If the broker was restored from "
        "an older backup, what was published later is also gone: {after_restoring}. If not, the "
        "subscription was reset or deleted: set it to the batch's beginning and start the query "
        "again"
    )
    REWOUND = (
        "was committed, but the cursors are no longer past it: {cursors}. The subscription was "
        "reset or deleted. Set it to the end of the batch and start the query again. Starting from "
        "a new checkpoint would publish the messages after the cursors a second time"
    )
    NOT_OURS = (
        "has not been committed by this query, but the cursors are past it: {cursors}. Another "
        "query uses this subscription, or its messages were skipped: give each query its own "
        "subscription. To publish the batch, set the subscription to its beginning and "
        "start the query again; to leave it out, {new_checkpoint}"
    )
    NO_MARKER = (
        "has not been committed by this query, as far as is known, but the cursors are past it: "
        "{cursors}; and {evidence}. If the query used another control topic, set it again. If a "
        "message TTL or a quota took its markers, check in the output topics whether the batch was "
        "published. If not, another query uses this subscription, or its messages were skipped: to "
        "publish the batch, set the subscription to its beginning and start the query again; to "
        "leave it out, {new_checkpoint}"
    )
    UNKNOWN = (
        "has no cursor to check, and it is unknown whether the batch before it was committed: "
        "{evidence}. If the query used another control topic (control_topic of exactly_once, the "
        "option controlTopic of writeStream), set it again. If the broker was restored from an "
        "older backup, {after_restoring}. If the control topic or its messages are gone (by a "
        "message TTL, say), check in the output topics what was published; then {new_checkpoint}"
    )
    UNREADABLE = (
        "was committed, but the checkpoint, which tells whether with the same input, can no longer "
        "be read by the sink's process on the driver's machine (the log says why). Make it "
        "readable there, and start the query again"
    )
    OTHER_ENDS = (
        "was committed with ends other than those in Spark's checkpoint: the checkpoint was "
        "restored from a copy or lost a file. Restore the newest checkpoint. If it is gone, "
        "{new_checkpoint}"
    )
    OUTDATED = (
        "is older than this query's last commit, batch {newest}: the checkpoint was restored "
        "from a copy or lost its newest files. Restore the newest checkpoint. If it is gone, "
        "{new_checkpoint}"
    )


_AFTER_RESTORING: Final = {
    True: "start from a new checkpoint, which continues at the cursor as of the backup",
    False: "restore a checkpoint of the same time, whose last finished batch is that batch",
}


class BatchRefused(PulsarError):
    """A batch is neither run nor skipped, because either might repeat or lose messages."""


class CursorsDisagree(BatchRefused):
    """The cursors are neither before nor past the batch: another client moves them."""


# A pattern may match thousands of topics, but an error message must stay readable.
_MOST_TOLD: Final = 10


TABLE: Final[Mapping[Cursors, Mapping[Evidence, Decision | Refusal]]] = {
    Cursors.NONE: {
        Evidence.PRECEDING: Decision.RUN,
        Evidence.ABSENT: Refusal.UNKNOWN,
        Evidence.THIS: Decision.SKIP,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.UNREADABLE: Refusal.UNREADABLE,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.BEFORE: {
        Evidence.PRECEDING: Decision.RUN,
        # The cursors suffice as proof: the control topic may have changed.
        Evidence.ABSENT: Decision.RUN,
        Evidence.THIS: Refusal.REWOUND,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.UNREADABLE: Refusal.UNREADABLE,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.PAST: {
        Evidence.PRECEDING: Refusal.NOT_OURS,
        Evidence.ABSENT: Refusal.NO_MARKER,
        Evidence.THIS: Decision.SKIP,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.UNREADABLE: Refusal.UNREADABLE,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.BEHIND: {
        Evidence.PRECEDING: Refusal.RESET,
        Evidence.ABSENT: Refusal.RESET_OR_RESTORED,
        Evidence.THIS: Refusal.REWOUND,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.UNREADABLE: Refusal.UNREADABLE,
        Evidence.LATER: Refusal.OUTDATED,
    },
    Cursors.ELSEWHERE: {
        Evidence.PRECEDING: Refusal.MOVED,
        Evidence.ABSENT: Refusal.MOVED,
        Evidence.THIS: Refusal.REWOUND,
        Evidence.OTHER_ENDS: Refusal.OTHER_ENDS,
        Evidence.UNREADABLE: Refusal.UNREADABLE,
        Evidence.LATER: Refusal.OUTDATED,
    },
}


def decide(work: Work, cursors: Mapping[CursorName, Position], newest: Marker) -> Decision:
    """`work.progress` has no empty span; `newest` is this query's marker. Raises BatchRefused."""
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
        if newest.sources and not work.sources:
            return Evidence.UNREADABLE
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
        return "the control topic has no batch marker of this query"
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
