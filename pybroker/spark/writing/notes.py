"""Which transactions somebody may have left open: noted on a control topic before they are used.

Whoever publishes for a job may die with a transaction open, which hides from readers what comes
behind it until it times out. So its id is published first, plainly, with that of its job's. Then it
is seen whether the job's is still open, for nobody else would end what begins later. The job's end,
or its successor, first ends the job's and then whatever is noted and not wanted: a zombie has noted
its transaction before that, or finds the job over.
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
    """Whose notes are meant, and where they are."""

    topic: str  # of one with partitions the first, where the chain of markers is
    owner: str  # a query's or a job's id
    batch_id: int = 0

    def place(self, session: Session) -> str:
        return session.partitions(self.topic)[0]

    def note(self, session: Session, job: TxnId, *txn_ids: TxnId) -> None:
        """`job`: that of the job which they belong to."""
        of_batch = {"owner": self.owner, "batch_id": self.batch_id, "job": list(job)}
        place = self.place(session)
        for txn_id in txn_ids:
            note = of_batch | {"transaction": list(txn_id)}
            session.publish(place, json.dumps(note).encode())

    def noted(self, session: Session, after: Position, job: TxnId | None = None) -> Iterator[TxnId]:
        """Of this batch and those before it, which somebody may still have worked on; or those of
        one job."""
        own = self.owner.encode()
        for _, data in session.read_to_end(self.place(session), after):
            if own in data and (txn_id := self._parsed(data, job)) is not None:
                yield txn_id

    def _parsed(self, data: bytes, job: TxnId | None) -> TxnId | None:
        """Anybody may write to the topic, and markers stand there. Earlier versions told no job."""
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
    """Raises InvalidTxnStatus, TransactionNotFound. The topic joins the transaction."""
    session.client.attach_transaction(txn_id).join(topic)


def end(session: Session, txn_id: TxnId) -> None:
    """Aborts the transaction, or waits for the commit that it had begun."""
    txn = session.client.attach_transaction(txn_id)
    try:
        txn.abort()
    except TransactionNotFound:
        return
    except InvalidTxnStatus:
        session.client.attach_transaction(txn_id).commit()


def abort_all(session: Session, txn_ids: Iterable[TxnId]) -> None:
    """As many as can be; the others have committed, or time out."""
    for txn_id in txn_ids:
        with contextlib.suppress(PulsarError):
            session.client.attach_transaction(txn_id).abort()
