"""Tracks which parts of batches are acknowledged, and which acknowledgements are unsent. Pure.

The broker stores a batch as one entry. Its unacknowledged messages are a bit set here (bit i set:
message i is still unacknowledged); an entry is finished when its set is empty. On the wire the
set is sent as little-endian 64-bit words.
"""

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pybroker.wire import pulsar_api_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

_WORD_BITS: Final = 64
_WORD_BYTES: Final = _WORD_BITS // 8
_UINT64: Final = 2**64
# Partly acknowledged batches; beyond this number the oldest are forgotten. A forgotten batch is
# redelivered whole if the broker does not know its parts either.
MAX_PARTLY: Final = 100_000
# Fewer of the batches whose bits are long: an id that somebody made up names any size.
MAX_LARGE: Final = 100
_LARGE_BITS: Final = 10_000

EntryKey = tuple[int, int]
# A message's ledger id, entry id, index in the batch (-1 outside of one), the batch's size (or 0).
Place = tuple[int, int, int, int]
# The unacknowledged messages of an entry, as bits, and how many messages it holds.
Left = tuple[int, int]
NOTHING: Final[Left] = (0, 0)
AckId = tuple[EntryKey, Left]


def write_ids(
    ids: Iterable[AckId], to: "RepeatedCompositeFieldContainer[pb.MessageIdData]"
) -> None:
    add = to.add
    for (ledger_id, entry_id), (unacked, batch_size) in ids:
        data = add()
        data.ledgerId = ledger_id
        data.entryId = entry_id
        if unacked:
            data.ack_set.extend(to_words(unacked))
            data.batch_size = batch_size


def to_words(bits: int) -> list[int]:
    count = -(-bits.bit_length() // _WORD_BITS)
    return list(struct.unpack(f"<{count}q", bits.to_bytes(count * _WORD_BYTES, "little")))


def from_words(words: "list[int]") -> int:
    data = struct.pack(f"<{len(words)}Q", *(word % _UINT64 for word in words))
    return int.from_bytes(data, "little")


def individually(ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> AckId:
    """One message alone, as acknowledged in a transaction."""
    key = (ledger_id, entry_id)
    if batch_index < 0 or batch_size <= 1:
        return key, NOTHING
    return key, (all_bits(batch_size) & ~(1 << batch_index), batch_size)


def cumulatively(ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> AckId:
    """Everything up to and including one message."""
    key = (ledger_id, entry_id)
    if batch_index < 0 or batch_index >= batch_size - 1:
        return key, NOTHING
    return key, (all_bits(batch_size) & ~all_bits(batch_index + 1), batch_size)


def all_bits(count: int) -> int:
    return (1 << count) - 1


class AckGroup:
    """Plain acknowledgements: collected during one turn of the event loop, sent together."""

    def __init__(self, by_batch_index: bool) -> None:
        self._by_batch_index = by_batch_index
        # Batches with some messages acknowledged, and the messages that are not.
        self._partly: dict[EntryKey, int] = {}
        # Messages that the broker left out of batches: acknowledged, or withheld for an open
        # transaction that may abort. They must never be sent as acknowledged.
        self._left_out: dict[EntryKey, int] = {}
        self._large: dict[EntryKey, None] = {}  # some of them may be finished
        self._waiting: dict[EntryKey, Left] = {}
        self._cumulative: AckId | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._cumulative is not None

    def delivered(self, key: EntryKey, sent: int, unacked: int, batch_size: int) -> None:
        """Called when a batch arrives. As bits: the messages that the broker sent, and those of
        them that are unacknowledged; the others are not wanted.
        """
        everything = all_bits(batch_size)
        if self._by_batch_index and key in self._left_out:
            # The rest of a batch, after the abort of who held it: the application has the others.
            unacked |= self._partly.get(key, 0)
            sent |= everything & ~self._left_out[key]
        self._forget(key)
        if unacked != everything:
            self._keep(key, unacked)
        if sent != everything:
            self._left_out[key] = everything & ~sent

    def _keep(self, key: EntryKey, left: int) -> None:
        partly = self._partly
        if key not in partly:
            if len(partly) >= MAX_PARTLY:
                self._forget(next(iter(partly)))
            if left.bit_length() > _LARGE_BITS:
                self._make_room_for_large(key)
        partly[key] = left

    def _make_room_for_large(self, key: EntryKey) -> None:
        self._large.pop(key, None)
        if len(self._large) >= MAX_LARGE:
            oldest = next(iter(self._large))
            del self._large[oldest]
            self._forget(oldest)
        self._large[key] = None

    def _forget(self, key: EntryKey) -> None:
        self._partly.pop(key, None)
        self._left_out.pop(key, None)

    def given_back(self, keys: Iterable[EntryKey]) -> None:
        """The entries will be redelivered, to any consumer, with their unacknowledged messages."""
        for key in keys:
            self._forget(key)

    def unsent(self, key: EntryKey, batch_size: int) -> int:
        """Messages of a batch that are acknowledged here and that the broker is not told of before
        the whole batch is, as bits.
        """
        if self._by_batch_index or key not in self._partly:
            return 0
        return all_bits(batch_size) & ~(self._partly[key] | self._left_out.get(key, 0))

    def all_given_back(self) -> None:
        """Everything will be redelivered. Without batch indexes the broker does not know which
        parts of batches were acknowledged: keep them here.
        """
        if self._by_batch_index:
            self._partly.clear()
            self._left_out.clear()

    def add(self, places: Iterable[Place]) -> list[EntryKey]:
        """Returns the entries with nothing left to acknowledge."""
        done, waiting, partly = [], self._waiting, self._partly
        for ledger_id, entry_id, batch_index, batch_size in places:
            key = (ledger_id, entry_id)
            rest = NOTHING
            if batch_size > 1 and batch_index >= 0:
                if self._add_part(key, batch_index, batch_size):
                    continue
                rest = self._rest(key, batch_size)
            if partly:
                self._forget(key)
            waiting[key] = rest
            done.append(key)
        return done

    def _rest(self, key: EntryKey, batch_size: int) -> Left:
        """What stays unacknowledged of a batch that is finished here: what the broker left out."""
        left_out = self._left_out.get(key, 0)
        if (waiting := self._waiting.get(key)) is not None:
            left_out &= waiting[0]
        return (left_out, batch_size) if left_out else NOTHING

    def _add_part(self, key: EntryKey, batch_index: int, batch_size: int) -> bool:
        """Acknowledges one message; returns whether anything of the batch is left."""
        left = self._partly.get(key, all_bits(batch_size)) & ~(1 << batch_index)
        left_out = self._left_out.get(key, 0)
        if (waiting := self._waiting.get(key)) is not None:
            # Unsent acknowledgements may contain more than is known here.
            left, left_out = left & waiting[0], left_out & waiting[0]
        if left:
            self._keep(key, left)
            if self._by_batch_index:
                self._waiting[key] = (left | left_out, batch_size)
        return bool(left)

    def add_cumulative(
        self, ledger_id: int, entry_id: int, batch_index: int, batch_size: int
    ) -> None:
        ack = cumulatively(ledger_id, entry_id, batch_index, batch_size)
        covered, (unacked, _) = ack
        self._forget_up_to(covered, unacked)
        if unacked and not self._by_batch_index:
            if entry_id == 0:
                return  # Nothing precedes it in this ledger.
            ack = ((ledger_id, entry_id - 1), NOTHING)
        if self._cumulative is None or _reach(ack) > _reach(self._cumulative):
            self._cumulative = ack

    def _forget_up_to(self, covered: EntryKey, left: int) -> None:
        left_out = left & self._left_out.get(covered, 0)
        left &= self._partly.get(covered, left)
        self._partly = {key: bits for key, bits in self._partly.items() if key > covered}
        self._left_out = {key: bits for key, bits in self._left_out.items() if key > covered}
        if left:
            self._partly[covered] = left
            if left_out:
                self._left_out[covered] = left_out

    def take(self) -> tuple[list[AckId], AckId | None]:
        """What to send now: individual acknowledgements and a cumulative one."""
        individual, cumulative = list(self._waiting.items()), self._cumulative
        self._waiting.clear()
        self._cumulative = None
        return individual, cumulative


def _reach(ack: AckId) -> tuple[EntryKey, int]:
    """Sorts cumulative acknowledgements: fewer remaining bits reach further."""
    return ack[0], -ack[1][0]
