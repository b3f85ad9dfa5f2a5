"""`df.write.format("pulsar")` and `writeStream.format("pulsar")`: what Spark calls, and where.

In the planner, a process beside the driver, a writer is created for each job or batch and pickled
for its tasks, which run `write`. `commit` and `abort` run in another process beside the driver; a
stream's writer is created again there, and knows only the batch's number and the tasks' results.
Tasks get the query and the batch from Spark.

A query's control topic holds its markers and notes (pybroker.spark.chain); by default it is
`__spark-query-<its id>`, in the namespace of the topic that is written to. Jobs share
`__spark-jobs` there.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pybroker.base.errors import IncompatibleSchema, MetadataError, NotAllowed
from pybroker.base.names import TopicName
from pybroker.client import BatchingType, CompressionType, SchemaType, TopicSchema
from pybroker.spark.chain import Chain
from pybroker.spark.control_topics import FORMER_JOBS, JOBS, former_of_query, of_query
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.options import Chosen
from pybroker.spark.session import Session
from pybroker.spark.work import Work
from pybroker.spark.writing import avro, json_rows
from pybroker.spark.writing.arrow_writers import StreamArrowWriter, in_batches
from pybroker.spark.writing.attempt import Job, Written, write
from pybroker.spark.writing.batch_end import BatchEnd
from pybroker.spark.writing.entries import Destined, EntryEncoder
from pybroker.spark.writing.job_end import JobEnd
from pybroker.spark.writing.local_times import SESSION_TIME_ZONE
from pybroker.spark.writing.notes import NoteBook
from pybroker.spark.writing.planned import planned
from pybroker.spark.writing.rows import Rows, rows_of

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_COMPRESSIONS: Final = {each.name.lower(): each for each in CompressionType}
_BATCHING_TYPES: Final = {each.name.lower(): each for each in BatchingType}


class Topics(dict[str, Sequence[str]]):
    """Topic -> its partitions; looks up a topic that is not known yet."""

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
    """The options and the DataFrame's schema; raises NotAllowed if they do not fit."""

    def __init__(self, options: Chosen, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise NotAllowed(
                'format("pulsar") appends messages to topics and cannot replace existing ones: use '
                'the mode "append", and for a stream the output mode "append" or "update"'
            )
        self.endpoint = Endpoint.of(options)
        topic = options["topic"]
        self._kind = SchemaType[options["schema.type"].upper()]
        self.rows: Rows = rows_of(schema, None if topic is None else str(TopicName.parse(topic)))
        self.columns = schema
        self._schema = self._schema_of(schema)
        self.control_topic: str | None = options["controlTopic"]
        self._transaction_timeout_ms: int = options["transactionTimeoutMs"]
        self._max_driver_bytes: int = options["maxDriverBytesPerTask"]
        name = options["pulsar.producer.compressionType"]
        self.compression_type = _COMPRESSIONS[name]
        self._chunks: bool = options["pulsar.producer.chunkingEnabled"]
        self._batching_type = _BATCHING_TYPES[options["batchingType"]]
        # Only streams have these options.
        self._checkpoint: str | None = options.get("checkpointLocation")
        self._query_name: str | None = options.get("queryName")

    def begin(self) -> Job:
        """Begins a new job, with its own notes; a stream's tasks use those of their batch."""
        session = Session(self.endpoint.connect())
        try:
            txn = session.client.new_transaction(self._transaction_timeout_ms)
            by_tasks = session.client.commits_together()
            self._register(session)
        finally:
            session.close()
        return Job(
            self.endpoint.connect,
            txn.txn_id,
            NoteBook.of_job(self.beside(JOBS), str(uuid.uuid4()), self._former(FORMER_JOBS)),
            self._transaction_timeout_ms,
            self._max_driver_bytes if by_tasks else None,
            self._schema,
            self._chunks,
        )

    def _schema_of(self, schema: StructType) -> TopicSchema | None:
        if self.rows.is_raw:
            return None
        return TopicSchema(self._kind, avro.schema_of(schema, self.rows.values), "Row")

    def _register(self, session: Session) -> None:
        """Registers the schema before anything is sent. Raises IncompatibleSchema."""
        if self._schema is None or self.rows.topic is None:
            return
        try:
            session.producer(session.partitions(self.rows.topic)[0], self._schema)
        except IncompatibleSchema as error:
            columns = ", ".join(self.rows.values)
            raise IncompatibleSchema(
                f"The columns {columns} are incompatible with the schema of {self.rows.topic}, and "
                f"nothing was written: {error}. Change or cast the columns, or the namespace's "
                "schema compatibility strategy"
            ) from error

    def beside(self, local_name: str) -> str:
        """The chosen control topic, or the default one in the topic's namespace."""
        if self.control_topic is not None:
            return self.control_topic
        if self.rows.topic is None:
            raise NotAllowed("The option controlTopic is required with a column __topic")
        return f"persistent://{TopicName.parse(self.rows.topic).namespace_name}/{local_name}"

    def notes_of(self, query_id: str, batch_id: int) -> NoteBook:
        former = self._former(former_of_query(query_id))
        return NoteBook(self.beside(of_query(query_id)), query_id, batch_id, former=former)

    def _former(self, local_name: str) -> str:
        """A topic that the user has chosen never had another name."""
        return "" if self.control_topic else self.beside(local_name)

    def checkpoint(self, all_checkpoints: str | None) -> str:
        """The stream's checkpoint; `all_checkpoints` is the configured folder of named queries'
        checkpoints. A query without a name has a new checkpoint there for each run."""
        if self._checkpoint is not None:
            return self._checkpoint
        known = all_checkpoints is not None and self._query_name is not None
        return f"{all_checkpoints}/{self._query_name}" if known else ""

    def encode(self, batches: Iterable[pa.RecordBatch], part: int, turn: int) -> Iterator[Destined]:
        encoder = EntryEncoder(
            Topics(self.endpoint), turn, self.compression_type, self._batching_type
        )
        task = TaskContext.get()
        time_zone = None if task is None else task.getLocalProperty(SESSION_TIME_ZONE)
        for batch in batches:
            rows = self.rows.columns(batch, part, self._values(batch), time_zone)
            yield from encoder.encode(rows)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.rows.is_raw:
            return batch.column(self.rows.values[0])
        encode = json_rows.encode if self._kind is SchemaType.JSON else avro.encode
        return encode(batch, self.columns, self.rows.values)


class PulsarBatchWriter(DataSourceArrowWriter):
    """The writer of one job: in the planner, in its tasks, and at its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._job = plan.begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        part = _task().partitionId()
        return write(self._job, self._plan.encode(iterator, part, 0))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        JobEnd(self._job, _written(messages)).commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        JobEnd(self._job, _written(messages)).abort()


class PulsarStreamWriter(StreamArrowWriter):
    """The writer of one micro-batch, in the planner and its tasks; the batch's end has another."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._job: Job | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The job begins when this is pickled for the tasks. Nothing else distinguishes the planner
        from the process of the batch's end, and each transaction that is begun must be ended."""
        if self._job is None:
            self._job = self._plan.begin()
        return self.__dict__

    @property
    def job(self) -> Job:
        assert self._job is not None
        return self._job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task()
        query_id, batch_id = _property(task, _QUERY_ID), int(_property(task, _BATCH_ID))
        job = self.job._replace(
            notes=self._plan.notes_of(query_id, batch_id),
            checkpoint=self._plan.checkpoint(task.getLocalProperty(_CHECKPOINTS)),
        )
        batches = in_batches(iterator, self._plan.columns)
        return write(job, self._plan.encode(batches, task.partitionId(), batch_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._end(_written(messages), batchId).commit()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if written := _written(messages):
            self._end(written, batchId).abort()

    def _end(self, written: Sequence[Written], batch_id: int) -> BatchEnd:
        job = written[0].job
        query_id = job.notes.owner
        chain = Chain(job.notes.topic, query_id, job.notes.former)
        return BatchEnd(job, chain, _work(job, query_id, batch_id), written)


def _work(job: Job, query_id: str, batch_id: int) -> Work:
    found = planned(job.checkpoint, query_id, batch_id) if job.checkpoint else None
    if found is None:
        return Work(query_id, batch_id, {})
    return Work(query_id, batch_id, {}, found.offsets, found.files)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The results of accepted tasks; those of others are None."""
    return [message for message in messages if isinstance(message, Written)]


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None
    return task


def _property(task: TaskContext, name: str) -> str:
    value = task.getLocalProperty(name)
    if value is None:
        raise MetadataError(f"Spark does not tell this task its {name}: upgrade PySpark")
    return value
