"""Deadlines of open transactions, in buckets of a tenth of a second.

Adding and removing cost the same however many transactions are tracked, and an ended transaction
leaves nothing behind; a heap would keep it until its deadline, which may be hours away. Time is
passed in as monotonic seconds, so a jump of the wall clock aborts nothing.
"""

import heapq
import math
from typing import Final

_BUCKETS_PER_S: Final = 10
_EMPTIED: Final = 1000  # empty buckets tolerated in the heap, beyond as many as are in use


class TimeoutTracker:
    """Local transaction ids by deadline."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, None]] = {}
        self._bucket_of: dict[int, int] = {}
        self._order: list[int] = []  # a heap of all keys of _buckets and of some emptied buckets

    def __len__(self) -> int:
        return len(self._bucket_of)

    def add(self, local_id: int, deadline_s: float) -> None:
        bucket = math.ceil(deadline_s * _BUCKETS_PER_S)
        self._bucket_of[local_id] = bucket
        members = self._buckets.get(bucket)
        if members is None:
            members = self._buckets[bucket] = {}
            heapq.heappush(self._order, bucket)
        members[local_id] = None

    def remove(self, local_id: int) -> None:
        """Idempotent."""
        bucket = self._bucket_of.pop(local_id, None)
        if bucket is None:
            return
        members = self._buckets[bucket]
        del members[local_id]
        if not members:
            del self._buckets[bucket]
            if len(self._order) > 2 * len(self._buckets) + _EMPTIED:
                self._order = sorted(self._buckets)

    def pop_expired(self, now_s: float) -> int | None:
        """Remove and return a transaction that is due, the earliest to a tenth of a second; None if
        none is due.
        """
        while self._order and self._order[0] / _BUCKETS_PER_S <= now_s:
            if members := self._buckets.get(self._order[0]):
                local_id, _ = members.popitem()
                del self._bucket_of[local_id]
                return local_id
            self._buckets.pop(heapq.heappop(self._order), None)
        return None

    @property
    def next_deadline_s(self) -> float:
        """When to call `pop_expired` next, in monotonic seconds; infinity if nothing is tracked.
        The transactions due at that time may end before.
        """
        return self._order[0] / _BUCKETS_PER_S if self._bucket_of else math.inf
