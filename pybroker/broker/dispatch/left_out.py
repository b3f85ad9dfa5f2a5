"""What a consumer was not handed of batches that it was, because open transactions held it.

An official client that is through with what it was given of a batch acknowledges all of it: Java
builds its ack sets on the broker's. Where the transaction has aborted by then, that would
acknowledge what nobody was given. A plain acknowledgement says nothing of what was left out here.

Where such a batch was delivered again, with other messages left out or none, the acknowledgement of
the whole does not say which delivery it means. It counts for what is in all of them; as many
acknowledgements as there were deliveries count for all that was in any. A transaction's is refused.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Final

from pybroker.base.errors import TransactionConflict
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.transaction.pending_acks.store import PendingAck

MOST_DELIVERIES: Final = 100  # of one batch, unacknowledged
MOST_BATCHES: Final = 10_000  # of one consumer; beyond, the oldest are taken at their client's word

# A batch's place, what is not acknowledged of it, as bits, and its size.
LeftOfBatch = tuple[tuple[int, int], int, int]


class _Batch:
    """Deliveries of one batch, the first of which was of a part."""

    __slots__ = ("acks", "given", "left_out", "owed", "size")

    def __init__(self, left_out: int, given: int, size: int) -> None:
        self.left_out = left_out  # by the latest
        self.given = given  # by any
        self.owed = [given]  # by each, but for what is acknowledged by index
        self.acks = 0  # of the whole, of some of these
        self.size = size

    @property
    def is_clear(self) -> bool:
        """The next acknowledgement of the whole means everything."""
        return self.acks + 1 >= len(self.owed)

    def delivered_again(self, left_out: int, given: int) -> None:
        self.left_out = left_out
        self.given |= given
        self.owed = [*self.owed[1 - MOST_DELIVERIES :], given]

    def acknowledged(self) -> int:
        """As a whole; what of it is not acknowledged by that."""
        known = self.given if self.is_clear else reduce(and_, self.owed)
        self.acks += 1
        if self.acks >= len(self.owed):
            self.settled()
        return ((1 << self.size) - 1) & ~known

    def keep(self, bits: int) -> None:
        """The others are acknowledged by index: who has acknowledged all of a delivery so does not
        acknowledge it as a whole.
        """
        left = [unacked for each in self.owed if (unacked := each & bits)]
        self.acks = max(0, self.acks - len(self.owed) + len(left))
        self.owed = left

    def settled(self) -> None:
        """Nothing that is under way speaks of what was delivered so far."""
        self.owed, self.acks = [], 0


class LeftOut:
    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: dict[tuple[int, int], _Batch] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def delivered(self, delivery: Delivery) -> None:
        known, ledger_id = self._batches, delivery.ledger_id
        parts, withheld = delivery.unacked_indexes or {}, delivery.withheld or {}
        for entry_id in delivery.entry_ids:
            position = (ledger_id, entry_id)
            batch, left_out = known.pop(position, None), withheld.get(entry_id, 0)
            if batch is None and not left_out:
                continue
            size = parts[entry_id][1] if batch is None else batch.size
            given = parts[entry_id][0] if entry_id in parts else (1 << size) - 1
            # Where nothing of what was delivered before comes again, all that is acknowledged.
            if batch is not None and any(each & given for each in batch.owed):
                batch.delivered_again(left_out, given)
                known[position] = batch
            elif left_out:
                known[position] = _Batch(left_out, given, size)
        while len(known) > MOST_BATCHES:
            del known[next(iter(known))]

    def asked_again(self, positions: Iterable[tuple[int, int]] | None) -> None:
        """The client has given back these, or (None) all: what is delivered next is all it has."""
        for position in list(self._batches if positions is None else positions):
            if (batch := self._batches.get(position)) is not None:
                batch.settled()

    def of(self, position: tuple[int, int]) -> int:
        """By the latest delivery, as bits."""
        return self._batches[position].left_out if position in self._batches else 0

    def divide(
        self, positions: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[LeftOfBatch]]:
        """Acknowledgements of entries as a whole: which mean that, and which mean a part."""
        whole: list[tuple[int, int]] = []
        parts: list[LeftOfBatch] = []
        for position in positions:
            if (batch := self._batches.get(position)) is None:
                whole.append(position)
            else:
                parts.append((position, batch.acknowledged(), batch.size))
        return whole, parts

    def acknowledged_up_to(self, position: tuple[int, int]) -> bool:
        """A cumulative acknowledgement of this entry as a whole: whether it means the latest
        delivery.
        """
        batch = self._batches.get(position)
        if batch is None:
            return True
        is_clear = batch.is_clear
        batch.acknowledged()
        return is_clear

    def spare(self, acks: Sequence[PendingAck]) -> list[PendingAck]:
        """Acknowledgements in a transaction, without what was left out. Raises
        TransactionConflict.
        """
        self.check_clear(acks)
        return [self._spare(ack) for ack in acks]

    def check_clear(self, acks: Iterable[PendingAck]) -> None:
        """Raises TransactionConflict: whatever were taken, something might be lost or doubled."""
        for ack in acks:
            batch = self._batches.get(ack.position)
            if batch is not None and not (batch.is_clear or ack.still_unacked):
                raise TransactionConflict(
                    f"Batch {ack.position} was delivered again meanwhile, some of its messages for "
                    "the first time: abort, ask for redelivery, and acknowledge what comes then"
                )

    def _spare(self, ack: PendingAck) -> PendingAck:
        if (batch := self._batches.get(ack.position)) is None:
            return ack
        left = (ack.still_unacked or 0) | batch.left_out
        if left == (1 << batch.size) - 1:  # it names what was left out, so it came before
            return ack
        return PendingAck(ack.position, left, batch.size) if left else ack

    def taken(self, acks: Iterable[PendingAck]) -> None:
        """A transaction has acknowledged these."""
        for ack in acks:
            batch = self._batches.get(ack.position)
            if batch is not None:
                batch.keep(ack.still_unacked or 0)

    def named(self, position: tuple[int, int], still_unacked: int) -> None:
        """Some of its messages are acknowledged by index."""
        if (batch := self._batches.get(position)) is not None:
            batch.keep(still_unacked)

    def forget(self, position: tuple[int, int]) -> None:
        """Nothing of it is unacknowledged."""
        self._batches.pop(position, None)
