"""Wrong handling of transactions kept aside."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

from pybroker.base.errors import TransactionCoordinatorNotFound
from pybroker.transaction.buffer.commit_order.commit_order_buffer import CommitOrderBuffer
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.metadata_store import (
    TransactionMetadataStore,
)
from pybroker.transaction.txn_status import TxnAction, TxnStatus


def _hand_on(to: "asyncio.Future[None]", ended: "asyncio.Future[None]") -> None:
    if (error := ended.exception()) is not None:
        to.set_exception(error)
    else:
        to.set_result(None)


@contextmanager
def side_data_trimmed_early() -> Iterator[None]:
    """Waiting messages are deleted when their end is requested, before their copy is durable."""
    right = CommitOrderBuffer.end

    def end(self: CommitOrderBuffer, txn_id: Any, action: Any) -> Any:
        transaction = self.open.get(txn_id)
        if transaction is None or transaction.ending is not None or self._side is None:
            return right(self, txn_id, action)
        loop = asyncio.get_running_loop()
        ending = transaction.ending = loop.create_future()
        self._side.delete(transaction.ranges)
        for cursor in self._side.ledger.cursors.values():
            cursor.write()

        def go_on() -> None:
            transaction.ending = None
            really = right(self, txn_id, action)
            if really is None:
                ending.cancel()
            else:
                really.add_done_callback(partial(_hand_on, ending))

        loop.call_later(0.02, go_on)
        return ending

    with patch.object(CommitOrderBuffer, "end", end):
        yield


@contextmanager
def committed_twice_after_a_crash() -> Iterator[None]:
    """Recovery does not search the topic's log for ends of transactions that are still aside."""

    really = LogOrderBuffer.told_of_those_aside

    def told(self: LogOrderBuffer) -> Any:
        return [], really(self)[1]

    with patch.object(LogOrderBuffer, "told_of_those_aside", told):
        yield


@contextmanager
def commits_swapped_by_recovery() -> Iterator[None]:
    """A coordinator continues with its last decision, although some topics have seen the first."""
    right = TransactionMetadataStore.decided_first

    def last_first(self: TransactionMetadataStore) -> list[TransactionMetadata]:
        decided = [each for each in right(self) if each.status is not TxnStatus.OPEN]
        return decided[::-1] + [each for each in right(self) if each.status is TxnStatus.OPEN]

    with patch.object(TransactionMetadataStore, "decided_first", last_first):
        yield


@contextmanager
def topics_commit_in_an_order_of_their_own() -> Iterator[None]:
    """A loaded topic does not wait to learn the order of decided commits."""
    right = CommitOrderBuffer.loaded

    def loaded(self: CommitOrderBuffer) -> None:
        self._live = True
        for txn_id in list(self.open):
            with suppress(TransactionCoordinatorNotFound):
                if self._outcomes.status(txn_id) is TxnStatus.COMMITTING:
                    self.end(txn_id, TxnAction.COMMIT)
        right(self)

    with patch.object(CommitOrderBuffer, "loaded", loaded):
        yield


BUGS = {
    "commits-swapped-by-recovery": commits_swapped_by_recovery,
    "topics-commit-in-an-order-of-their-own": topics_commit_in_an_order_of_their_own,
    "side-data-trimmed-early": side_data_trimmed_early,
    "committed-twice-after-a-crash": committed_twice_after_a_crash,
}
