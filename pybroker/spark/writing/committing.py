"""On the driver: the job's own transaction, and with it those of the accepted attempts.

The attempts' answers are in: everything that they published is stored. The job's transaction takes
what came through the driver, and whatever its owner puts into it (a marker, acknowledgements); one
decision commits it and the attempts'. So all of a job becomes visible, or nothing of it.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.base.names import TxnId
from pybroker.client import NotAllowed, Transaction
from pybroker.spark.session import Session
from pybroker.spark.writing.attempt import Written
from pybroker.spark.writing.sending import Sending


def publish_entries(session: Session, written: Sequence[Written], txn: Transaction) -> None:
    """What came through the driver, in the rows' order. Raises what a send met."""
    if not written:
        return
    job = written[0].job
    sending = Sending(session, txn, job.schema, job.chunks)
    entries = [entry for each in written for entry in each.entries]
    for entry in sorted(entries, key=lambda entry: entry.part):
        sending.send(entry)
    sending.settle()


# What the broker commits by one decision, beside the job's own.
MAX_ATTEMPTS: Final = 1000


def accepted(written: Sequence[Written]) -> list[TxnId]:
    """The attempts' transactions that Spark has accepted."""
    return [each.txn_id for each in written if each.txn_id is not None]


def to_commit(written: Sequence[Written]) -> list[TxnId]:
    """As `accepted`. Raises NotAllowed for more than one decision can commit."""
    attempts = accepted(written)
    if len(attempts) > MAX_ATTEMPTS:
        raise NotAllowed(
            f"{len(attempts)} tasks have published, and {MAX_ATTEMPTS} can commit together: write "
            f"with fewer, larger tasks, as frame.coalesce({MAX_ATTEMPTS}) makes them"
        )
    return attempts
