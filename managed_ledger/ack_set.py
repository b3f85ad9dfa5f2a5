"""Which entries of a ledger are acknowledged: a bitmap in chunks of 512, each a Python int.

The number of holes does not matter: membership and the acknowledged ranges of a small window are
bit arithmetic on one or two chunks. All full chunks share one int. Ranges are computed only on
request.
"""

from collections.abc import Iterator
from typing import Final

from managed_ledger.codec import Reader, Writer

SHIFT: Final = 9
CHUNK: Final = 1 << SHIFT
MASK: Final = CHUNK - 1
FULL: Final = (1 << CHUNK) - 1
WORD: Final = (1 << 64) - 1
BITS: Final = tuple(1 << index for index in range(CHUNK))


def trailing_ones(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1


def trailing_zeros(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def runs_of_ones(bits: int, offset: int) -> Iterator[tuple[int, int]]:
    """Closed ranges of the bits that are set, counted from `offset`."""
    while bits:
        zeros = trailing_zeros(bits)
        bits >>= zeros
        ones = trailing_ones(bits)
        bits >>= ones
        offset += zeros
        yield offset, offset + ones - 1
        offset += ones


class AckSet:
    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return sum(map(int.bit_count, self._chunks.values()))

    def __contains__(self, entry_id: int) -> bool:
        return bool(self._chunks.get(entry_id >> SHIFT, 0) & BITS[entry_id & MASK])

    def add(self, entry_id: int) -> bool:
        """False if the entry was already in the set."""
        key = entry_id >> SHIFT
        bit = BITS[entry_id & MASK]
        chunk = self._chunks.get(key, 0)
        if chunk & bit:
            return False
        chunk |= bit
        self._chunks[key] = FULL if chunk == FULL else chunk
        return True

    def add_range(self, first: int, last: int) -> None:
        for key in range(first >> SHIFT, (last >> SHIFT) + 1):
            chunk = self._chunks.get(key, 0) | window(key, first, last)
            self._chunks[key] = FULL if chunk == FULL else chunk

    @property
    def last(self) -> int:
        """The last acknowledged entry; -1 if there is none."""
        key = max(self._chunks, default=0)
        return (key << SHIFT) + self._chunks.get(key, 0).bit_length() - 1

    def first_missing(self, entry_id: int) -> int:
        """The first entry from `entry_id` on that is not acknowledged."""
        key, index = entry_id >> SHIFT, entry_id & MASK
        while True:
            index += trailing_ones(self._chunks.get(key, 0) >> index)
            if index < CHUNK:
                return (key << SHIFT) + index
            key, index = key + 1, 0

    def discard_up_to(self, entry_id: int) -> None:
        """Forget the entries up to `entry_id`."""
        for key in self._keys_between(0, entry_id):
            rest = self._chunks[key] & ~window(key, 0, entry_id)
            if rest:
                self._chunks[key] = rest
            else:
                del self._chunks[key]

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Closed ranges of acknowledged entries within `first` to `last`, in order."""
        found: list[tuple[int, int]] = []
        for key in self._keys_between(first, last):
            low = max(0, first - (key << SHIFT))
            bits = (self._chunks[key] & window(key, first, last)) >> low
            for start, end in runs_of_ones(bits, (key << SHIFT) + low):
                if found and found[-1][1] == start - 1:
                    found[-1] = (found[-1][0], end)
                else:
                    found.append((start, end))
        return found

    def count_up_to(self, last: int) -> int:
        return sum(
            (self._chunks[key] & window(key, 0, last)).bit_count()
            for key in self._keys_between(0, last)
        )

    def range_count(self) -> int:
        """The number of separate acknowledged ranges."""
        count = 0
        for key, chunk in self._chunks.items():
            joined = chunk & 1 and self._chunks.get(key - 1, 0) >> (CHUNK - 1)
            count += (chunk & ~(chunk << 1)).bit_count() - joined
        return count

    def encode(self) -> bytes:
        """Delta-encoded keys, a flag for full chunks, and the bitmap of the others."""
        out = Writer()
        out.number(len(self._chunks))
        previous = 0
        for key in sorted(self._chunks):
            chunk = self._chunks[key]
            out.number((key - previous) << 1 | (chunk == FULL))
            if chunk != FULL:
                out.blob(chunk.to_bytes((chunk.bit_length() + 7) // 8, "little"))
            previous = key
        return out.getvalue()

    @property
    def encoded_size(self) -> int:
        """The size of `encode`'s result; approximate if the keys are far apart."""
        chunks = self._chunks.values()
        sizes = (1 + (chunk.bit_length() + 7) // 8 for chunk in chunks if chunk != FULL)
        return 1 + len(self._chunks) + sum(sizes)

    def words(self) -> Iterator[int]:
        """Words of 64 entries each, from entry 0 on; the bits of acknowledged entries are set."""
        for number in range((self.last >> 6) + 1):
            chunk = self._chunks.get(number >> SHIFT - 6, 0)
            yield chunk >> (number << 6 & MASK) & WORD

    @classmethod
    def decode(cls, value: bytes) -> "AckSet":
        acks = cls()
        data = Reader(value, "a set of acknowledged entries")
        key = 0
        for _ in range(data.number()):
            step = data.number()
            key += step >> 1
            acks._chunks[key] = FULL if step & 1 else int.from_bytes(data.blob(), "little")
        return acks

    def _keys_between(self, first: int, last: int) -> list[int]:
        low, high = first >> SHIFT, last >> SHIFT
        if high - low < len(self._chunks):
            return [key for key in range(low, high + 1) if key in self._chunks]
        return sorted(key for key in self._chunks if low <= key <= high)


def window(key: int, first: int, last: int) -> int:
    """The bits of chunk `key` for entries `first` to `last`."""
    base = key << SHIFT
    low = max(0, first - base)
    high = min(CHUNK, last + 1 - base)
    return (1 << high) - (1 << low) if high > low else 0
