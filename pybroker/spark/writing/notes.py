"""Records possibly open transactions on a control topic before they are used.

A writer may die with a transaction open, which hides later messages from readers until it times
out. So the transaction's id is published first, outside the transaction, with its job's id. Then
the writer checks that the job's transaction is still open, because nobody would end a transaction
that is noted later. The job's end, or its successor, first ends the job's transaction and then all
noted transactions that are not wanted: a zombie has either noted its own before that, or finds that
the job has ended.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pybroker.base.errors import InvalidTxnStatus, PulsarError, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.spark.offsets import Position
from pybroker.spark.session import Session


class NoteBook(NamedTuple):
    """The owner of the notes, and where they are."""

    topic: str  # the first partition of a partitioned one, like the chain of markers
    owner: str  # a query's or a job's id
    batch_id: int = 0

    def place(self, session: Session) -> str:
        return session.partitions(self.topic)[0]

    def note(self, session: Session, job: TxnId, *txn_ids: TxnId) -> None:
        """`job`: the transaction of the job to which they belong."""
        of_batch = {"owner": self.owner, "batch_id": self.batch_id, "job": list(job)}
        place = self.place(session)
        for txn_id in txn_ids:
            note = of_batch | {"transaction": list(txn_id)}
            session.publish(place, json.dumps(note).encode())

    def noted(self, session: Session, after: Position, job: TxnId | None = None) -> Iterator[TxnId]:
        """The transactions noted for this batch and earlier ones, which may still be running, or
        only those of one job."""
        own = self.owner.encode()
        for _, data in session.read_to_end(self.place(session), after):
            if own in data and (txn_id := self._parsed(data, job)) is not None:
                yield txn_id

    def _parsed(self, data: bytes, job: TxnId | None) -> TxnId | None:
        """None for anything else: the topic contains markers, and anyone may write to it. Notes of
        earlier versions name no job."""
        try:
            note = json.loads(data)
            if note["owner"] != self.owner or int(note["batch_id"]) > self.batch_id:
                return None
            if job is not None and note.get("job") != list(job):
                return None
            most, least = map(int, note["transaction"])
        except (ValueError, KeyError, TypeError):
            return None
        return TxnId(most, least)


def require_open(session: Session, txn_id: TxnId, topic: str) -> None:
    """Adds `topic` to the transaction, which must be open. Raises InvalidTxnStatus,
    TransactionNotFound."""
    session.client.attach_transaction(txn_id).join(topic)


def end(session: Session, txn_id: TxnId) -> None:
    """Aborts the transaction, or waits for a commit in progress."""
    txn = session.client.attach_transaction(txn_id)
    try:
        txn.abort()
    except TransactionNotFound:
        return
    except InvalidTxnStatus:
        session.client.attach_transaction(txn_id).commit()


def abort_all(session: Session, txn_ids: Iterable[TxnId]) -> None:
    """Aborts as many as possible; the others have committed, or time out."""
    for txn_id in txn_ids:
        with contextlib.suppress(PulsarError):
            session.client.attach_transaction(txn_id).abort()
