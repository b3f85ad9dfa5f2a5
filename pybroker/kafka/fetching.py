"""A Fetch in progress: what its partitions have, and the wait for more.

A partition that has something new marks itself; only those are read again, however many partitions
the request has.
"""

import asyncio
from typing import Any

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import Position
from pybroker.base.errors import PulsarError
from pybroker.kafka.errors import ErrorCode, error_code
from pybroker.kafka.log.partition_log import PartitionLog
from pybroker.kafka.log.reading import fetch
from pybroker.kafka.pacing import paced


class PartitionFetch:
    """One partition of a Fetch. Without a log it has only an error."""

    __slots__ = (
        "_batches",
        "_committed",
        "_most_bytes",
        "_next_offset",
        "_seen",
        "_told",
        "error_code",
        "index",
        "log",
        "size_bytes",
    )

    def __init__(
        self,
        index: int,
        log: PartitionLog | None,
        offset: int = 0,
        most_bytes: int = 0,
        committed: bool = False,
        error: int = ErrorCode.NONE,
    ) -> None:
        self.index = index
        self.log = log
        self.error_code = error
        self.size_bytes = 0
        self._next_offset = offset
        self._most_bytes = most_bytes
        self._committed = committed
        self._batches: list[bytes] = []
        self._told = (-1, -1, -1)  # high watermark, last stable offset, log's start
        self._seen: Position | None = None  # the limit up to which it was read

    @property
    def has_news(self) -> bool:
        """Whether more may be read than was there at the last `read`."""
        log = self.log
        return log is not None and (log.closed or log.limit(self._committed) != self._seen)

    async def read(self, room_bytes: int, is_first: bool) -> None:
        """Reads on, for at most `room_bytes`; the first batch of all may be larger."""
        log = self.log
        if log is None or self.error_code:
            return
        try:
            await self._read(log, room_bytes, is_first)
        except (PulsarError, ManagedLedgerError) as error:
            self.error_code = error_code(error)
        if log.closed:
            self.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.error_code:
            self._batches, self.size_bytes = [], 0

    async def _read(self, log: PartitionLog, room_bytes: int, is_first: bool) -> None:
        last, stable_limit = log.topic.ledger.last_confirmed, log.limit(True)  # of one moment
        limit = self._seen = log.limit(self._committed)
        end = await log.offsets.end_after(last)
        stable = end if stable_limit == last else await log.offsets.end_after(stable_limit)
        start = await log.offsets.start()
        self._told = end, stable, start
        if not start <= self._next_offset <= end:
            self.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return
        readable = await log.offsets.end_after(limit)
        most_bytes = min(room_bytes, self._most_bytes - self.size_bytes)
        if self._next_offset >= readable or (most_bytes <= 0 and not is_first):
            return
        found = await fetch(log.topic, log.offsets, self._next_offset, limit, most_bytes, is_first)
        self._batches += found.batches
        self.size_bytes += found.size_bytes
        self._next_offset = found.next_offset

    def response(self) -> dict[str, Any]:
        end, stable, start = self._told
        return {
            "partition_index": self.index,
            "error_code": self.error_code,
            "high_watermark": end,
            "last_stable_offset": stable,
            "log_start_offset": start,
            "aborted_transactions": [] if self._committed else None,
            "records": b"".join(self._batches),
        }


def refused(index: int, error: int) -> PartitionFetch:
    return PartitionFetch(index, None, error=error)


class Fetching:
    def __init__(self, partitions: list[PartitionFetch], most_bytes: int) -> None:
        self._partitions = partitions
        self._most_bytes = most_bytes
        self._by_log: dict[PartitionLog, list[PartitionFetch]] = {}
        self._news: dict[PartitionLog, None] = {}
        self._woken: asyncio.Future[None] | None = None
        self._failed = False
        self.size_bytes = 0

    async def read(self, least_bytes: int, wait_s: float) -> None:
        """Returns with `least_bytes`, an error, or after `wait_s`."""
        async for each in paced(self._partitions):
            await self._read(each)
        if wait_s <= 0 or self._is_enough(least_bytes):
            return
        self._listen()
        try:
            async with asyncio.timeout(wait_s):
                while not self._is_enough(least_bytes):
                    await self._read_news()
        except TimeoutError:
            return
        finally:
            self._listen_no_more()

    async def _read(self, partition: PartitionFetch) -> None:
        before = partition.size_bytes
        await partition.read(self._most_bytes - self.size_bytes, not self.size_bytes)
        self.size_bytes += partition.size_bytes - before
        self._failed = self._failed or partition.error_code != ErrorCode.NONE

    def _is_enough(self, least_bytes: int) -> bool:
        return self._failed or self.size_bytes >= least_bytes

    def _listen(self) -> None:
        for each in self._partitions:
            if each.log is not None:
                self._by_log.setdefault(each.log, []).append(each)
        for log in self._by_log:
            log.waiting[self._changed] = None
        for each in self._partitions:  # what came since they were read
            if each.log is not None and each.has_news:
                self._changed(each.log)

    def _listen_no_more(self) -> None:
        for log in self._by_log:
            log.waiting.pop(self._changed, None)

    def _changed(self, log: PartitionLog) -> None:
        self._news[log] = None
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _read_news(self) -> None:
        if not self._news:
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
        news, self._news = self._news, {}
        for log in news:
            for each in self._by_log[log]:
                if each.has_news:
                    await self._read(each)
