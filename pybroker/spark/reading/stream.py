"""`spark.readStream.format("pulsar")`: a streaming source that returns Arrow batches to Spark.

Many tasks read the partitions of its topics. A cursor determines where a new query begins, and
keeps what the query still needs from deletion. Its subscription is one of these:

- `subscription`: exactly_once moves the cursor, in the transaction that publishes a batch's
  results; so a pipeline that lost its checkpoint continues after its last committed batch. With any
  other sink the source moves the cursor, as that of a `predefinedSubscription`.
- `predefinedSubscription`: the source moves the cursor past what Spark has finished.
- neither: the source creates such a subscription. Its name is in the query's checkpoint, so it
  outlives a run. Spark ends the planner without notice, so the user who retires a query must delete
  the subscription.

The planner (one long-lived process per query) decides offsets; tasks read spans. Entries that were
acknowledged individually before the query began are skipped. Entries are read whole, so a
subscription must not have been used to acknowledge parts of producers' batches.
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
from pybroker.spark.reading.delay import Delay
from pybroker.spark.reading.finished import Finished
from pybroker.spark.reading.idle import Idleness
from pybroker.spark.reading.limits import Limits, Sample
from pybroker.spark.reading.losses import Losses
from pybroker.spark.reading.places import FROM_EARLIEST, Start
from pybroker.spark.reading.segments import held_back, without_deleted
from pybroker.spark.reading.sharing import MOST_TASKS, shared_out
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.splitting import split
from pybroker.spark.reading.survey import Survey, survey_of
from pybroker.spark.reading.topics import Topics
from pybroker.spark.reading.unread import Unread
from pybroker.spark.reading.work import Work
from pybroker.spark.replay import InputLost
from pybroker.spark.session import BROKER_AWAY, PATIENCE_S, PAUSE_S, Session, each_of

log = logging.getLogger("pybroker.spark")

_PREFIX: Final = "spark-pulsar"

Result = TypeVar("Result")


class SpanPartition(InputPartition):
    """One task's works, in sequence."""

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
        self._task_rows: int | None = options["maxRecordsPerPartition"]
        self._session: Session | None = None
        # For Trigger.AvailableNow: where each partition ended when the query began.
        self._targets: dict[str, Position] | None = None
        # The newest known offset; before PySpark 4.2 nothing else tells where a batch begins.
        self._known: dict[str, Any] | None = None
        # Subscriptions that this run has created and that are not yet in a checkpoint.
        self._made: list[CursorName] = []
        # The last sample of each partition's entries.
        self._samples: dict[str, Sample] = {}
        self._continuity = Continuity()
        self._idleness = Idleness()
        self._delay = Delay.of(options)
        self._unread = Unread()
        self._losses = Losses(options["failOnDataLoss"])
        self._finished = Finished()
        # Where this run began, if Spark asked, and whether it has planned a batch.
        self._initial: dict[str, Any] | None = None
        self._has_planned = False

    # --- in the planner ---------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        self._known = self._initial = self._asking(self._at_cursors).to_json()
        return self._known

    def getDefaultReadLimit(self) -> ReadLimit:
        """The kind of limit does not matter: all limits of the options apply together."""
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
            limits = None  # There Trigger.AvailableNow asks only once.
        if isinstance(limit, ReadMaxRows):
            # Entries are called rows here: Spark has no better term.
            limits = Limits(self._limits.size_bytes, self._limits.rows, limit.max_rows)

        def plan(session: Session) -> SourceOffset:
            following = self._following(session, before, limits)
            if told is not None:
                of_this_run = self._has_planned and told == self._known
                self._finished.acknowledge_up_to(session, before, following.spans, of_this_run)
            return following

        self._idleness.wait()
        following = self._asking(plan)
        self._idleness.answered(has_more=bool(following.progress()))
        if following.progress():
            self._known = following.to_json()
            self._has_planned = True
            self._delay.planned()
        else:
            self._known = start
        return self._known

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: where each partition ends now, and its backlog."""
        backlogs = self._asking(self._backlogs)
        return {topic: backlog.to_json() for topic, backlog in backlogs.items()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Called before it is known what the query reads, so this must not create topics."""
        self._targets = self._asking(lambda session: self._ends(session, None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """`end` also records where the batch began, because nothing else records where the first
        batch began.

        When Spark runs the first batch again it asks for the initial offset again, and by then the
        cursor may have passed the batch.
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
            self._known = offset.to_json()  # now with its beginning
        if start == end:
            return []
        works = [
            Work(topic, span, offset.acknowledged.get(topic, ()))
            for topic, span in offset.spans.items()
            if not span.is_empty
        ]
        divided = self._divided(works)
        most = max(MOST_TASKS, self._min_partitions, len(divided) if self._task_rows else 0)
        return [SpanPartition(*some) for some in shared_out(divided, most)]

    def _divided(self, works: Sequence[Work]) -> Sequence[Work]:
        """Splits into ranges of entries if there should be more tasks than partitions."""
        parts = -(-self._min_partitions // max(1, len(works)))
        if parts == 1 and self._task_rows is None:
            return works
        rows = self._task_rows

        def divided(session: Session) -> list[Work]:
            return [part for work in works for part in split(session, work, parts, rows=rows)]

        return self._asking(divided)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when Spark has finished everything up to `end` and recorded that."""
        offset = SourceOffset.from_json(end)
        there = offset.spans if self._known is None else self._known["spans"]
        self._asking(lambda session: self._finished.acknowledge_up_to(session, offset, there))

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
        """Deletes subscriptions made for an initial offset that was not used, because they would
        keep all messages from then on. A first batch that runs again uses its earlier one."""
        unneeded = [name for name in self._made if name.subscription != subscription]
        self._made = []

        if unneeded:
            try:
                self._asking(lambda session: each_of(unneeded, session.delete))
            except PulsarError as error:
                log.warning("%s is no longer needed: delete it (%s)", unneeded[0], error)

    def _at_the_end(self, session: Session) -> SourceOffset:
        """Plans without knowing where the batch begins."""
        log.warning(
            "This PySpark does not tell a source its position (4.2 does): the first batch after "
            "a start is not limited"
        )
        spans = {topic: Span(UNTOLD, end) for topic, end in self._ends(session, None).items()}
        return SourceOffset(self._subscription, spans, {}, self._follows)

    def _ends(self, session: Session, known: Collection[str] | None) -> dict[str, Position]:
        """The ends of existing topics. A known topic that is gone is not created again; with None,
        no topic is created."""
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
        ages = _ages_ms(
            survey, {topic: reached[topic] for topic in behind if behind[topic].entries}
        )
        return {
            topic: Backlog.of(each.last, each.entries, self._samples.get(topic), ages.get(topic, 0))
            for topic, each in behind.items()
        }

    def _following(
        self, session: Session, before: SourceOffset, limits: Limits | None
    ) -> SourceOffset:
        ends = self._ends(session, before.spans) if self._targets is None else self._targets
        self._require_all(session, before, ends)
        starts = self._starts(session, before, ends)
        survey = survey_of(session)
        self._losses.unread(self._unread.lost(survey, starts))
        behind = {
            topic: starts[topic]
            for topic, end in ends.items()
            if starts[topic] < end and end.entry_id >= 0
        }
        may_wait = limits is not None and self._targets is None
        if may_wait and self._delay.holds_back(survey, behind):
            behind = {}
        spans = {topic: _nothing_behind(starts[topic]) for topic in ends}
        spans = held_back(spans | self._spans(session, behind, ends, limits), ends)
        self._unread.remember(survey, spans, ends)
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
        published_ms |= survey.published({topic: spans[topic].to for topic in behind})
        return SourceOffset(before.subscription, spans, acknowledged, before.follows, published_ms)

    def _require_all(
        self, session: Session, before: SourceOffset, ends: Mapping[str, Position]
    ) -> None:
        """Raises InputLost for a topic that is gone, unless the query accepts the loss."""
        gone = self._missed(before, ends)
        # A topic may have been created since the targets were set.
        if gone and self._targets is not None:
            there = self._ends(session, before.spans)
            still = self._missed(before, there)
            gone = [topic for topic in gone if topic in still]
        self._losses.gone(gone)

    def _missed(self, before: SourceOffset, there: Collection[str]) -> list[str]:
        gone = [topic for topic in before.spans if topic not in there]
        missed = without_deleted(gone, there)
        return missed + [
            each for each in gone if each not in missed and self._unread.has_left(each)
        ]

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
                self._losses.set_back(topic, reached, what)
                anew.append(topic)
        if not anew:
            return known
        # The topic or partition is new: read all of it, wherever the query began. Or its log was
        # set back: then its cursor was, too.
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
        """Checks, for many topics together, whether the last messages read are unchanged."""
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

    def _require_what_was_untold(self, before: SourceOffset, offset: SourceOffset) -> None:
        """Checks topics and logs once the start is known: before PySpark 4.2 a batch is planned
        without knowing where the previous one ended."""
        gone = [topic for topic in before.spans if topic not in offset.spans]
        self._losses.gone(without_deleted(gone, offset.spans))

        def look(session: Session) -> None:
            for topic, span in offset.spans.items():
                if topic in before.spans and span.to != before.spans[topic].to:
                    reached, published_ms = before.spans[topic].to, before.published_ms.get(topic)
                    what = self._continuity.broken(session, topic, reached, published_ms, span.to)
                    if what is not None:
                        self._losses.set_back(topic, reached, what)

        self._asking(look)

    def _spans(
        self,
        session: Session,
        starts: Mapping[str, Position],
        ends: Mapping[str, Position],
        limits: Limits | None,
    ) -> dict[str, Span]:
        """As much as a trigger may read, from topics with messages after their start."""
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
        # The counted position may be a marker, an aborted message or past the end of a ledger: a
        # span must end at the next message.
        cut = {topic: place for topic, place in wanted.items() if place < ends[topic]}
        found = survey.firsts(
            {topic: place._replace(entry_id=place.entry_id - 1) for topic, place in cut.items()}
        )
        return {
            topic: Span(after, min(found.get(topic, ends[topic]), ends[topic]))
            for topic, after in starts.items()
        }

    def _asking(self, question: Callable[[Session], Result]) -> Result:
        """The session's answer; retried on new connections while the broker is unavailable."""
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
        """Pickles only what tasks need: a session stays in its process."""
        return self.__dict__ | {"_session": None}


def _subscription(options: Chosen) -> tuple[str, bool, bool]:
    """The subscription's name, whether the source moves its cursor, and whether it creates it."""
    fence, follower = options["subscription"], options["predefinedSubscription"]
    if fence and follower:
        raise NotAllowed(
            "With subscription an exactly-once sink moves the cursor, with predefinedSubscription "
            "the source does: use one of them"
        )
    if fence or follower:
        return fence or follower, fence is None, False
    return f"{options['subscriptionPrefix'] or _PREFIX}-{uuid.uuid4()}", True, True


def _start(options: Chosen) -> Start:
    """Raises NotAllowed. The cursor of `subscription` is never moved to a start."""
    if not options["subscription"]:
        return Start.of(options, default="latest")
    start = Start.of(options, default="earliest")
    if start.time_ms is not None or not isinstance(start.where, str):
        raise NotAllowed("With a subscription, startingOffsets must be 'earliest' or 'latest'")
    return start


def _stands(session: Session, offset: SourceOffset) -> SourceOffset:
    """Where the first batch began, for a query whose subscription the source created."""
    spans: dict[str, Span] = {}
    for topic in offset.spans:
        name = CursorName(topic, offset.subscription)
        spans[topic] = _nothing_behind(session.cursor(name))
        session.release(name)
    return SourceOffset(offset.subscription, spans, {}, offset.follows)


def _require_beginning(offset: SourceOffset) -> None:
    """Raises InputLost if PySpark before 4.2 requests the first batch again and its beginning is
    unknown."""
    for topic, span in offset.spans.items():
        if span.to < span.after:
            raise InputLost(
                f"The beginning of the first batch of {topic} is unknown: the subscription "
                f"{offset.subscription!r} is at {span.after}, but the batch ended at {span.to}. "
                "Only PySpark 4.2 and later tell a source where a batch begins, and another client "
                "moved the subscription: set it back to where it was and start the query again"
            )


def _ages_ms(survey: Survey, reached: Mapping[str, Position]) -> dict[str, int]:
    """The age of the first message after each position, if there is one."""
    if not reached:
        return {}
    now_ms = int(time.time() * 1000)
    published = survey.published(survey.firsts(reached))
    return {topic: max(0, now_ms - published_ms) for topic, published_ms in published.items()}


def _nothing_behind(position: Position) -> Span:
    return Span(position, position)
