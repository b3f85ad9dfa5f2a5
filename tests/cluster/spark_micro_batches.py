"""Drives a query's source and sink as Spark does, in threads of this process: for each micro-batch
a plan, tasks with up to four attempts, and the commit.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from pybroker.base.errors import PulsarError
from pybroker.spark.chain import Chain
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading.stream import PulsarStreamReader, SpanPartition
from pybroker.spark.work import Work
from pybroker.spark.writing.attempt import Job, Written, write
from pybroker.spark.writing.batch_end import BatchEnd, Step
from pybroker.spark.writing.sink import Plan

QUERY: Final = "query"
ATTEMPTS: Final = 4  # spark.task.maxFailures
# (batch, step)
Happening = Callable[[int, str], None]


class MicroBatches:
    """Copies the values of one topic to another."""

    def __init__(self, service_url: str, source: str, sink: str, happens: Happening) -> None:
        """`happens` is called at "planned", "read" (in a task), "written" (by a task), and at the
        steps of the commit.
        """
        given = {
            "service.url": service_url,
            "topic": source,
            "startingOffsets": "earliest",
            "maxEntriesPerTrigger": "60",
        }
        whole = default_schema()
        shape = Shape.of(StructType([whole["value"]]))
        self._reader = PulsarStreamReader(chosen(given, Mode.READ_STREAM), shape)
        named = {"service.url": service_url, "topic": sink, "maxDriverBytesPerTask": "200"}
        columns = StructType([StructField("value", BinaryType())])
        self._plan = Plan(chosen(named, Mode.WRITE_STREAM), columns, False)
        self._happens = happens
        self.failed_attempts = 0

    def run(self) -> int:
        """Run batches until nothing is left; returns their number."""
        start, batch_id = self._reader.initialOffset(), 0
        while (
            end := self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        ) != start:
            self._happens(batch_id, "planned")
            self._batch(batch_id, self._reader.partitions(start, end))
            self._reader.commit(end)
            start, batch_id = end, batch_id + 1
        self._reader.stop()
        return batch_id

    def _batch(self, batch_id: int, partitions: Iterable[Any]) -> None:
        job = self._plan.begin()
        noting = job._replace(notes=self._plan.notes_of(QUERY, batch_id))
        chain = Chain(noting.notes.topic, QUERY, noting.notes.former)
        with ThreadPoolExecutor(2) as executors:
            tasks = [
                executors.submit(self._task, noting, part, partition, batch_id)
                for part, partition in enumerate(partitions)
            ]
            written = [task.result() for task in tasks]

        def step(reached: Step, work: Work) -> None:
            self._happens(batch_id, reached.value)

        BatchEnd(noting, chain, Work(QUERY, batch_id, {}), written, step).commit()

    def _task(self, job: Job, part: int, partition: SpanPartition, batch_id: int) -> Written:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                rows = self._rows(partition, batch_id)
                written = write(job, self._plan.encode(rows, part, batch_id))
                self._happens(batch_id, "written")
                return written
            except PulsarError:
                self.failed_attempts += 1
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def _rows(self, partition: SpanPartition, batch_id: int) -> Iterator[pa.RecordBatch]:
        for batch in self._reader.read(partition):
            for at in range(0, batch.num_rows, 10):
                yield batch.slice(at, 10)
                self._happens(batch_id, "read")
