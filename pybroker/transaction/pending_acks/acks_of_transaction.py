"""The acknowledgements of one transaction on a subscription."""

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import (
    HELD_WHOLE,
    AckRecord,
    Held,
    PendingAck,
    Record,
    acked_bits,
)
from pybroker.transaction.txn_status import TxnAction

_ACKS_PER_RECORD: Final = 500


class AcksOfTransaction:
    """The messages that one transaction holds, and its end while that is in progress."""

    __slots__ = ("action", "batch_sizes", "cumulative", "ending", "indexes", "whole")

    def __init__(self) -> None:
        self.whole: dict[Position, None] = {}
        # For batches acknowledged in part, the unacknowledged indexes as bits; as many bits as the
        # request has.
        self.indexes: dict[Position, int] = {}
        self.batch_sizes: dict[Position, int] = {}
        self.cumulative: list[AckRecord] = []  # the last one counts; others may be in flight
        self.action: TxnAction | None = None
        self.ending: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """The number of entries held individually; an entry may count twice."""
        return len(self.whole) + len(self.indexes)

    def positions(self) -> Iterator[Position]:
        """Individually acknowledged entries, in order of arrival. Change nothing meanwhile."""
        return chain(self.whole, (each for each in self.indexes if each not in self.whole))

    def held(self) -> dict[Position, Held]:
        """The individually acknowledged messages, in order of position."""
        held = dict.fromkeys(self.whole, HELD_WHOLE)
        for position in self.indexes:
            held.setdefault(position, self._part_held(position))
        return dict(sorted(held.items()))

    def held_of(self, position: Position) -> Held | None:
        if position in self.whole:
            return HELD_WHOLE
        return self._part_held(position) if position in self.indexes else None

    def _part_held(self, position: Position) -> Held:
        size = self.batch_sizes[position]
        return Held(acked_bits(self.indexes[position], size), size)

    def records(self, txn_id: TxnId) -> Iterator[Record]:
        """The records that recreate this object, in parts. Each is up to date when it is requested:
        messages given back meanwhile are left out.
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
            yield self.cumulative[-1]
