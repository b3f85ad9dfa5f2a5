"""`df.write.format("pulsar")` and `writeStream.format("pulsar")`: what Spark calls, and where.

In the planner, a process beside the driver, a writer is made for each job and pickled, twice, for
its tasks: then, and only then, the job's transaction is begun. Tasks run `write`. `commit` and
`abort` run in another process beside the driver; that of a stream is a writer made anew, which
knows the batch's number, and everything else from the tasks' results. Tasks know the query and the
batch from Spark.

A query's control topic holds its markers and notes (pybroker.spark.chain); by default it is
`spark-query-<its id>`, beside the topic that is written to. Jobs share `spark-jobs`.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pybroker.client import CompressionType
from pybroker.errors import MetadataError, NotAllowed
from pybroker.names import TopicName
from pybroker.spark.chain import Chain
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import Chosen
from pybroker.spark.session import Session
from pybroker.spark.work import Work
from pybroker.spark.writing.arrow_writers import StreamArrowWriter, in_batches
from pybroker.spark.writing.attempt import Job, Written, write
from pybroker.spark.writing.batch_end import BatchEnd
from pybroker.spark.writing.entries import Destined, EntryEncoder
from pybroker.spark.writing.job_end import JobEnd
from pybroker.spark.writing.notes import NoteBook
from pybroker.spark.writing.rows import Rows, rows_of

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class Topics(dict[str, Sequence[str]]):
    """Topic -> its partitions; one that is not known yet is asked for."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    def __missing__(self, topic: str) -> Sequence[str]:
        session = Session(self._endpoint.connect())
        try:
            partitions = self[topic] = session.partitions(topic)
        finally:
            session.close()
        return partitions


class Plan:
    """What the options and the DataFrame's schema say; raises NotAllowed where they do not fit."""

    def __init__(self, options: Chosen, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise NotAllowed(
                'format("pulsar") adds messages to topics and cannot replace what is there: use '
                'the mode "append", and for a stream the output mode "append" or "update"'
            )
        self.endpoint = Endpoint.of(options)
        topic = options["topic"]
        self.rows: Rows = rows_of(schema, None if topic is None else str(TopicName.parse(topic)))
        self.control_topic: str | None = options["controlTopic"]
        self._transaction_timeout_ms: int = options["transactionTimeoutMs"]
        self._max_driver_bytes: int = options["maxDriverBytesPerTask"]
        name = options["pulsar.producer.compressionType"]
        self.compression_type = CompressionType[name.upper()]

    def begin(self) -> Job:
        """A job, whose notes are of nobody yet."""
        session = Session(self.endpoint.connect())
        try:
            txn = session.client.new_transaction(self._transaction_timeout_ms)
            by_tasks = session.client.commits_together()
        finally:
            session.close()
        return Job(
            self.endpoint.connect,
            txn.txn_id,
            NoteBook(self.beside("spark-jobs"), str(uuid.uuid4())),
            self._transaction_timeout_ms,
            self._max_driver_bytes if by_tasks else None,
        )

    def beside(self, local_name: str) -> str:
        """The control topic that was chosen, or one in the namespace of the topic."""
        if self.control_topic is not None:
            return self.control_topic
        if self.rows.topic is None:
            raise NotAllowed("With a column of topics the option controlTopic is needed")
        return f"persistent://{TopicName.parse(self.rows.topic).namespace_name}/{local_name}"

    def encode(self, batches: Iterable[pa.RecordBatch], part: int, turn: int) -> Iterator[Destined]:
        encoder = EntryEncoder(Topics(self.endpoint), turn, self.compression_type)
        for batch in batches:
            value = batch.column(self.rows.values[0])
            yield from encoder.encode(self.rows.columns(batch, part, value))


class _Writer:
    """Of one job; picklable."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._job: Job | None = None

    def __getstate__(self) -> dict[str, Any]:
        """It is on its way to the tasks: the job begins."""
        if self._job is None:
            self._job = self._plan.begin()
        return self.__dict__

    @property
    def job(self) -> Job:
        assert self._job is not None
        return self._job


class PulsarBatchWriter(_Writer, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        part = _task().partitionId()
        return write(self.job, self._plan.encode(iterator, part, 0))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        JobEnd(self.job, _written(messages)).commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        JobEnd(self.job, _written(messages)).abort()


class PulsarStreamWriter(_Writer, StreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query_id, batch_id = _property(task, _QUERY_ID), int(_property(task, _BATCH_ID))
        control = self._plan.beside(f"spark-query-{query_id}")
        job = self.job._replace(notes=NoteBook(control, query_id, batch_id))
        batches = in_batches(iterator)
        return write(job, self._plan.encode(batches, task.partitionId(), batch_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._end(_written(messages), batchId).commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if written := _written(messages):
            self._end(written, batchId).abort()

    def _end(self, written: Sequence[Written], batch_id: int) -> BatchEnd:
        job = written[0].job
        query_id = job.notes.owner
        chain = Chain(job.notes.topic, query_id)
        return BatchEnd(job, chain, Work(query_id, batch_id, {}), written)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Of the tasks that were accepted; the others' are None."""
    return [message for message in messages if isinstance(message, Written)]


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _property(task: TaskContext, name: str) -> str:
    value = task.getLocalProperty(name)
    if value is None:
        raise MetadataError(f"Spark does not tell this task its {name}: this PySpark is too old")
    return value
