"""The records of a pending-ack log: acknowledgements and ends of transactions on a subscription."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import TxnAction

ALL_INDEXES: Final = -1  # as bits: the whole entry, whatever its number of messages


@dataclass(frozen=True, slots=True)
class PendingAck:
    """An entry, or the indexes of a batch that are not set in `still_unacked`."""

    position: Position
    still_unacked: int | None = None  # None or 0: the whole entry
    batch_size: int = 0

    @property
    def acked_indexes(self) -> int:
        """The acknowledged indexes as bits; 0 means the whole entry."""
        if not self.still_unacked:
            return 0
        return ~self.still_unacked & ((1 << self.batch_size) - 1)

    @property
    def reach(self) -> tuple[Position, float]:
        """How far a cumulative acknowledgement reaches: the position, and the number of indexes in
        its batch.
        """
        return self.position, self.acked_indexes.bit_count() if self.still_unacked else math.inf


class Held(NamedTuple):
    """The part of an entry that transactions hold or held: some indexes of a batch, or all."""

    bits: int = ALL_INDEXES
    batch_size: int = 0  # irrelevant for a whole entry

    def __or__(self, other: "Held") -> "Held":
        return Held(self.bits | other.bits, max(self.batch_size, other.batch_size))


HELD_WHOLE: Final = Held()
NOTHING_HELD: Final[Mapping[Position, Held]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AckRecord:
    """A cumulative record has a single item in `acks` and covers everything up to it, except the
    `spared` messages: the consumer did not receive these, because other transactions held them.
    """

    txn_id: TxnId
    cumulative: bool
    acks: Sequence[PendingAck]
    spared: Mapping[Position, Held] = field(default_factory=lambda: NOTHING_HELD)

    @property
    def last(self) -> PendingAck:
        return self.acks[-1]

    def left_by(self, position: Position, held: Held) -> Held | None:
        """For a cumulative record: what it does not cover of `held`."""
        left = held.bits & self.left_of(position)
        last, spared = self.last, self.spared.get(position, held)
        size = last.batch_size if position == last.position else 0
        return Held(left, max(size, spared.batch_size, held.batch_size)) if left else None

    def left_of(self, position: Position) -> int:
        """For a cumulative record: the indexes of the entry that it does not cover, as bits;
        ALL_INDEXES for an entry after its last.
        """
        if position > self.last.position:
            return ALL_INDEXES
        left = 0
        if position == self.last.position:
            left = self.last.still_unacked or 0
        if (spared := self.spared.get(position)) is not None:
            left |= spared.bits
        return left


@dataclass(frozen=True, slots=True)
class EndRecord:
    txn_id: TxnId
    action: TxnAction


@dataclass(frozen=True, slots=True)
class PassedOverRecord:
    """A snapshot's record of the messages that aborted transactions held individually and that are
    still unacknowledged. Consumers may have received later messages, but not these.
    """

    messages: Mapping[Position, Held]


Record = AckRecord | EndRecord | PassedOverRecord
