"""Assigns keys to consumers: Murmur3 onto 65,536 slots, and the owner of each slot.

AUTO_SPLIT: every consumer has 100 points on the ring and owns the slots up to each of them, so a
consumer that joins or leaves moves only its own share. STICKY: consumers name their ranges.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import shake_128
from itertools import pairwise
from struct import Struct
from typing import Final

from pybroker.base.errors import ConsumerAssignError
from pybroker.broker.subscriptions.consumer import Consumer, KeySharedPolicy

RING_SIZE: Final = 65536
POINTS_PER_CONSUMER: Final = 100
MAX_HASHED_BYTES: Final = 4096
_POINTS: Final = Struct(f"<{POINTS_PER_CONSUMER}H")
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
    """Only the beginning of a very long key counts, so that hashing it does not block the
    broker.
    """
    return _slot_of_short(key) if len(key) <= 64 else murmur3_32(key[:MAX_HASHED_BYTES]) % RING_SIZE


def slot_of_origin(origin: bytes) -> int:
    """For a producer's name and a sequence id, which rarely repeat: nothing is cached."""
    return murmur3_32(origin[-MAX_HASHED_BYTES:]) % RING_SIZE


@lru_cache(maxsize=RING_SIZE)
def _slot_of_short(key: bytes) -> int:
    return murmur3_32(key) % RING_SIZE


class HashRing:
    """AUTO_SPLIT. When a consumer joins or leaves, only the points of one seed change."""

    def __init__(self) -> None:
        self._namesakes: dict[str, list[Consumer]] = {}  # in the order of ranks
        self._by_seed: dict[str, Consumer] = {}
        self._claims: dict[int, list[str]] = {}  # seeds, by point: the smallest seed owns it
        self._points: list[int] = []

    def add(self, consumer: Consumer) -> None:
        namesakes = self._namesakes.get(consumer.name, [])[:]
        insort(namesakes, consumer, key=_rank)
        self._rename(consumer.name, namesakes)

    def remove(self, consumer: Consumer) -> None:
        namesakes = self._namesakes[consumer.name]
        self._rename(consumer.name, [other for other in namesakes if other is not consumer])

    def owner(self, slot: int) -> Consumer | None:
        if not self._points:
            return None
        return self._owner_of(self._points[bisect_left(self._points, slot) % len(self._points)])

    def _owner_of(self, point: int) -> Consumer:
        return self._by_seed[self._claims[point][0]]

    def ranges(self) -> Iterator[tuple[int, int, Consumer]]:
        """Closed ranges of slots, in order. A point ends the range of slots of its owner."""
        start = 0
        for point in self._points:
            yield start, point, self._owner_of(point)
            start = point + 1
        if self._points and start < RING_SIZE:
            yield start, RING_SIZE - 1, self._owner_of(self._points[0])

    def _rename(self, name: str, namesakes: list[Consumer]) -> None:
        """Give the name's seeds to its present consumers: few seeds are new, or no longer used."""
        old, new = dict(_seeds(self._namesakes.pop(name, []))), dict(_seeds(namesakes))
        if namesakes:
            self._namesakes[name] = namesakes
        for seed in old.keys() - new.keys():
            self._withdraw(seed)
        for seed in new.keys() - old.keys():
            self._claim(seed)
        self._points.sort()
        self._by_seed.update(new)

    def _claim(self, seed: str) -> None:
        for point in points_of(seed):
            claimants = self._claims.get(point)
            if claimants is None:
                self._claims[point] = [seed]
                self._points.append(point)
            else:
                insort(claimants, seed)

    def _withdraw(self, seed: str) -> None:
        del self._by_seed[seed]
        for point in points_of(seed):
            self._claims[point].remove(seed)
            if not self._claims[point]:
                del self._claims[point]
                del self._points[bisect_left(self._points, point)]


def _rank(consumer: Consumer) -> tuple[str, int, int]:
    return consumer.rank


def points_of(seed: str) -> Iterable[int]:
    noise = shake_128(seed.encode(), usedforsecurity=False).digest(2 * POINTS_PER_CONSUMER)
    return dict.fromkeys(_POINTS.unpack(noise))


def _seeds(namesakes: list[Consumer]) -> Iterator[tuple[str, Consumer]]:
    """The oldest consumer of a name is seeded by the name alone, so it keeps its slots when it
    reconnects. Younger ones add their connection, so that none moves the slots of another.
    """
    on_connection: Counter[int] = Counter()
    for at, consumer in enumerate(namesakes):
        if at == 0:
            yield f"{consumer.name}/0", consumer
            continue
        on_connection[consumer.request.connection] += 1
        number = on_connection[consumer.request.connection]
        yield f"{consumer.name}/{consumer.request.connection}.{number}", consumer


class StickyRanges:
    """STICKY: slots that no consumer has named have no owner, and their messages wait."""

    def __init__(self) -> None:
        self._owned: list[tuple[int, int, Consumer]] = []  # closed ranges, in order
        self._starts: list[int] = []

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if the ranges are invalid or overlap another consumer's."""
        policy = consumer.request.key_shared
        ranges = () if policy is None else policy.ranges
        if not ranges:
            raise ConsumerAssignError(f"Consumer {consumer.name} is STICKY but gives no hash range")
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
                    f"consumer {consumer.name} that ends at {end}: use ranges that do not overlap"
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


def check_same_mode(consumer: Consumer, policy: KeySharedPolicy) -> None:
    """Raises ConsumerAssignError if a consumer requests another way to split the ring."""
    wanted = consumer.request.key_shared or KeySharedPolicy()
    if (wanted.mode, wanted.by_entry_buckets) != (policy.mode, policy.by_entry_buckets):
        raise ConsumerAssignError(
            f"Consumer {consumer.name} is {_way(wanted)}, but the connected consumers are "
            f"{_way(policy)}: use the same Key_Shared policy"
        )


def _way(policy: KeySharedPolicy) -> str:
    return f"{policy.mode.name} by entry buckets" if policy.by_entry_buckets else policy.mode.name
