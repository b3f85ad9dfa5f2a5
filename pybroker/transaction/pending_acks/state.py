"""The messages of a subscription that open transactions have acknowledged, and may acknowledge.

Individual: a whole entry, or indexes of a batch. Two transactions cannot hold the same messages,
and held messages are not delivered until the transaction has ended.

Cumulative: one transaction at a time, beyond the mark-delete position, each time further. The
acknowledgement spares messages that its consumer did not receive, so it never covers a message that
another transaction held back. Messages held cumulatively are still delivered to the next consumer,
as in Apache Pulsar: if that consumer began after them, its own cumulative acknowledgement would
cover them, and they would be lost if the first transaction aborts. Acknowledging them in another
transaction conflicts until the first one has ended.

Validation takes the messages before the record is written, so of two acknowledgements in flight for
the same message only one passes. `give_back` undoes this if the write fails.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.base.runtime import do_nothing
from pybroker.transaction.pending_acks.acks_of_transaction import AcksOfTransaction
from pybroker.transaction.pending_acks.covered import HELD_BY_ANOTHER, Covered
from pybroker.transaction.pending_acks.records import (
    ALL_INDEXES,
    HELD_WHOLE,
    NOTHING_HELD,
    AckRecord,
    Conflict,
    EndRecord,
    Held,
    PendingAck,
    Record,
    acked_bits,
    indexes_in_words,
)
from pybroker.transaction.txn_status import TxnAction

MOST_SPARED: Final = 10_000  # entries, by one cumulative acknowledgement
_HELD: Final = "an open transaction has acknowledged it; retry when it has ended"


class PendingAckState:
    def __init__(self, cursor: ManagedCursor) -> None:
        self._cursor = cursor
        self.transactions: dict[TxnId, AcksOfTransaction] = {}
        self._whole: dict[tuple[int, int], None] = {}
        self._indexes: dict[tuple[int, int], int] = {}
        self._batch_sizes: dict[tuple[int, int], int] = {}
        self._cumulative_owner: TxnId | None = None
        # Called before a committed cumulative acknowledgement moves the cursor.
        self.on_cumulative: Callable[[AckRecord], object] = do_nothing

    # Pending messages

    @property
    def is_empty(self) -> bool:
        return not (self._whole or self._indexes or self._cumulative_owner is not None)

    @property
    def size(self) -> int:
        return len(self._whole) + len(self._indexes) + len(self.transactions)

    def cumulative_record(self) -> AckRecord | None:
        owner = self._cumulative_owner
        return None if owner is None else self.transactions[owner].cumulative[-1]

    def cumulative(self) -> PendingAck | None:
        return None if (record := self.cumulative_record()) is None else record.last

    def first(self) -> Position | None:
        """The first entry of which at least a part is pending."""
        if self._cumulative_owner is not None:
            return self._cursor.mark_delete_position.after
        found = min(chain(self._whole, self._indexes), default=None)
        return None if found is None else Position(*found)

    @property
    def holds_singly(self) -> bool:
        return bool(self._whole or self._indexes)

    def is_pending(self, position: tuple[int, int]) -> bool:
        """Whether transactions individually hold all unacknowledged messages of the entry."""
        if position in self._whole:
            return True
        if position not in self._indexes:
            return False
        unacked = self._cursor.unacked_indexes(position)
        if unacked is None:
            unacked = (1 << self._batch_sizes[position]) - 1
        return not unacked & ~self.pending_indexes(position)

    def pending_indexes(self, position: tuple[int, int]) -> int:
        """The indexes of a batch that transactions hold individually, as bits."""
        left = self._indexes.get(position)
        return 0 if left is None else acked_bits(left, self._batch_sizes[position])

    # Individual acknowledgements

    def take(self, txn_id: TxnId, acks: Sequence[PendingAck]) -> None:
        """Take all of the messages or none. Raises Conflict."""
        for count, ack in enumerate(acks):
            if (reason := self._conflict(txn_id, ack)) is not None:
                self.give_back(txn_id, acks[:count])
                raise Conflict(ack, reason)
            self.hold(txn_id, ack)

    def _conflict(self, txn_id: TxnId, ack: PendingAck) -> str | None:
        position, bits = ack.position, ack.acked_indexes
        if self._cursor.is_deleted(position):
            return "it is already acknowledged"
        owner = self._cumulative_owner
        if owner is not None and owner != txn_id:
            left = self.transactions[owner].cumulative[-1].left_of(position)
            if (bits or ALL_INDEXES) & ~left:
                return (
                    f"transaction {owner} has acknowledged it cumulatively; retry when it has ended"
                )
        taken = self.pending_indexes(position)
        if position in self._whole or (taken and not ack.still_unacked) or taken & bits:
            return _HELD
        unacked = self._cursor.unacked_indexes(position)
        if unacked is not None and bits & ~unacked:
            return f"{indexes_in_words(bits & ~unacked)} of the batch already acknowledged"
        return None

    def hold(self, txn_id: TxnId, ack: PendingAck) -> None:
        """Take without validation: it has passed, or the acknowledgement comes from the log."""
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
        """Undo `take`. Idempotent."""
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

    def take_cumulative(
        self,
        txn_id: TxnId,
        ack: PendingAck,
        not_given: Mapping[Position, Held] = NOTHING_HELD,
        life: int = 0,
        is_clear: bool = False,
        covered: Covered | None = None,
    ) -> AckRecord:
        """Take everything up to `ack`, except the messages that other transactions hold
        individually and those `not_given`; or, if it names what it covers, that. The others are
        `spared` in the returned record. Raises Conflict.
        """
        if (reason := self._cumulative_conflict(txn_id, ack)) is not None:
            raise Conflict(ack, reason)
        if covered is None:
            spared = self._spared(txn_id, ack.position, not_given)
        else:
            self._require_free(txn_id, ack, covered)
            spared = covered.spared(ack, self._cursor, self.transactions.get(txn_id), MOST_SPARED)
        if len(spared) > MOST_SPARED:
            raise Conflict(
                ack,
                f"more than {MOST_SPARED} messages before it are acknowledged individually in "
                "other transactions, or were not received: acknowledge each message individually",
            )
        record = AckRecord(txn_id, True, (ack,), spared, life, is_clear)
        self.hold_cumulative(record)
        return record

    def _spared(
        self, txn_id: TxnId, up_to: Position, not_given: Mapping[Position, Held]
    ) -> dict[Position, Held]:
        spared = self._held_by_others(txn_id, up_to)
        own = self.transactions.get(txn_id)
        before = own.cumulative[-1] if own is not None and own.cumulative else None
        for position, held in not_given.items():
            left = held if before is None else before.left_by(position, held)
            if left is not None:
                spared[position] = spared.get(position, left) | left
        return spared

    def _require_free(self, txn_id: TxnId, ack: PendingAck, covered: Covered) -> None:
        """Raises Conflict if one of them is acknowledged, or another transaction holds it."""
        covered.require_unacknowledged(self._cursor)
        for position, held in self._held_by_others(txn_id, ack.position).items():
            if held.bits & covered.bits_of(position):
                raise Conflict(PendingAck(position), HELD_BY_ANOTHER)

    def _held_by_others(self, txn_id: TxnId, up_to: Position) -> dict[Position, Held]:
        held = self.held_singly(self._cursor.mark_delete_position, up_to)
        own = self.transactions.get(txn_id)
        if not held or own is None:
            return held
        others: dict[Position, Held] = {}
        for position, (bits, size) in held.items():
            if position in own.whole:
                continue
            if bits := bits & own.indexes.get(position, ALL_INDEXES):
                others[position] = Held(bits, size)
        return others

    def held_singly(self, after: Position, up_to: Position) -> dict[Position, Held]:
        """The messages that any transaction holds individually, in the entries after `after` up to
        `up_to`; in any order.
        """
        held: dict[Position, Held] = {}
        if up_to <= after:  # an outdated acknowledgement must cost nothing
            return held
        for position in self._positions_between(after, up_to):
            if position in self._whole:
                held[position] = HELD_WHOLE
            else:
                held[position] = Held(self.pending_indexes(position), self._batch_sizes[position])
        return held

    def _positions_between(self, after: Position, up_to: Position) -> Iterator[Position]:
        """Walks the held entries or the entries in between, whichever are fewer."""
        whole, indexes = self._whole, self._indexes
        between = up_to.entry_id - after.entry_id
        if after.ledger_id == up_to.ledger_id and between < len(whole) + len(indexes):
            for entry_id in range(after.entry_id + 1, up_to.entry_id + 1):
                position = Position(up_to.ledger_id, entry_id)
                if position in whole or position in indexes:
                    yield position
            return
        for held in whole:
            if after < held <= up_to:
                yield Position(*held)
        for held in indexes:
            if after < held <= up_to and held not in whole:
                yield Position(*held)

    def _cumulative_conflict(self, txn_id: TxnId, ack: PendingAck) -> str | None:
        mark_delete_position = self._cursor.mark_delete_position
        if ack.position <= mark_delete_position:
            return f"already acknowledged up to {mark_delete_position}"
        held = self.cumulative()
        if held is None:
            return None
        if self._cumulative_owner != txn_id:
            return (
                f"transaction {self._cumulative_owner} acknowledges cumulatively; retry when it "
                "has ended"
            )
        return None if ack.reach > held.reach else f"already acknowledged up to {held.position}"

    def hold_cumulative(self, record: AckRecord) -> None:
        """Take without validation, like `hold`."""
        self._of(record.txn_id).cumulative.append(record)
        self._cumulative_owner = record.txn_id

    def forget_before(self, record: AckRecord) -> None:
        """Forget the transaction's cumulative acknowledgements before this one, which is durable
        and includes them.
        """
        transaction = self.transactions.get(record.txn_id)
        if transaction is not None and record in transaction.cumulative:
            del transaction.cumulative[: transaction.cumulative.index(record)]

    def give_back_cumulative(self, record: AckRecord) -> None:
        """Undo `take_cumulative`. Idempotent."""
        transaction = self.transactions.get(record.txn_id)
        if transaction is None or record not in transaction.cumulative:
            return
        transaction.cumulative.remove(record)
        if not transaction.cumulative:
            self._cumulative_owner = None
        self._forget_if_empty(record.txn_id, transaction)

    # The end

    def commit(self, txn_id: TxnId) -> None:
        """Put the transaction's acknowledgements into effect. Idempotent."""
        transaction = self.transactions.get(txn_id)
        if transaction is None:
            return
        self._free(txn_id, transaction)
        self._acknowledge(transaction.whole)
        for position, left in transaction.indexes.items():
            self._acknowledge_part(position, left, transaction.batch_sizes[position])
        if transaction.cumulative:
            record = transaction.cumulative[-1]
            last = record.last
            self.tell_commit(transaction)
            unacked, size = last.still_unacked, last.batch_size
            if record.spared:
                self._cursor.mark_delete_around(last.position, record.spared, unacked, size)
            else:
                self._cursor.mark_delete(last.position, unacked, size)

    def tell_commit(self, transaction: AcksOfTransaction) -> None:
        """Report the commit of a cumulative acknowledgement."""
        if transaction.cumulative:
            record = transaction.cumulative[-1]
            if record.last.position > self._cursor.mark_delete_position:
                self.on_cumulative(record)

    def _acknowledge(self, positions: Iterable[Position]) -> None:
        cursor = self._cursor
        for ledger_id, first, until in _runs(positions):
            if first == until or (ledger_id, first) <= cursor.mark_delete_position:
                for entry_id in range(first, until + 1):
                    cursor.delete(ledger_id, entry_id)
            else:
                cursor.delete_range(ledger_id, first, until)

    def _acknowledge_part(self, position: Position, left: int, size: int) -> None:
        self._cursor.delete_batch_indexes(position, ~acked_bits(left, size), size)

    def commit_some(self, txn_id: TxnId, most: int) -> int:
        """Acknowledge up to `most` of the entries that the transaction holds individually; returns
        how many. The transaction still holds the others, and its cumulative acknowledgement:
        `commit` does the rest.
        """
        transaction = self.transactions[txn_id]
        take, whole = transaction.whole.popitem, self._whole
        positions = sorted(take()[0] for _ in range(min(most, len(transaction.whole))))
        for position in positions:
            whole.pop(position, None)
        self._acknowledge(positions)
        parts = min(most - len(positions), len(transaction.indexes))
        for _ in range(parts):
            position, left = transaction.indexes.popitem()
            size = transaction.batch_sizes.pop(position)
            _take_back(self._indexes, self._batch_sizes, position, acked_bits(left, size))
            self._acknowledge_part(position, left, size)
        return len(positions) + parts

    def drop_some(self, txn_id: TxnId, positions: Iterable[Position]) -> dict[Position, Held]:
        """Like `drop`, for some of the transaction's individually held entries."""
        transaction = self.transactions[txn_id]
        return {position: self._drop(transaction, position) for position in positions}

    def _drop(self, transaction: AcksOfTransaction, position: Position) -> Held:
        held = transaction.held_of(position) or HELD_WHOLE
        if position in transaction.whole:
            del transaction.whole[position]
            self._whole.pop(position, None)
        if position in transaction.indexes:
            left, size = transaction.indexes.pop(position), transaction.batch_sizes.pop(position)
            _take_back(self._indexes, self._batch_sizes, position, acked_bits(left, size))
        return held

    def drop(self, txn_id: TxnId) -> dict[Position, Held]:
        """Drop a transaction that has ended. Returns the messages that it held individually, which
        are free now, in order; see AcksOfTransaction.held. Idempotent.
        """
        transaction = self.transactions.get(txn_id)
        if transaction is None:
            return {}
        self._free(txn_id, transaction)
        return transaction.held()

    def _free(self, txn_id: TxnId, transaction: AcksOfTransaction) -> None:
        del self.transactions[txn_id]
        for position in transaction.whole:
            self._whole.pop(position, None)  # in logs of earlier versions, two could hold an entry
        for position, left in transaction.indexes.items():
            bits = acked_bits(left, transaction.batch_sizes[position])
            _take_back(self._indexes, self._batch_sizes, position, bits)
        if self._cumulative_owner == txn_id:
            self._cumulative_owner = None

    def records(self) -> Iterator[Record]:
        """The records that recreate this state. Each is up to date when it is requested: other
        records may be logged and applied in between.

        An end in progress is already in the log but takes effect later. So these records leave out
        the messages of a transaction that is ending, and finally repeat its end, which fails if the
        earlier end record does.
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
                if self._goes_on(txn_id, transaction):  # its end failed meanwhile
                    left.append((txn_id, transaction))
                elif self.transactions.get(txn_id) is transaction:
                    assert transaction.action is not None
                    yield EndRecord(txn_id, transaction.action)

    def being_aborted(self) -> Iterator[AcksOfTransaction]:
        """The transactions whose abort is being written or applied."""
        return (each for each in self.transactions.values() if each.action is TxnAction.ABORT)

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


def _take_back(
    indexes: dict[Any, int], batch_sizes: dict[Any, int], position: tuple[int, int], bits: int
) -> None:
    """Mark the indexes `bits` as unacknowledged again."""
    if position not in indexes:  # in logs of earlier versions, see above
        return
    indexes[position] |= bits
    if not acked_bits(indexes[position], batch_sizes[position]):
        del indexes[position], batch_sizes[position]


def _runs(positions: Iterable[Position]) -> Iterator[tuple[int, int, int]]:
    """Runs of consecutive entries, in the order of `positions`: ledger, first, last. The cursor
    acknowledges each at once.
    """
    ledger_id, first, last = -1, 0, -1
    for position in positions:
        if position.entry_id == last + 1 and position.ledger_id == ledger_id:
            last += 1
            continue
        if ledger_id >= 0:
            yield ledger_id, first, last
        ledger_id, first = position
        last = first
    if ledger_id >= 0:
        yield ledger_id, first, last
