"""`spark.read.format("pulsar")`: the current contents of topics, or a part, as a DataFrame.

Beginning and end are fixed when the query is planned. A large partition is read by several tasks,
each a range of entries; `minPartitions` requests more tasks. With thousands of small partitions,
each task reads many. Filters on metadata narrow what is read.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pybroker.base.errors import NotAllowed
from pybroker.client import MessageId
from pybroker.spark.columns.shape import Shape
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span
from pybroker.spark.options import Chosen
from pybroker.spark.reading.filters import NARROWING, Narrowing
from pybroker.spark.reading.places import Place, Start, of_topic
from pybroker.spark.reading.sharing import MOST_TASKS, shared_out
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.splitting import split
from pybroker.spark.reading.stream import SpanPartition
from pybroker.spark.reading.survey import Survey, survey_of
from pybroker.spark.reading.topics import Topics
from pybroker.spark.reading.work import Work
from pybroker.spark.session import Session, each_of, position_of

# What one task reads, estimated from a sample; the same default as Spark's file sources.
TASK_BYTES: Final = 128 * 1024 * 1024


class PulsarBatchReader(DataSourceReader):
    def __init__(self, options: Chosen, shape: Shape) -> None:
        self._topics = Topics.of(options)
        self._reading = Reading(Endpoint.of(options), shape, options["failOnDataLoss"])
        self._start = Start.of(options, default="earliest")
        if self._start.where == "latest":
            raise NotAllowed(
                "spark.read ends at the last message stored now, so it cannot begin at 'latest'"
            )
        for name in ("endingOffsets", "endingTime"):
            self._topics.require(name, options[name])
        self._end = _End(options["endingOffsets"], options["endingTime"])
        self._min_partitions: int = options["minPartitions"]
        self._task_rows: int | None = options["maxRecordsPerPartition"]
        self._disorder_ms: int | None = options["publishTimeDisorderMs"]
        self._narrowing = Narrowing()

    @property
    def pushFilters(self) -> "_Narrowed":
        return _Narrowed(self.narrow)

    def narrow(self, filters: Iterable[Any]) -> Iterable[Any]:
        """Reads only what `filters` require; Spark still evaluates all of them itself."""
        filters = list(filters)
        self._narrowing = Narrowing.of(filters, NARROWING - self._reading.shape.of_value())
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        session = Session(self._reading.endpoint.connect())
        try:
            there = self._topics.existing_partitions(session)
            topics = [topic for topic in there if self._narrowing.wants(topic)]
            ends = survey_of(session).ends(topics)
            self._topics.require_all([topic for topic in topics if topic not in ends])
            held = [topic for topic in topics if topic in ends and ends[topic].entry_id >= 0]
            found = each_of(held, lambda topic: self._work(session, topic, ends[topic]))
            works = [work for work in found if work is not None]
            return self._tasks(session, works, len(topics)) or [_nothing()]
        finally:
            session.close()

    def _tasks(
        self, session: Session, works: Sequence[Work], topics: int
    ) -> Sequence[InputPartition]:
        """Splits large partitions and lets one task read many small ones."""
        parts = max(1, -(-self._min_partitions // max(1, topics)))
        sizes = _sizes(survey_of(session), works)
        divided: list[Work] = []
        for work in works:
            if parts > 1 or sizes[work.topic] > TASK_BYTES or self._task_rows is not None:
                divided += split(session, work, parts, TASK_BYTES, self._task_rows)
            else:
                divided.append(work)
        full = math.ceil(sum(sizes.values()) / TASK_BYTES)
        if self._task_rows is not None:
            full = len(divided)
        most = max(MOST_TASKS, self._min_partitions, full)
        return [SpanPartition(*some) for some in shared_out(divided, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SpanPartition)
        return read_spans(self._reading, partition.works)

    def _work(self, session: Session, topic: str, last: Position) -> Work | None:
        after, first_index = self._start.place(session, topic)
        to, last_index = self._end.place(session, topic) or (last, -1)
        if (wanted := self._narrowing.span(session, topic, self._disorder_ms)) is not None:
            if wanted.after > after:
                after, first_index = wanted.after, -1
            if wanted.to < to:
                to, last_index = wanted.to, -1
        work = Work(topic, Span(after, min(to, last)), first_index=max(0, first_index))
        if work.span.is_empty:
            return None
        if to >= last:
            return replace(work, last_index=last_index if to == last and last_index >= 0 else None)
        # A chosen end may not be a message, so passing it loses nothing.
        return replace(work, is_exact=False, last_index=last_index if last_index >= 0 else None)


class _Narrowed:
    """If filters are not pushed down, Spark refuses a reader that implements pushFilters instead of
    not calling it. This reader also works without filters: it exposes Spark's own pushFilters,
    which takes none, and this method is called only if filters are pushed down."""

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", lambda reader: ()))

    def __init__(self, narrow: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        self._narrow = narrow

    def __call__(self, filters: Iterable[Any]) -> Iterable[Any]:
        return self._narrow(filters)


class _End:
    """The end of a query that does not end at the last message stored now."""

    def __init__(self, where: Any, time_ms: Any) -> None:
        if where is not None and time_ms is not None:
            raise NotAllowed("endingOffsets and endingTime both set the end: use one of them")
        if where == "earliest":
            raise NotAllowed("endingOffsets is 'earliest': there are no messages before that")
        self._where = None if where == "latest" else where
        self._time_ms = time_ms

    def place(self, session: Session, topic: str) -> Place | None:
        """The last message to read; None for the last one stored."""
        if self._time_ms is not None:
            each = self._time_ms
            when = of_topic(each, topic) if isinstance(each, Mapping) else each
            return None if when is None else Place(session.before_time(topic, int(when)))
        given = None if self._where is None else of_topic(self._where, topic)
        if given is None:
            return None
        place = Place.of(given, "endingOffsets")
        return None if place.position == position_of(MessageId.latest) else place


def _sizes(survey: Survey, works: Sequence[Work]) -> dict[str, float]:
    """Estimated bytes from each start to the end of its topic."""
    starts = {work.topic: work.span.after for work in works}
    behind, samples = survey.behind(starts), survey.samples(starts)
    return {
        topic: behind[topic].entries * samples[topic].size_bytes
        if topic in behind and topic in samples
        else 0.0
        for topic in starts
    }


def _nothing() -> SpanPartition:
    """Spark needs a task even if there is nothing to read."""
    return SpanPartition(Work("nothing", Span(Position(0, 0), Position(0, 0))))
