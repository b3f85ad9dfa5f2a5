"""A query's progress in readable form: rows, bytes, rates, backlog, the batch's transaction.

    progress.show(spark, service_url="pulsar://localhost:6650")

prints a line for each batch of each query of the session:

    ledger batch 12: 1,000,000 rows, ~100.0 MB, in 8.1 s: 123,457 rows/s; behind: ~9,000,000
    messages, ~900.0 MB in 4 partitions, up to 72 s old; transaction (3,17)

The line is made from Spark's StreamingQueryProgress, in which a source of this format reports each
partition's end and backlog as `latestOffset`: see pybroker.spark.reading.backlog. A sink cannot
report anything to Spark, so a transaction's id is read from the marker that the batch left on the
query's control topic.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName, TxnId
from pybroker.spark.control_topics import exists, former_of_query, of_query
from pybroker.spark.endpoint import connecting
from pybroker.spark.marker import Marker
from pybroker.spark.offsets import EARLIEST, Position
from pybroker.spark.reading.backlog import Backlog
from pybroker.spark.session import Connect, Session, connect

log = logging.getLogger("pybroker.spark")

# How many batches' transactions are kept: progress arrives soon after a batch is committed.
_MOST_FOUND: Final = 10_000
_UNITS: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, slots=True)
class BatchProgress:
    query_id: str
    name: str  # the query's, or the beginning of its id
    batch_id: int
    rows: int
    seconds: float
    input_rows_per_second: float  # the rate of arrival
    processed_rows_per_second: float
    # For each partition of this format's sources; empty with PySpark 4.0 and 4.1.
    backlog: Mapping[str, Backlog] = field(default_factory=dict)
    transaction: TxnId | None = None

    @classmethod
    def of(cls, progress: Mapping[str, Any], transaction: TxnId | None = None) -> Self:
        """`progress` is Spark's, as JSON."""
        sources = progress["sources"]
        return cls(
            progress["id"],
            progress["name"] or progress["id"][:8],
            progress["batchId"],
            sum(source["numInputRows"] for source in sources),
            progress["durationMs"].get("triggerExecution", 0) / 1000,
            _total(sources, "inputRowsPerSecond"),
            _total(sources, "processedRowsPerSecond"),
            {topic: each for source in sources for topic, each in _reported(source).items()},
            transaction,
        )

    @property
    def size_bytes(self) -> int:
        """The batch's size, estimated from the sampled entries."""
        looked_at = [each.message_bytes for each in self.backlog.values() if each.message_bytes]
        return round(self.rows * sum(looked_at) / len(looked_at)) if looked_at else 0

    @property
    def messages_behind(self) -> int:
        return sum(each.messages for each in self.backlog.values())

    @property
    def bytes_behind(self) -> int:
        return sum(each.size_bytes for each in self.backlog.values())

    @property
    def oldest_behind_s(self) -> float:
        """The age of the oldest message behind the batch; 0 if there is none or it is unknown."""
        return max((each.age_ms for each in self.backlog.values()), default=0) / 1000

    def line(self) -> str:
        parts = [f"{self.name} batch {self.batch_id}: {self.rows:,} rows"]
        if self.size_bytes:
            parts.append(f", ~{_size(self.size_bytes)},")
        parts.append(f" in {self.seconds:.1f} s: {self.processed_rows_per_second:,.0f} rows/s")
        if self.backlog:
            behind = f"~{self.messages_behind:,} messages, ~{_size(self.bytes_behind)}"
            waiting = sum(each.entries > 0 for each in self.backlog.values())
            parts.append(
                f"; behind: {behind} in {waiting} partitions" if waiting else "; caught up"
            )
            if self.oldest_behind_s:
                parts.append(f", up to {self.oldest_behind_s:,.0f} s old")
        if self.transaction is not None:
            parts.append(f"; transaction {self.transaction}")
        return "".join(parts)


def _total(sources: Sequence[Mapping[str, Any]], rate: str) -> float:
    """Spark omits a rate, or writes NaN, if no time has passed."""
    rates = [float(source.get(rate) or 0.0) for source in sources]
    return sum(each for each in rates if each == each and each != float("inf"))


def _reported(source: Mapping[str, Any]) -> dict[str, Backlog]:
    """The backlog that a source of this format reported; empty for other sources."""
    try:
        latest = source["latestOffset"]
        parsed = json.loads(latest) if isinstance(latest, str) else latest
        return {topic: Backlog.from_json(each) for topic, each in parsed.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _size(size_bytes: int) -> str:
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes} bytes"


class Transactions:
    """Finds the transaction that committed a batch by the markers on a query's control topic."""

    def __init__(
        self, service_url: str, control_topic: str | None = None, connect: Connect = connect
    ) -> None:
        """Without `control_topic`: the sink's default one, in the namespace public/default."""
        self._service_url = service_url
        self._control_topic = control_topic
        self._connect = connect
        self._session: Session | None = None
        self._read_up_to: dict[str, Position] = {}
        self._found: OrderedDict[tuple[str, int], TxnId] = OrderedDict()

    def of(self, query_id: str, batch_id: int) -> TxnId | None:
        """None if the batch has no marker, or the broker does not answer."""
        if (query_id, batch_id) not in self._found:
            try:
                self._read(query_id)
            except PulsarError as error:
                log.info("Cannot tell which transaction committed batch %d: %s", batch_id, error)
                self.close()
        return self._found.get((query_id, batch_id))

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _read(self, query_id: str) -> None:
        if self._session is None:
            self._session = Session(self._connect(self._service_url))
        topic = self._topic(self._session, query_id)
        if topic is None:
            return
        after = self._read_up_to.get(topic, EARLIEST)
        for position, data in self._session.read_to_end(topic, after):
            self._read_up_to[topic] = position
            for marker in _markers(data):
                self._found[marker.query_id, marker.batch_id] = marker.txn_id
                if len(self._found) > _MOST_FOUND:
                    self._found.popitem(last=False)

    def _topic(self, session: Session, query_id: str) -> str | None:
        """None if the topic does not exist: reading it would create it."""
        names = of_query(query_id), former_of_query(query_id)
        for name in (self._control_topic,) if self._control_topic else names:
            topic = str(TopicName.parse(name))
            if exists(session, topic):
                return session.partitions(topic, create=False)[0]
        return None


def _markers(data: bytes) -> Iterator[Marker]:
    """Skips the notes of attempts between the markers."""
    try:
        marker = Marker.from_bytes(data)
    except ValueError:
        return
    if not marker.is_opening:
        yield marker


class ProgressListener(StreamingQueryListener):
    """Passes each batch that had rows to `say`."""

    def __init__(
        self, say: Callable[[BatchProgress], None], transactions: Transactions | None = None
    ) -> None:
        self._say = say
        self._transactions = transactions

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        batch = BatchProgress.of(json.loads(event.progress.json))
        if not batch.rows:
            return
        if self._transactions is not None:
            found = self._transactions.of(batch.query_id, batch.batch_id)
            batch = BatchProgress.of(json.loads(event.progress.json), found)
        self._say(batch)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._transactions is not None:
            self._transactions.close()


def show(
    spark: SparkSession,
    service_url: str | None = None,
    control_topic: str | None = None,
    say: Callable[[str], None] = print,
    client_options: Mapping[str, str] | None = None,
) -> ProgressListener:
    """Prints a line for each batch of each query of `spark`, already started or not.

    With `service_url` the line includes the batch's transaction, read from `control_topic` or, by
    default, from where writeStream keeps its markers; `client_options` are as in exactly_once.
    `spark.streams.removeListener(…)` with the returned listener stops it.
    """
    transactions = None
    if service_url is not None:
        connect = connecting(service_url, client_options)
        transactions = Transactions(service_url, control_topic, connect)
    listener = ProgressListener(lambda batch: say(batch.line()), transactions)
    spark.streams.addListener(listener)
    return listener
