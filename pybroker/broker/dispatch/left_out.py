"""Messages of delivered batches that a consumer was not given, because transactions held them.

An official client that has processed its part of a batch acknowledges the whole batch: Java builds
its ack sets on the broker's. If the transaction has aborted by then, that would acknowledge
messages that no consumer was given. So a plain acknowledgement does not apply to the messages left
out here.

Such a batch may be delivered again, with other messages left out or none; or only a part of it is
delivered again, which an abort gave back. Then an acknowledgement of the whole batch does not say
to which delivery it refers. It counts for the messages common to all deliveries; as many
acknowledgements as there were deliveries count for the messages of any. In a transaction it is
refused. Once the client has asked for the batch again, the next delivery takes the place of those
before; until it comes, an acknowledgement refers to these.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Final

from managed_ledger.position import Position
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.transaction.pending_acks.records import PendingAck

MOST_DELIVERIES: Final = 100  # of one batch, unacknowledged
MOST_BATCHES: Final = 10_000  # of one consumer; beyond that, the oldest are forgotten
_PRUNE_FROM: Final = 100  # batches

# A batch's position, its unacknowledged messages as bits, and its size.
LeftOfBatch = tuple[tuple[int, int], int, int]


class _Batch:
    """Deliveries of one batch, the first of which was partial."""

    __slots__ = ("acks", "asked", "deliveries", "given", "left_out", "size")

    def __init__(self, left_out: int, given: int, size: int) -> None:
        self.left_out = left_out  # in the latest delivery
        self.given = given  # in any delivery
        # The messages in each delivery that are not acknowledged by index, and those of them that
        # transactions have acknowledged by index.
        self.deliveries = [(given, 0)]
        self.acks = 0  # whole-batch acknowledgements of some of these deliveries
        self.asked = False  # the client has asked for it again, and got nothing of it since
        self.size = size

    @property
    def owed(self) -> list[int]:
        """What is left of each delivery, if anything is. A client that has acknowledged a whole
        delivery by index does not acknowledge it as a whole, too.
        """
        return [left for given, taken in self.deliveries if (left := given & ~taken)]

    @property
    def is_clear(self) -> bool:
        """Whether the next whole-batch acknowledgement covers everything."""
        return self.acks + 1 >= len(self.owed)

    def is_still_owed(self, given: int) -> bool:
        """Whether the client may acknowledge an earlier delivery of some of these messages."""
        return not self.asked and any(each & given for each in self.owed)

    def delivered_again(self, left_out: int, given: int) -> None:
        if self.asked:
            self.given, self.asked = 0, False
            self.settled()
        self.left_out = left_out
        self.given |= given
        self.deliveries = [*self.deliveries[1 - MOST_DELIVERIES :], (given, 0)]

    def acknowledged(self) -> int:
        """Note an acknowledgement of the whole batch; returns the messages that it leaves
        unacknowledged.
        """
        owed = self.owed
        known = self.given if self.is_clear else reduce(and_, owed)
        self.acks += 1
        if self.acks >= len(owed):
            self.settled()
        return ((1 << self.size) - 1) & ~known

    def keep(self, bits: int) -> None:
        """Note that all messages except `bits` are acknowledged by index."""
        self._change([(given & bits, taken) for given, taken in self.deliveries if given & bits])

    def taken(self, bits: int) -> None:
        """Note that a transaction has acknowledged all messages except `bits` by index."""
        self._change([(given, taken | given & ~bits) for given, taken in self.deliveries])

    def given_back(self, bits: int) -> None:
        """Note that a transaction that had acknowledged these by index has aborted: the client may
        acknowledge the deliveries that they came with, as it may any.
        """
        self.deliveries = [(given, taken & ~bits) for given, taken in self.deliveries]

    def _change(self, deliveries: list[tuple[int, int]]) -> None:
        before = len(self.owed)
        self.deliveries = deliveries
        self.acks = max(0, self.acks - before + len(self.owed))

    def settled(self) -> None:
        """Call when no acknowledgement in flight refers to the deliveries so far."""
        self.deliveries, self.acks = [], 0


class LeftOut:
    __slots__ = ("_batches", "_prune_at")

    def __init__(self) -> None:
        self._batches: dict[tuple[int, int], _Batch] = {}
        self._prune_at = _PRUNE_FROM

    def __bool__(self) -> bool:
        return bool(self._batches)

    def delivered(self, delivery: Delivery) -> None:
        known, ledger_id = self._batches, delivery.ledger_id
        parts, withheld = delivery.unacked_indexes or {}, delivery.withheld or {}
        late = delivery.late or {}
        for entry_id in delivery.entry_ids:
            position = (ledger_id, entry_id)
            batch, left_out = known.pop(position, None), withheld.get(entry_id, 0)
            if batch is None and not left_out and entry_id not in late:
                continue
            size = parts[entry_id][1] if batch is None else batch.size
            given = parts[entry_id][0] if entry_id in parts else (1 << size) - 1
            if entry_id in late:
                batch = batch or _Batch(0, late[entry_id], size)
                batch.delivered_again(batch.left_out & ~given, given)
                known[position] = batch
                continue
            # If nothing from earlier deliveries is delivered again, all of it is acknowledged.
            if batch is not None and batch.is_still_owed(given):
                batch.delivered_again(left_out, given)
                known[position] = batch
            elif left_out:
                known[position] = _Batch(left_out, given, size)
        while len(known) > MOST_BATCHES:
            del known[next(iter(known))]

    def asked_again(self, positions: Iterable[tuple[int, int]] | None) -> None:
        """The client has given back these entries, or (None) all."""
        for position in list(self._batches if positions is None else positions):
            if (batch := self._batches.get(position)) is not None:
                batch.asked = True

    def of(self, position: tuple[int, int]) -> int:
        """The messages left out of the latest delivery, as bits."""
        return self._batches[position].left_out if position in self._batches else 0

    def divide(
        self, positions: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[LeftOfBatch]]:
        """Split whole-entry acknowledgements into those that cover the entry and those that cover a
        part.
        """
        whole: list[tuple[int, int]] = []
        parts: list[LeftOfBatch] = []
        for position in positions:
            if (batch := self._batches.get(position)) is None:
                whole.append(position)
            else:
                parts.append((position, batch.acknowledged(), batch.size))
        return whole, parts

    def acknowledged_up_to(self, position: tuple[int, int]) -> bool | None:
        """Whether a cumulative acknowledgement of this entry as a whole refers to all its
        deliveries; None if nothing was left out of them.
        """
        if (batch := self._batches.get(position)) is None:
            return None
        is_clear = batch.is_clear
        batch.acknowledged()
        return is_clear

    def is_clear(self, ack: PendingAck) -> bool | None:
        """Like `acknowledged_up_to`, for an acknowledgement in a transaction."""
        if ack.still_unacked or (batch := self._batches.get(ack.position)) is None:
            return None
        return batch.is_clear

    def spare(self, acks: Sequence[PendingAck]) -> list[PendingAck]:
        """Acknowledgements in a transaction, without messages that were left out."""
        return [self._spare(ack) for ack in acks]

    def unclear(self, acks: Iterable[PendingAck]) -> PendingAck | None:
        """An acknowledgement that is ambiguous: any choice might lose or duplicate messages."""
        for ack in acks:
            batch = self._batches.get(ack.position)
            if batch is not None and not (batch.is_clear or ack.still_unacked):
                return ack
        return None

    def _spare(self, ack: PendingAck) -> PendingAck:
        if (batch := self._batches.get(ack.position)) is None:
            return ack
        left = (ack.still_unacked or 0) | batch.left_out
        if (
            left == (1 << batch.size) - 1
        ):  # only messages that were left out: it refers to an earlier delivery
            return ack
        return PendingAck(ack.position, left, batch.size) if left else ack

    def taken(self, acks: Iterable[PendingAck]) -> None:
        """Called when a transaction has acknowledged these."""
        for ack in acks:
            batch = self._batches.get(ack.position)
            if batch is not None:
                batch.taken(ack.still_unacked or 0)

    def given_back(self, position: tuple[int, int], bits: int) -> None:
        """Called when the transaction has aborted that had acknowledged these messages."""
        if (batch := self._batches.get(position)) is not None:
            batch.given_back(bits)

    def named(self, position: tuple[int, int], still_unacked: int) -> None:
        """Called when messages of the batch are acknowledged by index."""
        if (batch := self._batches.get(position)) is not None:
            batch.keep(still_unacked)

    def prune(self, is_acknowledged: Callable[[Position], bool]) -> None:
        """Forget batches that others have acknowledged, or transactions, if there are many."""
        if len(self._batches) >= self._prune_at:
            for position in [each for each in self._batches if is_acknowledged(Position(*each))]:
                del self._batches[position]
            self._prune_at = max(_PRUNE_FROM, 2 * len(self._batches))

    def forget(self, position: tuple[int, int]) -> None:
        """Called when the whole batch is acknowledged."""
        self._batches.pop(position, None)
