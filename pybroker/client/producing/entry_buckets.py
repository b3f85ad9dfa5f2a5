"""The entry buckets of a segment: an entry has messages of one of them, and says of which hashes.

So a broker can give whole entries to several stream consumers, each key to one. Source: PIP-486.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from pybroker.client.messages import Outgoing
from pybroker.client.producing.routing import murmur3_32
from pybroker.wire import pulsar_api_pb2 as pb


class Hashes(NamedTuple):
    """The range of those in an entry; both ends are included."""

    least: int
    most: int

    def with_one(self, more: int) -> "Hashes":
        return Hashes(min(self.least, more), max(self.most, more))

    def stamp(self, metadata: pb.MessageMetadata) -> None:
        metadata.entry_hash_min, metadata.entry_hash_max = self


class EntryBuckets:
    def __init__(self, splits: Sequence[int]) -> None:
        """`splits`: the first hashes of all buckets but the first one."""
        self._splits = splits

    def hash_of(self, message: Outgoing) -> int:
        """The lower 16 bits of the hash that chose the segment; 0 without a key."""
        if message.ordering_key is not None:
            return _hash(bytes(message.ordering_key))
        return 0 if message.partition_key is None else _hash(message.partition_key)

    def bucket_of(self, key_hash: int) -> int:
        return bisect_right(self._splits, key_hash)


@lru_cache(maxsize=16_384)
def _hash(key: str | bytes) -> int:
    return murmur3_32(key) & 0xFFFF
