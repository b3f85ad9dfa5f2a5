"""Chooses a message's partition.

With a key: its hash modulo the number of partitions, as in the official clients. Without one: in
turn; a partition with an open batch keeps its turn until that batch is sent, because otherwise
each batch would hold one message.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pybroker.base.key_hash import java_string_hash
from pybroker.client.messages import Outgoing
from pybroker.client.options import HashingScheme, PartitionsRoutingMode

_U32: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF


class Batching(Protocol):
    @property
    def has_open_batch(self) -> bool: ...


def murmur3_hash(key: str) -> int:
    """Without the sign bit."""
    return murmur3_32(key) & _POSITIVE


def murmur3_32(key: str | bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, of a text's UTF-8."""
    data = key.encode() if isinstance(key, str) else key
    value = 0
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        value ^= _murmur_mix(int.from_bytes(data[start : start + 4], "little"))
        value = (_rotate(value, 13) * 5 + 0xE6546B64) & _U32
    value ^= _murmur_mix(int.from_bytes(data[whole:], "little"))
    return _murmur_finish(value ^ len(data))


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _U32


def _murmur_mix(word: int) -> int:
    return _rotate(word * 0xCC9E2D51 & _U32, 15) * 0x1B873593 & _U32


def _murmur_finish(value: int) -> int:
    value = (value ^ (value >> 16)) * 0x85EBCA6B & _U32
    value = (value ^ (value >> 13)) * 0xC2B2AE35 & _U32
    return value ^ (value >> 16)


_HASHES: Final[dict[HashingScheme, Callable[[str], int]]] = {
    HashingScheme.JavaStringHash: java_string_hash,
    HashingScheme.Murmur3_32Hash: murmur3_hash,
}


def partition_for_key(
    key: str, partitions: int, scheme: HashingScheme = HashingScheme.JavaStringHash
) -> int:
    """The partition to which producers send a key, from 0."""
    return _HASHES[scheme](key) % partitions


class Router:
    def __init__(
        self,
        partitions: Sequence[Batching],
        mode: PartitionsRoutingMode,
        scheme: HashingScheme,
        rng: random.Random,
    ) -> None:
        self._partitions = partitions
        self._moves = mode is PartitionsRoutingMode.RoundRobinDistribution
        self._scheme = scheme
        self._turn = rng.randrange(len(partitions)) if len(partitions) > 1 else 0

    def choose(self, message: Outgoing) -> int:
        count = len(self._partitions)
        if count == 1:
            return 0
        if message.partition_key is not None:
            return partition_for_key(message.partition_key, count, self._scheme)
        return self.next_turn()

    def next_turn(self) -> int:
        if self._moves and not self._partitions[self._turn].has_open_batch:
            self._turn = (self._turn + 1) % len(self._partitions)
        return self._turn
