"""`spark.readStream.format("pulsar")`: a streaming source that hands Arrow batches to Spark.

The partitions of its topics are read as many tasks. A cursor says where a new query begins, and
keeps what the query still needs from deletion:

- `subscription`: exactly_once moves it, in the transaction that publishes a batch's results; so a
  pipeline that lost its checkpoint goes on where its last committed batch ended. Behind any other
  sink the source moves it, as it moves
- `predefinedSubscription`: behind what Spark has finished.
- without either, the source makes such a subscription. Its name is in the query's checkpoint, so it
  outlives a run; Spark ends the planner without a word, so who gives a query up deletes it.

The planner (one long-lived process per query) decides offsets; tasks read spans. Entries that were
acknowledged one by one before the query began are left out. They are read whole, so a subscription
must not have been used to acknowledge parts of producers' batches.
"""

import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.spark.columns.shape import Shape
from pybroker.spark.compat import (
    LIMITS_TRIGGERS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import EARLIEST, UNTOLD, CursorName, Position, SourceOffset, Span
from pybroker.spark.options import Chosen
from pybroker.spark.reading.acknowledged import acknowledged_behind
from pybroker.spark.reading.backlog import Backlog
from pybroker.spark.reading.continuity import Continuity
from pybroker.spark.reading.finished import Finished
from pybroker.spark.reading.limits import Limits, Sample
from pybroker.spark.reading.places import FROM_EARLIEST, Start
from pybroker.spark.reading.sharing import MOST_TASKS, shared_out
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.splitting import split
from pybroker.spark.reading.survey import survey_of
from pybroker.spark.reading.topics import Topics
from pybroker.spark.reading.work import Work
from pybroker.spark.replay import InputLost
from pybroker.spark.session import BROKER_AWAY, PATIENCE_S, PAUSE_S, Session, each_of

log = logging.getLogger("pybroker.spark")

_PREFIX: Final = "spark-pulsar"

Result = TypeVar("Result")


class SpanPartition(InputPartition):
    """One task's works, one after the other."""

    def __init__(self, *works: Work) -> None:
        super().__init__(works)
        self.works = works


class PulsarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Chosen, shape: Shape) -> None:
        endpoint = Endpoint.of(options)
        self._topics = Topics.of(options)
        self._reading = Reading(endpoint, shape, options["failOnDataLoss"])
        self._limits = Limits.of(options)
        self._subscription, self._follows, self._is_own = _subscription(options)
        self._start = _start(options)
        self._min_partitions: int = options["minPartitions"]
        self._session: Session | None = None
        # Under Trigger.AvailableNow: where each partition ended when the query began.
        self._targets: dict[str, Position] | None = None
        # The newest offset that is known; all that there is to go by before PySpark 4.2.
        self._known: dict[str, Any] | None = None
        # Subscriptions of its own that this run has made, and nobody's checkpoint has yet.
        self._made: list[CursorName] = []
        # What the entries of each partition were like when somebody last looked.
        self._samples: dict[str, Sample] = {}
        self._continuity = Continuity()
        self._finished = Finished()
        # Where this run began, if it was asked for that, and whether it has planned a batch.
        self._initial: dict[str, Any] | None = None
        self._has_planned = False

    # --- in the planner ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._known = self._initial = self._asking(self._at_cursors).to_json()
        return self._known

    def getDefaultReadLimit(self) -> ReadLimit:
        """What kind of limit it is does not matter: those of the options count, all together."""
        if self._limits.entries is not None:
            return ReadMaxRows(self._limits.entries)
        return ReadMaxBytes(self._limits.size_bytes)

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        told, start = start, start or self._known
        if start is None:
            self._known = self._asking(self._at_the_end).to_json()
            self._has_planned = True
            return self._known
        before = SourceOffset.from_json(start)
        limits = None if isinstance(limit, ReadAllAvailable) else self._limits
        if not LIMITS_TRIGGERS and not self._has_planned:
            limits = None  # Trigger.AvailableNow asks once there, and reads no further.
        if isinstance(limit, ReadMaxRows):
            # Entries go by the name of rows here: Spark knows no better word.
            limits = Limits(self._limits.size_bytes, self._limits.rows, limit.max_rows)

        def plan(session: Session) -> SourceOffset:
            following = self._following(session, before, limits)
            if told is not None:
                of_this_run = self._has_planned and told == self._known
                self._finished.let_go(session, before, following.spans, of_this_run)
            return following

        following = self._asking(plan)
        if following.progress():
            self._known = following.to_json()
            self._has_planned = True
        else:
            self._known = start
        return self._known

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: where each partition ends now, and what is before the query."""
        backlogs = self._asking(self._backlogs)
        return {topic: backlog.to_json() for topic, backlog in backlogs.items()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Before it is known what the query has been reading: so no topic is made for this."""
        self._targets = self._asking(lambda session: self._ends(session, None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The end says where the batch began: that of the first batch is nowhere else.

        When Spark runs the first batch again it asks for the initial offset anew, and the cursor
        may have passed over the batch since.
        """
        offset = SourceOffset.from_json(end, start)
        if not LIMITS_TRIGGERS and start != self._initial:
            self._require_what_was_untold(SourceOffset.from_json(start), offset)
        elif not LIMITS_TRIGGERS and self._is_own and offset.subscription != self._subscription:
            began = self._asking(lambda session: _stands(session, offset))
            offset = SourceOffset.from_json(end, began.to_json())
        _require_beginning(offset)
        self._give_up_other_than(offset.subscription)
        if self._known is None or self._known == end:
            self._known = offset.to_json()  # with what was not told when it was made
        if start == end:
            return []
        works = [
            Work(topic, span, offset.acknowledged.get(topic, ()))
            for topic, span in offset.spans.items()
            if not span.is_empty
        ]
        most = max(MOST_TASKS, self._min_partitions)
        return [SpanPartition(*some) for some in shared_out(self._divided(works), most)]

    def _divided(self, works: Sequence[Work]) -> Sequence[Work]:
        """In ranges of entries, where there are to be more tasks than partitions."""
        parts = -(-self._min_partitions // max(1, len(works)))
        if parts == 1:
            return works

        def divided(session: Session) -> list[Work]:
            return [part for work in works for part in split(session, work, parts)]

        return self._asking(divided)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has finished everything up to `end`, and wrote that down."""
        offset = SourceOffset.from_json(end)
        there = offset.spans if self._known is None else self._known["spans"]
        self._asking(lambda session: self._finished.let_go(session, offset, there))

    def stop(self) -> None:
        if self._session is not None:
            self._session.close()

    def _at_cursors(self, session: Session) -> SourceOffset:
        cursors = self._start.cursors(session, self._topics.partitions(session), self._subscription)
        names = {topic: CursorName(topic, self._subscription) for topic in cursors}
        holed: Sequence[str] = ()
        if not self._is_own:
            holed = survey_of(session).holed(cursors, self._subscription)
        acknowledged = {
            topic: acknowledged_behind(session, names[topic], cursors[topic]) for topic in holed
        }
        self._made = list(names.values()) if self._is_own else []
        each_of(list(names.values()), session.release)  # The sink's consumer is enough.
        spans = {topic: _nothing_behind(cursor) for topic, cursor in cursors.items()}
        return SourceOffset(self._subscription, spans, acknowledged, self._follows)

    def _give_up_other_than(self, subscription: str) -> None:
        """The first batch runs again, and goes by the subscription that it had. Another one, made
        for an initial offset that nobody needed, would keep all messages from then on."""
        unneeded = [name for name in self._made if name.subscription != subscription]
        self._made = []

        if unneeded:
            try:
                self._asking(lambda session: each_of(unneeded, session.delete))
            except PulsarError as error:
                log.warning("%s is needed by nobody: delete it (%s)", unneeded[0], error)

    def _at_the_end(self, session: Session) -> SourceOffset:
        """Without knowing where the batch begins."""
        log.warning(
            "This PySpark does not tell a source where it stands (4.2 does): the first batch after "
            "a start is not limited"
        )
        spans = {topic: Span(UNTOLD, end) for topic, end in self._ends(session, None).items()}
        return SourceOffset(self._subscription, spans, {}, self._follows)

    def _ends(self, session: Session, known: Collection[str] | None) -> dict[str, Position]:
        """Of the topics that are there. One that the query knows, and which is gone, is not made
        anew for this; with None nothing is."""
        topics = self._topics.partitions(session, self._topics.names if known is None else known)
        new = [] if known is None else [topic for topic in topics if topic not in known]
        return survey_of(session).ends(topics, new)

    def _backlogs(self, session: Session) -> dict[str, Backlog]:
        spans = {} if self._known is None else SourceOffset.from_json(self._known).spans
        reached = {
            topic: spans[topic].to if topic in spans else EARLIEST
            for topic in self._ends(session, spans)
        }
        survey = survey_of(session)
        behind = survey.behind(reached)
        strange = [
            topic for topic, each in behind.items() if each.entries and topic not in self._samples
        ]
        self._samples |= survey.samples({topic: reached[topic] for topic in strange})
        return {
            topic: Backlog.of(each.last, each.entries, self._samples.get(topic))
            for topic, each in behind.items()
        }

    def _following(
        self, session: Session, before: SourceOffset, limits: Limits | None
    ) -> SourceOffset:
        ends = self._ends(session, before.spans) if self._targets is None else self._targets
        self._require_all(session, before, ends)
        starts = self._starts(session, before, ends)
        behind = {
            topic: starts[topic]
            for topic, end in ends.items()
            if starts[topic] < end and end.entry_id >= 0
        }
        spans = {topic: _nothing_behind(starts[topic]) for topic in ends}
        spans |= self._spans(session, behind, ends, limits)
        acknowledged = {
            topic: [stretch for stretch in stretches if stretch.last > spans[topic].after]
            for topic, stretches in before.acknowledged.items()
            if topic in spans
        }
        published_ms = {
            topic: before.published_ms[topic]
            for topic, span in spans.items()
            if topic in before.published_ms and span.to == before.spans[topic].to
        }
        published_ms |= survey_of(session).published({topic: spans[topic].to for topic in behind})
        return SourceOffset(before.subscription, spans, acknowledged, before.follows, published_ms)

    def _require_all(
        self, session: Session, before: SourceOffset, ends: Mapping[str, Position]
    ) -> None:
        """Raises InputLost for a topic that is gone."""
        gone = [topic for topic in before.spans if topic not in ends]
        if gone and self._targets is not None:  # One may have come since the targets were set.
            there = self._ends(session, before.spans)
            gone = [topic for topic in gone if topic not in there]
        self._lost(gone)

    def _lost(self, gone: Sequence[str]) -> None:
        """Raises InputLost unless the query takes it as it is."""
        if not gone:
            return
        account = f"{', '.join(gone)}, which the query has been reading, is gone"
        if self._reading.fail_on_data_loss:
            raise InputLost(
                f"{account}, with what it held and the query had not read. To go on without it, "
                "set failOnDataLoss=false"
            )
        log.warning("%s: the query goes on without it, as failOnDataLoss=false says", account)

    def _starts(
        self, session: Session, before: SourceOffset, ends: Mapping[str, Position]
    ) -> dict[str, Position]:
        known = {topic: before.spans[topic].to for topic in ends if topic in before.spans}
        self._look_again(session, before, known, ends)
        anew = [topic for topic in ends if topic not in known]
        for topic, reached in known.items():
            published_ms = before.published_ms.get(topic)
            what = self._continuity.broken(session, topic, reached, published_ms, ends[topic])
            if what is not None:
                self._set_back(topic, reached, what)
                anew.append(topic)
        if not anew:
            return known
        # The topic, or the partition, is new: all of it is, wherever the query began. Or it was set
        # back: then its cursor was, too.
        cursors = FROM_EARLIEST.cursors(session, anew, before.subscription)
        each_of([CursorName(topic, before.subscription) for topic in anew], session.release)
        return known | cursors

    def _look_again(
        self,
        session: Session,
        before: SourceOffset,
        known: Mapping[str, Position],
        ends: Mapping[str, Position],
    ) -> None:
        """Where the last messages are still those that were read, many topics are told together."""
        if not session.asks_about_many:
            return
        wanted = {
            topic: reached
            for topic, reached in known.items()
            if topic in before.published_ms
            and self._continuity.is_to_be_looked_at(session, topic, reached, ends[topic])
        }
        for topic, published_ms in survey_of(session).published(wanted).items():
            if published_ms == before.published_ms[topic]:
                self._continuity.is_in_order(session, topic)

    def _set_back(self, topic: str, reached: Position, what: str) -> None:
        """Raises InputLost unless the query takes it as it is."""
        account = (
            f"{topic} is not as the query left it, having read up to {reached}: {what}. The broker "
            "was restored from an older backup, or the topic was deleted and made again, so "
            "messages are lost, and others stand in their places"
        )
        if self._reading.fail_on_data_loss:
            raise InputLost(
                f"{account}. Bring back a checkpoint of the same time as the backup; or go on from "
                "where the query's subscription stands now, which may repeat what was read since "
                "the backup, with failOnDataLoss=false"
            )
        log.warning("%s: the query goes on at its cursor, as failOnDataLoss=false says", account)

    def _require_what_was_untold(self, before: SourceOffset, offset: SourceOffset) -> None:
        """Before PySpark 4.2 a batch is planned without knowing where the one before ended."""
        self._lost([topic for topic in before.spans if topic not in offset.spans])

        def look(session: Session) -> None:
            for topic, span in offset.spans.items():
                if topic in before.spans and span.to != before.spans[topic].to:
                    reached, published_ms = before.spans[topic].to, before.published_ms.get(topic)
                    what = self._continuity.broken(session, topic, reached, published_ms, span.to)
                    if what is not None:
                        self._set_back(topic, reached, what)

        self._asking(look)

    def _spans(
        self,
        session: Session,
        starts: Mapping[str, Position],
        ends: Mapping[str, Position],
        limits: Limits | None,
    ) -> dict[str, Span]:
        """Of topics that hold something behind their start, as much as a trigger may read."""
        if limits is None or not starts:
            return {topic: Span(after, ends[topic]) for topic, after in starts.items()}
        survey = survey_of(session)
        share = limits.share(len(starts))
        samples = survey.samples(starts) if limits.needs_sample else {}
        self._samples |= samples
        wanted = {
            topic: after._replace(entry_id=after.entry_id + share.in_entries(samples.get(topic)))
            for topic, after in starts.items()
        }
        # The place counted to may hold a marker, an aborted message or nothing (the ledger ended):
        # a span ends at the next message.
        cut = {topic: place for topic, place in wanted.items() if place < ends[topic]}
        found = survey.firsts(
            {topic: place._replace(entry_id=place.entry_id - 1) for topic, place in cut.items()}
        )
        return {
            topic: Span(after, min(found.get(topic, ends[topic]), ends[topic]))
            for topic, after in starts.items()
        }

    def _asking(self, question: Callable[[Session], Result]) -> Result:
        """The session's answer; asked again on a new connection while the broker is away."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._session is None:
                    self._session = Session(self._reading.endpoint.connect())
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
        return read_spans(self._reading, partition.works)

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need of it: a session stays where it was made."""
        return self.__dict__ | {"_session": None}


def _subscription(options: Chosen) -> tuple[str, bool, bool]:
    """Its name, whether the source moves its cursor, and whether it is the source's own."""
    fence, follower = options["subscription"], options["predefinedSubscription"]
    if fence and follower:
        raise NotAllowed(
            "With subscription an exactly-once sink moves the cursor, with predefinedSubscription "
            "the source does: give one of them"
        )
    if fence or follower:
        return fence or follower, fence is None, False
    return f"{options['subscriptionPrefix'] or _PREFIX}-{uuid.uuid4()}", True, True


def _start(options: Chosen) -> Start:
    """A sink's subscription is earlier than its source, and nobody but the sink moves it."""
    if not options["subscription"]:
        return Start.of(options, default="latest")
    start = Start.of(options, default="earliest")
    if start.time_ms is not None or not isinstance(start.where, str):
        raise NotAllowed("With a subscription startingOffsets may be 'earliest' or 'latest'")
    return start


def _stands(session: Session, offset: SourceOffset) -> SourceOffset:
    """Where the first batch began of a query that had a subscription of its own made for it."""
    spans: dict[str, Span] = {}
    for topic in offset.spans:
        name = CursorName(topic, offset.subscription)
        spans[topic] = _nothing_behind(session.cursor(name))
        session.release(name)
    return SourceOffset(offset.subscription, spans, {}, offset.follows)


def _require_beginning(offset: SourceOffset) -> None:
    """Raises InputLost for a first batch that PySpark before 4.2 asks for again."""
    for topic, span in offset.spans.items():
        if span.to < span.after:
            raise InputLost(
                f"Where the first batch of {topic} began is not known any more: the subscription "
                f"{offset.subscription!r} stands at {span.after}, the batch ended at {span.to}. "
                "PySpark 4.2 tells a source, earlier ones do not, and somebody else has moved the "
                "subscription: set it to where it stood, and start the query again"
            )


def _nothing_behind(position: Position) -> Span:
    return Span(position, position)
