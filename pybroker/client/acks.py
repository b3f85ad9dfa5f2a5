"""Which parts of batches are acknowledged, and the acknowledgements that wait to be sent. Pure.

The broker stores a batch as one entry. Its unacknowledged messages are a bit set here (bit i set:
message i is still unacknowledged); an entry is done with when its set is empty. On the wire the
set travels as little-endian 64-bit words.
"""

from typing import Final, NamedTuple

from pybroker.wire import pulsar_api_pb2 as pb

_WORD_BITS: Final = 64
_UINT64: Final = 2**64

EntryKey = tuple[int, int]


class AckId(NamedTuple):
    """An entry; `unacked` and `batch_size` are 0 when all of it is meant."""

    ledger_id: int
    entry_id: int
    unacked: int = 0
    batch_size: int = 0

    def write_to(self, data: pb.MessageIdData) -> None:
        data.ledgerId = self.ledger_id
        data.entryId = self.entry_id
        if self.unacked:
            data.ack_set.extend(to_words(self.unacked))
            data.batch_size = self.batch_size


def to_words(bits: int) -> list[int]:
    words = []
    while bits:
        word = bits % _UINT64
        words.append(word - _UINT64 if word >= _UINT64 // 2 else word)
        bits >>= _WORD_BITS
    return words


def from_words(words: "list[int]") -> int:
    bits = 0
    for index, word in enumerate(words):
        bits |= (word % _UINT64) << (index * _WORD_BITS)
    return bits


def individually(ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> AckId:
    """One message and nothing else, as a transaction acknowledges it."""
    if batch_index < 0 or batch_size <= 1:
        return AckId(ledger_id, entry_id)
    return AckId(ledger_id, entry_id, all_bits(batch_size) & ~(1 << batch_index), batch_size)


def cumulatively(ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> AckId:
    """Everything up to and with one message."""
    if batch_index < 0 or batch_index >= batch_size - 1:
        return AckId(ledger_id, entry_id)
    after = all_bits(batch_size) & ~all_bits(batch_index + 1)
    return AckId(ledger_id, entry_id, after, batch_size)


def all_bits(count: int) -> int:
    return (1 << count) - 1


class AckGroup:
    """Plain acknowledgements: collected during one turn of the event loop, sent together."""

    def __init__(self, by_batch_index: bool) -> None:
        self._by_batch_index = by_batch_index
        # Batches of which some messages are acknowledged, and what is not.
        self._partly: dict[EntryKey, int] = {}
        self._waiting: dict[EntryKey, AckId] = {}
        self._cumulative: AckId | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._cumulative is not None

    def delivered(self, key: EntryKey, unacked: int, batch_size: int) -> None:
        """A batch arrived; the broker says what of it is unacknowledged."""
        if unacked == all_bits(batch_size):
            self._partly.pop(key, None)
        else:
            self._partly[key] = unacked

    def add(self, ledger_id: int, entry_id: int, batch_index: int, batch_size: int) -> bool:
        """True if nothing of the entry is left to acknowledge."""
        key = (ledger_id, entry_id)
        left = 0
        if batch_index >= 0 and batch_size > 1:
            left = self._partly.get(key, all_bits(batch_size)) & ~(1 << batch_index)
            if (waiting := self._waiting.get(key)) is not None:
                left &= waiting.unacked  # what is to be sent may say more than is known by now
        if left:
            self._partly[key] = left
        elif self._partly:
            self._partly.pop(key, None)
        if not left or self._by_batch_index:
            self._waiting[key] = AckId(ledger_id, entry_id, left, batch_size)
        return not left

    def add_cumulative(
        self, ledger_id: int, entry_id: int, batch_index: int, batch_size: int
    ) -> None:
        ack = cumulatively(ledger_id, entry_id, batch_index, batch_size)
        covered = (ledger_id, entry_id)
        self._forget_up_to(covered, ack.unacked)
        if ack.unacked and not self._by_batch_index:
            ack = AckId(ledger_id, entry_id - 1)
        if self._cumulative is None or _reach(ack) > _reach(self._cumulative):
            self._cumulative = ack

    def _forget_up_to(self, covered: EntryKey, left: int) -> None:
        left &= self._partly.get(covered, left)
        self._partly = {key: bits for key, bits in self._partly.items() if key > covered}
        if left:
            self._partly[covered] = left

    def take(self) -> tuple[list[AckId], AckId | None]:
        """What to send now: individual ones, and a cumulative one."""
        individual, cumulative = list(self._waiting.values()), self._cumulative
        self._waiting.clear()
        self._cumulative = None
        return individual, cumulative


def _reach(ack: AckId) -> tuple[int, int, int]:
    """Orders cumulative acknowledgements: the fewer bits are left, the further it goes."""
    return (ack.ledger_id, ack.entry_id, -ack.unacked)
