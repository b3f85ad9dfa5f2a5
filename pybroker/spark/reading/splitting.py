"""Splits one partition's entries among several tasks.

The protocol does not tell how many entries a ledger has, but a reader's backlog tells how many
follow a position. So this module walks from ledger to ledger, only where there is enough to split,
and cuts ranges within ledgers by counting entries. A cut may fall on something that is not a
message: a task ends at the first entry after its range.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pybroker.spark.offsets import Position, Span
from pybroker.spark.reading.work import Work
from pybroker.spark.session import Session

# The minimum entries of a range, unless it may have only so many rows: a task costs a connection.
_LEAST_ENTRIES: Final = 16
_MAX_LEDGERS: Final = 1000
_BEHIND_ALL: Final = 2**62


class _Run(NamedTuple):
    """Consecutive entries of one ledger."""

    after: Position
    entries: int


def split(
    session: Session,
    work: Work,
    parts: int,
    task_bytes: int | None = None,
    rows: int | None = None,
) -> Sequence[Work]:
    """At least `parts` ranges, given enough entries, of about `task_bytes` and `rows` at most."""
    after, to = work.span
    entries = session.entries_behind(work.topic, after) - session.entries_behind(work.topic, to)
    wanted, most = parts, entries
    if task_bytes is not None or rows is not None:
        sample = session.sample(work.topic, after)
        if sample is None:
            return [work]
        if task_bytes is not None:
            wanted = max(wanted, math.ceil(entries * sample.size_bytes / task_bytes))
        if rows is not None:
            most = max(1, int(rows / sample.rows))
    each = min(most, max(_LEAST_ENTRIES, math.ceil(entries / wanted)))
    if entries <= each:
        return [work]
    cuts = [cut for cut in _cuts(session, work, each) if work.span.after < cut < work.span.to]
    bounds = [work.span.after, *cuts, work.span.to]
    return [_part(work, Span(after, to)) for after, to in itertools.pairwise(bounds)]


def _part(work: Work, span: Span) -> Work:
    return replace(
        work,
        span=span,
        first_index=work.first_index if span.after == work.span.after else 0,
        last_index=work.last_index if span.to == work.span.to else None,
        is_exact=work.is_exact and span.to == work.span.to,
    )


def _cuts(session: Session, work: Work, each: int) -> Iterator[Position]:
    counted = 0
    for after, entries in _runs(session, work):
        place = each - counted
        while place <= entries:
            yield after._replace(entry_id=after.entry_id + place)
            place += each
        counted = (counted + entries) % each


def _runs(session: Session, work: Work) -> Iterator[_Run]:
    """The entries of the span, ledger by ledger."""
    topic, (after, to) = work.topic, work.span
    first = session.first_position_after(topic, after)
    for _ in range(_MAX_LEDGERS):
        if first is None or first > to:
            return
        begin = first._replace(entry_id=first.entry_id - 1)
        if first.ledger_id >= to.ledger_id:
            yield _Run(begin, to.entry_id - begin.entry_id)
            return
        following = session.first_position_after(topic, Position(first.ledger_id, _BEHIND_ALL))
        count = session.entries_behind(topic, begin)
        if following is not None:
            count -= session.entries_behind(
                topic, following._replace(entry_id=following.entry_id - 1)
            )
        yield _Run(begin, count)
        first = following
