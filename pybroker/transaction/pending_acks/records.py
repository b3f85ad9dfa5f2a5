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

_MOST_RUNS: Final = 5  # in an error

Reach = tuple[Position, float]  # how far: an entry, and how many messages of it; inf: the whole
Place = tuple[Position, int]  # a message: its entry, and its index in the batch


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
    def what(self) -> str:
        """The messages, in words."""
        if not self.still_unacked:
            return str(self.position)
        return f"{indexes_in_words(self.acked_indexes)} of batch {self.position}"

    @property
    def first(self) -> Place:
        """The first message that it names."""
        bits = self.acked_indexes
        return self.position, (bits & -bits).bit_length() - 1 if bits else 0

    @property
    def reach(self) -> Reach:
        """How far a cumulative acknowledgement reaches."""
        return self.position, self.acked_indexes.bit_count() if self.still_unacked else math.inf


def indexes_in_words(bits: int) -> str:
    """Such as "messages 0 to 2 and 5"; counted from 0, at most some of them."""
    runs: list[str] = []
    start = 0
    while bits >> start and len(runs) < _MOST_RUNS:
        rest = bits >> start
        start += (rest & -rest).bit_length() - 1
        length = (~(bits >> start) & (bits >> start) + 1).bit_length() - 1
        runs.append(f"{start} to {start + length - 1}" if length > 1 else str(start))
        start += length
    if bits >> start:
        runs.append("others")
    message = "messages" if bits.bit_count() > 1 else "message"
    *others, last = runs
    return f"{message} {', '.join(others)} and {last}" if others else f"{message} {last}"


def acked_bits(left: int, batch_size: int) -> int:
    """The acknowledged indexes of a batch, as bits: those not in `left`."""
    return ~left & ((1 << batch_size) - 1)


class Conflict(Exception):
    """An acknowledgement that is refused, and why."""

    def __init__(self, ack: PendingAck, reason: str) -> None:
        super().__init__(reason)
        self.ack = ack
        self.reason = reason


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
    # The life that acknowledged cumulatively, and whether it had received every earlier delivery
    # of what it acknowledged. 0: unknown, in logs of earlier versions.
    life: int = 0
    is_clear: bool = False

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


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """A client's consumer that may return, and what taints it: see pybroker.broker.dispatch.lives.
    It replaces earlier records of the same number.
    """

    number: int
    name: str
    consumer_id: int
    request_id: int  # of its latest SUBSCRIBE
    # Transactions that have acknowledged messages of which it may have another delivery, each with
    # the first of these.
    taints: Sequence[tuple[TxnId, Place]] = ()
    is_gone: bool = False  # it will not return
    plainly: bool = False  # it has acknowledged cumulatively without a transaction
    # Of its latest request for redelivery; -1: none. None: unknown, in logs of earlier versions.
    epoch: int | None = None
    # How far it was given everything, in any pass and in two. None: unknown, while it is connected.
    given: tuple[Position, Position] | None = None


Record = AckRecord | EndRecord | PassedOverRecord | LifeRecord
