"""What a consumer was not handed of batches that it was, because open transactions held it.

An official client that is through with what it was given of a batch acknowledges all of it: Java
builds its ack sets on the broker's. Where the transaction has aborted by then, that would
acknowledge what nobody was given. A plain acknowledgement says nothing of what was left out here.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.broker.dispatch.delivery import Delivery
from pybroker.transaction.pending_ack_store import PendingAck

MOST_BATCHES: Final = 10_000  # of one consumer; beyond, the oldest are taken at their client's word

# A batch's place, what was left out of it, as bits, and its size.
LeftOfBatch = tuple[tuple[int, int], int, int]


class LeftOut:
    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: dict[tuple[int, int], tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._batches)

    def delivered(self, delivery: Delivery) -> None:
        """The latest delivery of a batch counts."""
        known, ledger_id = self._batches, delivery.ledger_id
        if known:
            for entry_id in delivery.entry_ids:
                known.pop((ledger_id, entry_id), None)
        if not delivery.withheld or not delivery.unacked_indexes:
            return
        for entry_id in delivery.entry_ids:
            if bits := delivery.withheld.get(entry_id):
                known[ledger_id, entry_id] = bits, delivery.unacked_indexes[entry_id][1]
        while len(known) > MOST_BATCHES:
            del known[next(iter(known))]

    def of(self, position: tuple[int, int]) -> int:
        """As bits."""
        return self._batches[position][0] if position in self._batches else 0

    def divide(
        self, positions: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[LeftOfBatch]]:
        """Entries that the consumer was handed whole, and those of which something was left out."""
        whole: list[tuple[int, int]] = []
        parts: list[LeftOfBatch] = []
        for position in positions:
            if (batch := self._batches.get(position)) is None:
                whole.append(position)
            else:
                parts.append((position, *batch))
        return whole, parts

    def spare(self, acks: Sequence[PendingAck]) -> list[PendingAck]:
        """Acknowledgements in a transaction, without what was left out."""
        return [self._spare(ack) for ack in acks]

    def _spare(self, ack: PendingAck) -> PendingAck:
        if (batch := self._batches.get(ack.position)) is None:
            return ack
        bits, batch_size = batch
        left = (ack.still_unacked or 0) | bits
        if left == (1 << batch_size) - 1:  # it names what was left out, so it came before
            return ack
        return PendingAck(ack.position, left, batch_size)

    def forget(self, position: tuple[int, int]) -> None:
        """Nothing of it is unacknowledged."""
        self._batches.pop(position, None)
