"""What one attempt of one task does with its entries.

Spark may run a task again, or twice at once, or continue it on a machine considered lost; it
accepts one attempt of each task. So no attempt uses the job's transaction. An attempt with few
bytes returns its entries to the driver in its result. With more, it publishes them in a transaction
of its own, begun `beside` the job's; the driver commits the transactions of accepted attempts
atomically with the job's. The others are aborted or time out: what they wrote was never visible.

With a broker that cannot commit several transactions atomically (Apache Pulsar) everything goes
through the driver.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.client import Client, TopicSchema
from pybroker.spark.loaded import keep_what_is_loaded
from pybroker.spark.session import Session
from pybroker.spark.writing.entries import Destined
from pybroker.spark.writing.notes import NoteBook, require_open
from pybroker.spark.writing.sending import Sending

# Per task: the many small tasks of a job need no connections, and the driver stays small.
DRIVER_BYTES_OF_A_TASK: Final = 64 * 1024


class Job(NamedTuple):
    """The job, as its attempts know it; pickled to executors."""

    connect: Callable[[], Client]
    # The job's transaction; attempts begin theirs `beside` it.
    txn_id: TxnId
    notes: NoteBook
    transaction_timeout_ms: int
    # A task with at most this many bytes leaves its entries to the driver; None: no limit.
    max_driver_bytes: int | None
    # The schema of the messages; None: bytes.
    schema: TopicSchema | None = None
    # Whether a message too large for an entry is split.
    chunks: bool = True
    # The checkpoint of a stream, as Spark was given it; empty if it is unknown.
    checkpoint: str = ""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """An attempt's result, for the driver."""

    job: Job
    entries: tuple[Destined, ...] = ()  # for the driver to publish
    txn_id: TxnId | None = None  # in which the attempt has published
    messages: int = 0


def write(job: Job, entries: Iterable[Destined]) -> Written:
    """Raises the broker's refusal; then nothing of the attempt becomes visible."""
    keep_what_is_loaded()
    few: list[Destined] = []
    size = 0
    rest = iter(entries)
    for entry in rest:
        few.append(entry)
        size += len(entry.batch.payload)
        if job.max_driver_bytes is not None and size > job.max_driver_bytes:
            return _publish(job, chain(few, rest))
    return Written(job, tuple(few), None, sum(entry.batch.message_count for entry in few))


def _publish(job: Job, entries: Iterable[Destined]) -> Written:
    session = Session(job.connect())
    try:
        txn = session.client.new_transaction(job.transaction_timeout_ms, beside=job.txn_id)
        try:
            timeout_ms = job.transaction_timeout_ms
            job.notes.note(session, job.txn_id, timeout_ms, txn.txn_id, job.txn_id)
            require_open(session, job.txn_id, job.notes.place(session))
            messages = 0
            sending = Sending(session, txn, job.schema, job.chunks)
            for entry in entries:
                sending.send(entry)
                messages += entry.batch.message_count
            sending.settle()
        except BaseException:
            with contextlib.suppress(PulsarError):
                txn.abort()
            raise
        return Written(job, (), txn.txn_id, messages)
    finally:
        session.close()
