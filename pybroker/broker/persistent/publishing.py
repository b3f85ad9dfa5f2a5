"""Messages from producers, and those not yet durable."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from managed_ledger.position import Position
from pybroker.base.names import TxnId

LAST_WRITES_S: Final = 10.0

# Called once: with the first entry's position, or with the reason why nothing was written.
Published = Callable[[Position | None, Exception | None], None]


class PublishRun(Protocol):
    """Consecutive messages of one producer, by column (wire.frames.SendRun is one)."""

    @property
    def txn_id(self) -> TxnId | None: ...
    @property
    def entries(self) -> list[bytes]: ...
    @property
    def message_counts(self) -> list[int]: ...


class OnTheWay:
    """Runs that are not durable yet."""

    __slots__ = ("_all_there", "count")

    def __init__(self) -> None:
        self.count = 0
        self._all_there: asyncio.Event | None = None  # set when no run is left

    def arrived(self) -> None:
        self.count -= 1
        if self._all_there is not None and not self.count:
            self._all_there.set()
            self._all_there = None

    async def settled(self) -> bool:
        """Whether no run is in flight any more. Waits for a limited time only, in case the storage
        never answers.
        """
        if self.count and self._all_there is None:
            self._all_there = asyncio.Event()
        if self._all_there is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_there.wait(), LAST_WRITES_S)
        return not self.count
