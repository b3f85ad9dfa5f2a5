"""Which consumer gets which key: Murmur3 onto a ring of 65,536 slots, and who owns a slot.

AUTO_SPLIT: every consumer has 100 points on the ring and owns the slots up to each of them, so a
consumer that comes or goes moves only its own share. STICKY: consumers name their ranges.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from pybroker.broker.consumer import Consumer, KeySharedMode, KeySharedPolicy
from pybroker.errors import ConsumerAssignError

RING_SIZE: Final = 65536
POINTS_PER_CONSUMER: Final = 100
MAX_HASHED_BYTES: Final = 4096
_WORD: Final = 0xFFFF_FFFF


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD


def _mixed(block: bytes) -> int:
    word = int.from_bytes(block, "little") * 0xCC9E2D51 & _WORD
    return _rotated(word, 15) * 0x1B873593 & _WORD


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3, x86 variant with 32 bits."""
    state = seed
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        state = _rotated(state ^ _mixed(data[at : at + 4]), 13) * 5 + 0xE6546B64 & _WORD
    state ^= _mixed(data[whole:]) ^ len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & _WORD
    return state ^ state >> 16


def slot_of(key: bytes) -> int:
    """Of a very long key the beginning decides, so that hashing it does not hold up the broker."""
    return _slot_of_short(key) if len(key) <= 64 else murmur3_32(key[:MAX_HASHED_BYTES]) % RING_SIZE


@lru_cache(maxsize=RING_SIZE)
def _slot_of_short(key: bytes) -> int:
    return murmur3_32(key) % RING_SIZE


class HashRing:
    """AUTO_SPLIT. A consumer that comes or goes costs its own points, not everybody's."""

    def __init__(self) -> None:
        self._namesakes: dict[str, list[Consumer]] = {}  # by rank
        self._seeds: dict[Consumer, str] = {}
        self._claims: dict[int, list[Consumer]] = {}  # by point; by rank: the first one has it
        self._points: list[int] = []

    def add(self, consumer: Consumer) -> None:
        namesakes = self._namesakes.setdefault(consumer.name, [])
        insort(namesakes, consumer, key=_rank)
        self._place(namesakes)

    def remove(self, consumer: Consumer) -> None:
        namesakes = self._namesakes[consumer.name]
        namesakes.remove(consumer)
        if not namesakes:
            del self._namesakes[consumer.name]
        self._withdraw([consumer])
        self._place(namesakes)

    def owner(self, slot: int) -> Consumer | None:
        if not self._points:
            return None
        return self._claims[self._points[bisect_left(self._points, slot) % len(self._points)]][0]

    def ranges(self) -> Iterator[tuple[int, int, Consumer]]:
        """Closed ranges of slots, in order. A point ends the range of slots that its owner has."""
        start = 0
        for point in self._points:
            yield start, point, self._claims[point][0]
            start = point + 1
        if self._points and start < RING_SIZE:
            yield start, RING_SIZE - 1, self._claims[self._points[0]][0]

    def _place(self, namesakes: list[Consumer]) -> None:
        """Give those their points whose seed is new, because of who came or went."""
        moved = [(one, seed) for one, seed in _seeds(namesakes) if self._seeds.get(one) != seed]
        self._withdraw([consumer for consumer, _ in moved if consumer in self._seeds])
        for consumer, seed in moved:
            self._claim(consumer, seed)
        self._points.sort()

    def _claim(self, consumer: Consumer, seed: str) -> None:
        self._seeds[consumer] = seed
        for point in _points_of(seed):
            claimants = self._claims.get(point)
            if claimants is None:
                self._claims[point] = [consumer]
                self._points.append(point)
            else:
                insort(claimants, consumer, key=_rank)

    def _withdraw(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            for point in _points_of(self._seeds.pop(consumer)):
                self._claims[point].remove(consumer)
                if not self._claims[point]:
                    del self._claims[point]
        if consumers:
            self._points = [point for point in self._points if point in self._claims]


def _rank(consumer: Consumer) -> tuple[str, int, int]:
    return consumer.rank


@lru_cache(maxsize=2000)
def _points_of(seed: str) -> tuple[int, ...]:
    points = (slot_of(f"{seed}/{number}".encode()) for number in range(POINTS_PER_CONSUMER))
    return tuple(dict.fromkeys(points))


def _seeds(namesakes: list[Consumer]) -> Iterator[tuple[Consumer, str]]:
    """A name alone for the oldest that has it, so that it keeps its slots when it reconnects; for
    younger namesakes their connection too, so that none of them moves another one's slots.
    """
    on_connection: Counter[int] = Counter()
    for at, consumer in enumerate(namesakes):
        if at == 0:
            yield consumer, f"{consumer.name}/0"
            continue
        on_connection[consumer.connection] += 1
        yield (
            consumer,
            f"{consumer.name}/{consumer.connection}.{on_connection[consumer.connection]}",
        )


class StickyRanges:
    """STICKY: slots that no consumer named have no owner, and their messages wait."""

    def __init__(self) -> None:
        self._owned: list[tuple[int, int, Consumer]] = []  # closed ranges, in order
        self._starts: list[int] = []

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if the ranges are unusable or meet somebody else's."""
        ranges = consumer.key_shared.ranges if consumer.key_shared is not None else ()
        if not ranges:
            raise ConsumerAssignError(f"Consumer {consumer.name} is STICKY but names no hash range")
        for start, end in ranges:
            if not 0 <= start <= end < RING_SIZE:
                raise ConsumerAssignError(
                    f"Consumer {consumer.name}: hash range {start}..{end} is not within "
                    f"0..{RING_SIZE - 1}"
                )
        self._own([*self._owned, *((start, end, consumer) for start, end in ranges)])

    def _own(self, owned: list[tuple[int, int, Consumer]]) -> None:
        owned.sort(key=lambda item: item[0])
        for (_, end, consumer), (start, other_end, other) in pairwise(owned):
            if start <= end:
                raise ConsumerAssignError(
                    f"Hash range {start}..{other_end} of consumer {other.name} overlaps one of "
                    f"consumer {consumer.name} that ends at {end}: name ranges that do not meet"
                )
        self._owned = owned
        self._starts = [start for start, _, _ in owned]

    def remove(self, consumer: Consumer) -> None:
        self._own([item for item in self._owned if item[2] is not consumer])

    def ranges(self) -> Iterator[tuple[int, int, Consumer]]:
        return iter(self._owned)

    def owner(self, slot: int) -> Consumer | None:
        at = bisect_right(self._starts, slot) - 1
        if at < 0 or slot > self._owned[at][1]:
            return None
        return self._owned[at][2]


def split_by(policy: KeySharedPolicy) -> HashRing | StickyRanges:
    return StickyRanges() if policy.mode is KeySharedMode.STICKY else HashRing()
