"""Repeats the ends that a participant did not complete, in the order of decision.

A topic in commit order shows transactions in the order in which they end there. So an end that has
to be repeated goes before all later ones of the same coordinator: these queue behind it, without
being tried. Other participants are not affected. Aborts, which no reader sees, do not wait for
commits: they may free the room that a commit needs.

    pause     after a failure; it grows. A new end at the participant shortens it, because the
              participant may be there again
    the first is tried alone
    the rest  follows in pieces, each told in one turn, until one fails

The first failure may come after that of a later end, so the queue is sorted.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Final, Protocol

_FIRST_PAUSE_S: Final = 0.05
_LAST_PAUSE_S: Final = 10.0
_PIECE: Final = 200  # ends that are told in one turn


class RepeatedEnd(Protocol):
    """The end of one transaction at the participant."""

    @property
    def number(self) -> int:
        """Unique; in the order of decision."""
        ...

    def tell(self) -> Awaitable[object] | None:
        """Like Participants.end_on_partition. Raises."""
        ...

    def answered(self, result: object) -> None: ...

    def failed(self, error: BaseException) -> bool:
        """True if it is to be repeated."""
        ...


class RepeatedEnds:
    """The commits, or the aborts, that wait for one participant; exists while there are any."""

    __slots__ = ("_newcomer", "_pause_s", "_queue")

    def __init__(self, first: RepeatedEnd) -> None:
        self._queue = [(first.number, first)]
        self._newcomer = asyncio.Event()
        self._pause_s = _FIRST_PAUSE_S

    def add(self, end: RepeatedEnd) -> None:
        heappush(self._queue, (end.number, end))
        self._newcomer.set()

    async def run(self) -> None:
        """Returns when the queue is empty. No end may be added after that."""
        most = 1
        await self._pause()
        while self._queue:
            if await self._tell(most):
                self._pause_s, most = _FIRST_PAUSE_S, _PIECE
            else:
                most = 1
                await self._pause()

    async def _pause(self) -> None:
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LAST_PAUSE_S)
        await asyncio.sleep(_FIRST_PAUSE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s - _FIRST_PAUSE_S):
                await self._newcomer.wait()
                self._pause_s = 2 * _FIRST_PAUSE_S
        self._newcomer.clear()

    async def _tell(self, most: int) -> bool:
        """Tell the first `most` ends, in order, and wait for them. False if one failed: those that
        failed, or were not told because of it, are in the queue again.
        """
        told = list[tuple[RepeatedEnd, asyncio.Future[object]]]()
        succeeded = True
        for _ in range(min(most, len(self._queue))):
            _, end = heappop(self._queue)
            try:
                ending = end.tell()
                if isinstance(ending, asyncio.Future):
                    told.append((end, ending))
                else:  # a coroutine takes its place in the order only when it is awaited
                    end.answered(None if ending is None else await ending)
            except Exception as error:
                succeeded = self._is_over(end, error)
                if not succeeded:
                    break
        if told:
            await asyncio.wait([ending for _, ending in told])
        for end, ending in told:
            interrupted = asyncio.CancelledError() if ending.cancelled() else None
            if (failure := interrupted or ending.exception()) is not None:
                succeeded = self._is_over(end, failure) and succeeded
            else:
                end.answered(ending.result())
        return succeeded

    def _is_over(self, end: RepeatedEnd, error: BaseException) -> bool:
        if not end.failed(error):
            return True
        heappush(self._queue, (end.number, end))
        return False
