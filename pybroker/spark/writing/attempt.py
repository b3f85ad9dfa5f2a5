"""What one attempt of one task does with its entries.

Spark may run a task again, or twice at once, or go on with it on a machine that is given up; of all
attempts of a task it accepts one. So no attempt touches the job's transaction. Few bytes travel to
the driver, in the attempt's result. Many are published in a transaction of the attempt's own, begun
beside the job's; the driver commits the accepted attempts' by the same decision as the job's, and
those that nobody accepted are aborted, or time out: what they wrote was never seen.

A broker that cannot commit several transactions by one decision (Apache Pulsar) gets everything
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

# Of each: the many small tasks of a job need no connections, and the driver stays small.
DRIVER_BYTES_OF_A_TASK: Final = 64 * 1024


class Job(NamedTuple):
    """What attempts know of their job; travels to executors."""

    connect: Callable[[], Client]
    # The job's transaction, which attempts begin theirs beside.
    txn_id: TxnId
    notes: NoteBook
    transaction_timeout_ms: int
    # A task with no more than this leaves its entries to the driver; None: whatever it has.
    max_driver_bytes: int | None
    # What the messages are; None: bytes.
    schema: TopicSchema | None = None
    # A message that is too large for an entry goes in several.
    chunks: bool = True


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """An attempt's result, for the driver."""

    job: Job
    entries: tuple[Destined, ...] = ()  # which the driver is to publish
    txn_id: TxnId | None = None  # in which the attempt has published
    messages: int = 0


def write(job: Job, entries: Iterable[Destined]) -> Written:
    """Raises what the broker refused; then nothing of it will be seen."""
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
            job.notes.note(session, job.txn_id, txn.txn_id, job.txn_id)
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
