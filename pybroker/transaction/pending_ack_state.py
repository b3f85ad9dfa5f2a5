"""Which messages of a subscription open transactions have acknowledged, and who may take which.

Individual: a whole entry, or indexes of a batch; no two transactions may take the same. Cumulative:
one transaction at a time, beyond the mark-delete position, each time further. The two kinds do not
conflict with one another: both take effect.

Taking is what validation does, before anything is written, so that of two acknowledgements in
flight for the same message only one passes; `give_back` undoes it when the write fails.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.errors import TransactionConflict
from pybroker.names import TxnId
from pybroker.transaction.pending_ack_store import AckRecord, EndRecord, PendingAck, Record
from pybroker.transaction.txn_status import TxnAction

_ACKS_PER_RECORD: Final = 500


class AcksOfTransaction:
    """What one transaction took, and its end while that is on the way."""

    __slots__ = ("action", "batch_sizes", "cumulative", "ending", "indexes", "whole")

    def __init__(self) -> None:
        self.whole: dict[Position, None] = {}
        # Of batches acknowledged in part, those that are not, as bits: as large as what said so.
        self.indexes: dict[Position, int] = {}
        self.batch_sizes: dict[Position, int] = {}
        self.cumulative: list[PendingAck] = []  # the last one counts; the others may be in flight
        self.action: TxnAction | None = None
        self.ending: asyncio.Future[None] | None = None

    def positions(self) -> list[Position]:
        """Of the individual ones, in order."""
        return sorted({**self.whole, **dict.fromkeys(self.indexes)})

    def records(self, txn_id: TxnId) -> Iterator[Record]:
        """What brings this about again, in parts: each as it is when it is asked for, for what is
        refused meanwhile is not held any more.
        """
        whole, batches = tuple(self.whole), tuple(self.indexes)
        individual = chain(
            (PendingAck(at) for at in whole if at in self.whole),
            (
                PendingAck(at, self.indexes[at], self.batch_sizes[at])
                for at in batches
                if at in self.indexes
            ),
        )
        while some := list(islice(individual, _ACKS_PER_RECORD)):
            yield AckRecord(txn_id, False, some)
        if self.cumulative:
            yield AckRecord(txn_id, True, [self.cumulative[-1]])


class PendingAckState:
    def __init__(self, cursor: ManagedCursor) -> None:
        self._cursor = cursor
        self.transactions: dict[TxnId, AcksOfTransaction] = {}
        self._whole: dict[tuple[int, int], None] = {}
        self._indexes: dict[tuple[int, int], int] = {}
        self._batch_sizes: dict[tuple[int, int], int] = {}
        self._cumulative_owner: TxnId | None = None

    # What is pending

    @property
    def is_empty(self) -> bool:
        return not (self._whole or self._indexes or self._cumulative_owner is not None)

    @property
    def size(self) -> int:
        return len(self._whole) + len(self._indexes) + len(self.transactions)

    def cumulative(self) -> PendingAck | None:
        owner = self._cumulative_owner
        return None if owner is None else self.transactions[owner].cumulative[-1]

    def first(self) -> Position | None:
        """The first entry of which something is pending."""
        if self._cumulative_owner is not None:
            return self._cursor.mark_delete_position.after
        found = min(chain(self._whole, self._indexes), default=None)
        return None if found is None else Position(*found)

    def is_pending(self, position: tuple[int, int]) -> bool:
        """Nothing of the entry is left to deliver or to acknowledge."""
        if position in self._whole:
            return True
        cumulative = self.cumulative()
        if cumulative is not None and position <= cumulative.position:
            if position < cumulative.position or not cumulative.still_unacked:
                return True
        elif position not in self._indexes:
            return False
        return not self._left(position, self.pending_indexes(position))

    def _left(self, position: tuple[int, int], pending: int) -> int:
        unacked = self._cursor.unacked_indexes(position)
        if unacked is None:
            unacked = (1 << self._batch_size(position)) - 1
        return unacked & ~pending

    def _batch_size(self, position: tuple[int, int]) -> int:
        """Of an entry that is acknowledged in part."""
        if position in self._batch_sizes:
            return self._batch_sizes[position]
        cumulative = self.cumulative()
        assert cumulative is not None
        return cumulative.batch_size

    def pending_indexes(self, position: tuple[int, int]) -> int:
        """Indexes of a batch that transactions acknowledged, as bits."""
        bits = self._acked(position)
        cumulative = self.cumulative()
        if cumulative is not None and position == cumulative.position:
            bits |= cumulative.acked_indexes
        return bits

    def _acked(self, position: tuple[int, int]) -> int:
        """Of them, those that were acknowledged one by one."""
        left = self._indexes.get(position)
        return 0 if left is None else acked_bits(left, self._batch_sizes[position])

    # Individual acknowledgements

    def take(self, txn_id: TxnId, acks: Sequence[PendingAck]) -> None:
        """All or none. Raises TransactionConflict."""
        for count, ack in enumerate(acks):
            if (reason := self._conflict(ack)) is not None:
                self.give_back(txn_id, acks[:count])
                raise TransactionConflict(
                    f"Transaction {txn_id} cannot acknowledge {ack.position}: {reason}"
                )
            self.hold(txn_id, ack)

    def _conflict(self, ack: PendingAck) -> str | None:
        position, bits = ack.position, ack.acked_indexes
        if self._cursor.is_deleted(position):
            return "it is acknowledged already"
        taken = self._acked(position)
        if position in self._whole or (taken and not ack.still_unacked) or taken & bits:
            return "an open transaction has acknowledged it; retry when that one has ended"
        unacked = self._cursor.unacked_indexes(position)
        if unacked is not None and bits & ~unacked:
            return f"of its batch, indexes {bits & ~unacked:#b} are acknowledged already"
        return None

    def hold(self, txn_id: TxnId, ack: PendingAck) -> None:
        """Without a question: validation passed, or the log says so."""
        transaction = self._of(txn_id)
        position, left = ack.position, ack.still_unacked
        if not left:
            transaction.whole[position] = None
            self._whole[position] = None
        elif ack.acked_indexes:
            for indexes in (transaction.indexes, self._indexes):
                indexes[position] = indexes.get(position, left) & left
            transaction.batch_sizes[position] = self._batch_sizes[position] = ack.batch_size

    def give_back(self, txn_id: TxnId, acks: Iterable[PendingAck]) -> None:
        """Idempotent."""
        transaction = self.transactions.get(txn_id)
        if transaction is None:
            return
        for ack in acks:
            if ack.still_unacked:
                self._give_back_indexes(transaction, ack.position, ack.acked_indexes)
            elif ack.position in transaction.whole:
                del transaction.whole[ack.position], self._whole[ack.position]
        self._forget_if_empty(txn_id, transaction)

    def _give_back_indexes(
        self, transaction: AcksOfTransaction, position: Position, bits: int
    ) -> None:
        if position not in transaction.indexes:
            return
        bits &= acked_bits(transaction.indexes[position], transaction.batch_sizes[position])
        _take_back(transaction.indexes, transaction.batch_sizes, position, bits)
        _take_back(self._indexes, self._batch_sizes, position, bits)

    # Cumulative acknowledgements

    def take_cumulative(self, txn_id: TxnId, ack: PendingAck) -> None:
        """Raises TransactionConflict."""
        if (reason := self._cumulative_conflict(txn_id, ack)) is not None:
            raise TransactionConflict(
                f"Transaction {txn_id} cannot acknowledge up to {ack.position}: {reason}"
            )
        self.hold_cumulative(txn_id, ack)

    def _cumulative_conflict(self, txn_id: TxnId, ack: PendingAck) -> str | None:
        mark_delete_position = self._cursor.mark_delete_position
        if ack.position <= mark_delete_position:
            return f"all up to {mark_delete_position} is acknowledged already"
        held = self.cumulative()
        if held is None:
            return None
        if self._cumulative_owner != txn_id:
            return (
                f"transaction {self._cumulative_owner} acknowledges cumulatively; retry when it "
                "has ended"
            )
        return None if _reach(ack) > _reach(held) else f"it did so up to {held.position} before"

    def hold_cumulative(self, txn_id: TxnId, ack: PendingAck) -> None:
        self._of(txn_id).cumulative.append(ack)
        self._cumulative_owner = txn_id

    def give_back_cumulative(self, txn_id: TxnId, ack: PendingAck) -> None:
        """Idempotent."""
        transaction = self.transactions.get(txn_id)
        if transaction is None or ack not in transaction.cumulative:
            return
        transaction.cumulative.remove(ack)
        if not transaction.cumulative:
            self._cumulative_owner = None
        self._forget_if_empty(txn_id, transaction)

    # The end

    def commit(self, txn_id: TxnId) -> None:
        """What it acknowledged is acknowledged. Idempotent."""
        transaction = self.transactions.get(txn_id)
        if transaction is None:
            return
        self.drop(txn_id)
        cursor = self._cursor
        for position in transaction.whole:
            cursor.delete(*position)
        for position, left in transaction.indexes.items():
            size = transaction.batch_sizes[position]
            cursor.delete_batch_indexes(position, ~acked_bits(left, size), size)
        if transaction.cumulative:
            last = transaction.cumulative[-1]
            cursor.mark_delete(last.position, last.still_unacked, last.batch_size)

    def drop(self, txn_id: TxnId) -> list[Position]:
        """It is over; what it held individually is free, in order. Idempotent."""
        transaction = self.transactions.pop(txn_id, None)
        if transaction is None:
            return []
        for position in transaction.whole:
            self._whole.pop(position, None)  # earlier versions' logs may have it held by two
        for position, left in transaction.indexes.items():
            bits = acked_bits(left, transaction.batch_sizes[position])
            _take_back(self._indexes, self._batch_sizes, position, bits)
        if self._cumulative_owner == txn_id:
            self._cumulative_owner = None
        return transaction.positions()

    def records(self) -> Iterator[Record]:
        """What brings all of this about again. Each is true when it is asked for: others may be
        applied, and logged, in between.

        An end that is on its way is in the log, and in force once that has come: nothing more is
        told of what it ends, but in the end the end itself, which fails if the one before it does.
        """
        left = list(self.transactions.items())
        while left:
            ending = []
            for txn_id, transaction in left:
                for record in transaction.records(txn_id):
                    if not self._goes_on(txn_id, transaction):
                        ending.append((txn_id, transaction))
                        break
                    yield record
            left = []
            for txn_id, transaction in ending:
                if self._goes_on(txn_id, transaction):  # its end has failed meanwhile
                    left.append((txn_id, transaction))
                elif self.transactions.get(txn_id) is transaction:
                    assert transaction.action is not None
                    yield EndRecord(txn_id, transaction.action)

    def _goes_on(self, txn_id: TxnId, transaction: AcksOfTransaction) -> bool:
        return transaction.action is None and self.transactions.get(txn_id) is transaction

    def _of(self, txn_id: TxnId) -> AcksOfTransaction:
        transaction = self.transactions.get(txn_id)
        if transaction is None:
            transaction = self.transactions[txn_id] = AcksOfTransaction()
        return transaction

    def _forget_if_empty(self, txn_id: TxnId, transaction: AcksOfTransaction) -> None:
        holds = transaction.whole or transaction.indexes or transaction.cumulative
        if not holds and transaction.ending is None:
            del self.transactions[txn_id]


def _reach(ack: PendingAck) -> tuple[Position, float]:
    """How far a cumulative acknowledgement goes; within a batch, by its number of indexes."""
    return ack.position, ack.acked_indexes.bit_count() if ack.still_unacked else math.inf


def acked_bits(left: int, batch_size: int) -> int:
    """Those that are not left of a batch."""
    return ~left & ((1 << batch_size) - 1)


def _take_back(
    indexes: dict[Any, int], batch_sizes: dict[Any, int], position: tuple[int, int], bits: int
) -> None:
    """These are left again."""
    if position not in indexes:  # as above
        return
    indexes[position] |= bits
    if not acked_bits(indexes[position], batch_sizes[position]):
        del indexes[position], batch_sizes[position]
