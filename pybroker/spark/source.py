"""`spark.readStream.format("pulsar")`: a streaming source that hands Arrow batches to Spark.

`topic`: its partitions are read as many tasks. `subscription`: its cursor says where a new query
begins, so a pipeline that lost its checkpoint goes on where its last committed batch ended; for one
that is not there yet, `startingOffsets` says it. `maxEntriesPerTrigger`: an entry is a message or a
producer's batch.

The planner (one long-lived process per query) decides offsets; tasks read spans. Nothing here moves
the cursor: acknowledging belongs to the transaction that publishes a batch's results. Entries that
were acknowledged one by one before the query began are left out. They are read whole, so the
subscription must not have been used to acknowledge parts of producers' batches.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pybroker.client import InitialPosition, NotAllowed
from pybroker.names import TopicName
from pybroker.spark.acknowledged import acknowledged_behind
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import CursorName, Position, SourceOffset, Span, Stretch
from pybroker.spark.options import Chosen, required
from pybroker.spark.reading import read_span
from pybroker.spark.session import BROKER_AWAY, PATIENCE_S, PAUSE_S, Session

_INITIAL: Final = {"earliest": InitialPosition.Earliest, "latest": InitialPosition.Latest}

Result = TypeVar("Result")


class SpanPartition(InputPartition):
    """One task's work: a span of one partition."""

    def __init__(self, topic: str, span: Span, acknowledged: Sequence[Stretch] = ()) -> None:
        super().__init__((topic, span))
        self.topic = topic
        self.span = span
        # Not to be read, be it within the span or behind it.
        self.acknowledged = acknowledged


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Chosen) -> None:
        self._endpoint = Endpoint.of(options)
        self._topic = str(TopicName.parse(required(options, "topic")))
        self._subscription: str = required(options, "subscription")
        self._max_entries: int | None = options["maxEntriesPerTrigger"]
        self._initial = _initial_position(options["startingOffsets"] or "earliest")
        self._session: Session | None = None
        # Under Trigger.AvailableNow: where each partition ended when the query began.
        self._targets: dict[str, Position] | None = None

    # --- in the planner ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._asking(self._at_cursors).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Entries go by the name of rows here: Spark knows no better word."""
        return ReadMaxRows(self._max_entries) if self._max_entries else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = SourceOffset.from_json(start)
        entries = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        following = self._asking(lambda session: self._following(session, before, entries))
        return following.to_json() if following.progress() else start

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._asking(
            lambda session: {
                topic: session.last_position(topic) for topic in session.partitions(self._topic)
            }
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The end says where the batch began: that of the first batch is nowhere else.

        When Spark runs the first batch again it asks for the initial offset anew, and the cursor
        may have passed over the batch since.
        """
        if start == end:
            return []
        offset = SourceOffset.from_json(end)
        return [
            SpanPartition(topic, span, offset.acknowledged.get(topic, ()))
            for topic, span in offset.spans.items()
            if not span.is_empty
        ]

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()

    def _at_cursors(self, session: Session) -> SourceOffset:
        names = [self._cursor_name(topic) for topic in session.partitions(self._topic)]
        cursors = {name: session.cursor(name, self._initial) for name in names}
        acknowledged = {
            name.topic: acknowledged_behind(session, name, cursor)
            for name, cursor in cursors.items()
        }
        for name in names:
            session.release(name)  # The sink has a consumer there; one is enough.
        spans = {name.topic: _nothing_behind(cursor) for name, cursor in cursors.items()}
        return SourceOffset(self._subscription, spans, acknowledged)

    def _following(
        self, session: Session, before: SourceOffset, entries: int | None
    ) -> SourceOffset:
        topics = self._targets or session.partitions(self._topic)
        share = None if entries is None else max(1, entries // len(topics))
        spans = {topic: self._next_span(session, before, topic, share) for topic in topics}
        acknowledged = {
            topic: [stretch for stretch in stretches if stretch.last > spans[topic].after]
            for topic, stretches in before.acknowledged.items()
            if topic in spans
        }
        return SourceOffset(self._subscription, spans, acknowledged)

    def _next_span(
        self, session: Session, before: SourceOffset, topic: str, entries: int | None
    ) -> Span:
        name = self._cursor_name(topic)
        last = self._targets[topic] if self._targets else session.last_position(topic)
        if topic in before.spans:
            after = before.spans[topic].to
        else:  # The topic has grown a partition: all of it is new, wherever the query began.
            after = session.cursor(name, InitialPosition.Earliest)
            session.release(name)
        if last <= after or last.entry_id < 0:
            return _nothing_behind(after)
        if entries is None:
            return Span(after, last)
        return Span(after, _bounded(session, topic, after, last, entries))

    def _cursor_name(self, topic: str) -> CursorName:
        return CursorName(topic, self._subscription)

    def _asking(self, question: Callable[[Session], Result]) -> Result:
        """The session's answer; asked again on a new connection while the broker is away."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._session is None:
                    self._session = Session(self._endpoint.connect())
                return question(self._session)
            except BROKER_AWAY:
                if self._session is not None:
                    self._session.close()
                self._session = None
                if time.monotonic() >= give_up_at:
                    raise
            time.sleep(PAUSE_S)

    # --- in a task --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        return read_span(self._endpoint, partition.topic, partition.span, partition.acknowledged)


def _initial_position(place: object) -> InitialPosition:
    if not isinstance(place, str):
        raise NotAllowed("With a subscription startingOffsets may be 'earliest' or 'latest'")
    return _INITIAL[place]


def _nothing_behind(position: Position) -> Span:
    return Span(position, position)


def _bounded(
    session: Session, topic: str, after: Position, last: Position, entries: int
) -> Position:
    """The first entry at or behind `after` + `entries` that can be delivered.

    The place counted to may hold a marker, an aborted message or nothing (the ledger ended), so
    one message is read to find where the next one is.
    """
    wanted = Position(after.ledger_id, after.entry_id + entries)
    if wanted >= last:
        return last
    found = session.first_position_after(topic, wanted._replace(entry_id=wanted.entry_id - 1))
    return last if found is None else min(found, last)
