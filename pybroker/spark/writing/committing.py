"""On the driver: commits the job's own transaction with those of the accepted attempts.

All attempts have finished: everything that they published is stored. The job's transaction contains
the entries that came through the driver and what its owner adds (a marker, acknowledgements). It
commits atomically with the attempts' transactions. So all of a job becomes visible, or nothing.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.base.names import TxnId
from pybroker.client import NotAllowed, Transaction
from pybroker.spark.session import Session
from pybroker.spark.writing.attempt import Written
from pybroker.spark.writing.sending import Sending


def publish_entries(session: Session, written: Sequence[Written], txn: Transaction) -> None:
    """Publishes the entries that came through the driver, in row order. Raises a send's failure."""
    if not written:
        return
    job = written[0].job
    sending = Sending(session, txn, job.schema, job.chunks)
    entries = [entry for each in written for entry in each.entries]
    for entry in sorted(entries, key=lambda entry: entry.part):
        sending.send(entry)
    sending.settle()


# How many attempts' transactions the broker commits atomically with the job's own.
MAX_ATTEMPTS: Final = 1000


def accepted(written: Sequence[Written]) -> list[TxnId]:
    """The transactions of the attempts that Spark accepted."""
    return [each.txn_id for each in written if each.txn_id is not None]


def to_commit(written: Sequence[Written]) -> list[TxnId]:
    """Like `accepted`. Raises NotAllowed if there are too many to commit atomically."""
    attempts = accepted(written)
    if len(attempts) > MAX_ATTEMPTS:
        raise NotAllowed(
            f"{len(attempts)} tasks have published, but only {MAX_ATTEMPTS} can commit together: "
            f"use fewer, larger tasks, for example frame.coalesce({MAX_ATTEMPTS})"
        )
    return attempts
