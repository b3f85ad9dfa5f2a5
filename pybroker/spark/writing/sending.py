"""Sends entries in one transaction, a limited number of bytes at a time, and awaits all answers."""

import threading
from typing import Final

from pybroker.client import TopicSchema, Transaction
from pybroker.spark.session import Session
from pybroker.spark.writing.entries import Destined

_MAX_BYTES_ON_THEIR_WAY: Final = 32 * 1024 * 1024


class Sending:
    """Used by one thread. The broker names the producers, differently for each session, so that
    deduplication never takes a rerun's messages for the aborted ones."""

    def __init__(
        self,
        session: Session,
        txn: Transaction,
        schema: TopicSchema | None = None,
        chunks: bool = True,
    ) -> None:
        self._session = session
        self._txn = txn
        self._schema = schema
        self._chunks = chunks
        self._failure: BaseException | None = None
        self._bytes = 0
        self._answered = threading.Condition()

    def send(self, entry: Destined) -> None:
        """Waits while too much is in flight. `settle` raises failures."""
        size = len(entry.batch.payload)
        with self._answered:
            self._answered.wait_for(lambda: self._bytes < _MAX_BYTES_ON_THEIR_WAY)
            self._bytes += size

        def answered(result: object, message_id: object) -> None:
            with self._answered:
                if isinstance(result, BaseException):
                    self._failure = self._failure or result
                self._bytes -= size
                self._answered.notify()

        producer = self._session.producer(entry.topic, self._schema, self._chunks)
        producer.send_batch_async(entry.batch, answered, txn=self._txn)

    def settle(self) -> None:
        """Everything is stored when this returns. Raises a send's failure."""
        with self._answered:
            self._answered.wait_for(lambda: self._bytes == 0)
        if self._failure is not None:
            raise self._failure
