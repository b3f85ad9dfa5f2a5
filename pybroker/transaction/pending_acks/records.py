"""What transactions have acknowledged on a subscription, as records of its pending-ack log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import TxnAction

ALL_INDEXES: Final = -1  # as bits: of an entry, whatever its number of messages


@dataclass(frozen=True, slots=True)
class PendingAck:
    """An entry, or the indexes of a batch that are not set in `still_unacked`."""

    position: Position
    still_unacked: int | None = None  # None or 0: the whole entry
    batch_size: int = 0

    @property
    def acked_indexes(self) -> int:
        """As bits; 0 means the whole entry."""
        if not self.still_unacked:
            return 0
        return ~self.still_unacked & ((1 << self.batch_size) - 1)


class Held(NamedTuple):
    """What transactions hold, or held, of an entry: these indexes of a batch, or all of it."""

    bits: int = ALL_INDEXES
    batch_size: int = 0  # irrelevant for a whole entry

    def __or__(self, other: "Held") -> "Held":
        return Held(self.bits | other.bits, max(self.batch_size, other.batch_size))


HELD_WHOLE: Final = Held()
NOTHING_HELD: Final[Mapping[Position, Held]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AckRecord:
    """A cumulative one has a single item in `acks`: everything up to it, except what is `spared`,
    which its consumer was not given because other transactions held it.
    """

    txn_id: TxnId
    cumulative: bool
    acks: Sequence[PendingAck]
    spared: Mapping[Position, Held] = field(default_factory=lambda: NOTHING_HELD)

    @property
    def last(self) -> PendingAck:
        return self.acks[-1]

    def left_of(self, position: Position) -> int:
        """For a cumulative one: what it leaves of the entry, as bits; all of them for an entry
        beyond it.
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
    """Of a snapshot: what aborted transactions held individually and is still unacknowledged.
    Consumers may have received later messages but not these.
    """

    messages: Mapping[Position, Held]


Record = AckRecord | EndRecord | PassedOverRecord
