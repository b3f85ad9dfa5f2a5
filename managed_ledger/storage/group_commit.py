"""Group commit: operations submitted in one tick, or during the previous write, are one write.

Operations wait in groups; one group is written at a time. When a group is durable, its operations
take effect and call back in the order of submission. When a write fails, its operations and all
queued ones fail, because their numbers follow those of the failed ones. Unless the disk was merely
full, nothing more is written.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.errors import StorageFull
from managed_ledger.prompt import when_done
from managed_ledger.storage.commit_stats import CommitStats
from managed_ledger.storage.operations import Append, Operation, Put, call_safely

MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
OPERATION_OVERHEAD_BYTES: Final = 64
ENTRY_OVERHEAD_BYTES: Final = 8


@dataclass(slots=True)
class Group:
    operations: list[Operation] = field(default_factory=list)
    size_bytes: int = 0


class GroupCommit:
    """`write` makes a group durable, or fails; `apply` makes an operation take effect; `withdraw`
    drops a failed operation.
    """

    def __init__(
        self,
        write: Callable[[Group], asyncio.Future[None]],
        apply: Callable[[Operation], None],
        withdraw: Callable[[Operation], None],
        room_is_low: Callable[[], bool] = lambda: False,
        must_wait: Callable[[Operation], bool] = lambda operation: False,
    ) -> None:
        """When space is low, operations that must wait for room fail before they are written."""
        self._write = write
        self._room_is_low = room_is_low
        self._must_wait = must_wait
        self._apply = apply
        self._withdraw = withdraw
        self._queue: deque[Group] = deque()
        self._writing: Group | None = None
        self._began_s = 0.0
        self.stats = CommitStats()
        self._scheduled = False
        self._refusal: Exception | None = None
        self._idle: asyncio.Event | None = None
        self.pending_bytes = 0

    def submit(self, operation: Operation) -> None:
        if self._refusal is not None:
            self._withdraw(operation)
            asyncio.get_running_loop().call_soon(call_safely, operation.complete, self._refusal)
            return
        self._enqueue(operation)
        if self._writing is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _enqueue(self, operation: Operation) -> None:
        size_bytes = cost_of(operation)
        if not self._queue or self._queue[-1].size_bytes >= MAX_GROUP_BYTES:
            self._queue.append(Group())
        group = self._queue[-1]
        group.operations.append(operation)
        group.size_bytes += size_bytes
        self.pending_bytes += size_bytes

    async def drain(self) -> None:
        """Return once nothing is queued or being written."""
        while self._queue or self._writing is not None:
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()

    def stop_taking(self, error: Exception) -> None:
        """Refuse new operations with `error`; submitted ones still complete."""
        self._refusal = error

    def refuse(self, error: Exception) -> None:
        """As `stop_taking`, and fail the operations that are waiting."""
        self._refusal = error
        self._fail_queued(error)

    def _start(self) -> None:
        self._scheduled = False
        if self._room_is_low():
            self._fail_what_must_wait()
        self._write_next()
        self._say_if_idle()

    def _write_next(self) -> None:
        if self._writing is None and self._queue:
            self._writing = self._queue.popleft()
            self._began_s = asyncio.get_running_loop().time()
            when_done(self._write(self._writing), self._written)

    def _written(self, outcome: asyncio.Future[None]) -> None:
        group, self._writing = self._writing, None
        assert group is not None
        self.pending_bytes -= group.size_bytes
        error = outcome.exception()
        if error is None:
            took_s = asyncio.get_running_loop().time() - self._began_s
            self.stats.written(took_s, len(group.operations), group.size_bytes)
        if error is None and self._queue and self._room_is_low():
            self._succeed(group.operations)
            self._fail_what_must_wait()
            self._write_next()
        elif error is None:
            self._write_next()  # before the callbacks, so that the disk does not wait for them
            self._succeed(group.operations)
        else:
            assert isinstance(error, Exception)
            if not isinstance(error, StorageFull):
                self._refusal = error  # the disk's contents are unknown
            self._fail_queued(error, group.operations)
        self._say_if_idle()

    def _say_if_idle(self) -> None:
        if self._idle is not None and not self._queue and self._writing is None:
            self._idle.set()
            self._idle = None

    def _fail_what_must_wait(self) -> None:
        """Fail all of these operations at once: the numbers of later entries follow those of
        earlier ones, and a write to a key is based on the write before it.
        """
        waiting, refused = [op for group in self._queue for op in group.operations], []
        keys: set[str] = set()  # of refused operations
        self.pending_bytes -= sum(group.size_bytes for group in self._queue)
        self._queue.clear()
        for operation in waiting:
            put = operation if isinstance(operation, Put) else None
            if self._must_wait(operation) or (put is not None and put.key in keys):
                self._withdraw(operation)
                refused.append(operation)
                if put is not None:
                    keys.add(put.key)
            else:
                self._enqueue(operation)
        for operation in refused:
            call_safely(operation.complete, no_room())

    def _succeed(self, operations: Iterable[Operation]) -> None:
        apply = self._apply
        for operation in operations:
            apply(operation)
            call_safely(operation.complete, None)

    def _fail_queued(self, error: Exception, written: Iterable[Operation] = ()) -> None:
        """Withdraw all operations before any callback: a callback may submit again at once."""
        groups, self._queue = self._queue, deque()
        self.pending_bytes -= sum(group.size_bytes for group in groups)
        failed = [*written, *(operation for group in groups for operation in group.operations)]
        for operation in failed:
            self._withdraw(operation)
        for operation in failed:
            call_safely(operation.complete, error)


def cost_of(operation: Operation) -> int:
    """The operation's approximate size in memory and on disk."""
    size_bytes = OPERATION_OVERHEAD_BYTES
    if isinstance(operation, Append):
        size_bytes += operation.size_bytes + ENTRY_OVERHEAD_BYTES * len(operation.entries)
    elif isinstance(operation, Put):
        size_bytes += len(operation.stored.value)
    return size_bytes


def no_room() -> StorageFull:
    return StorageFull(
        "the disk is nearly full: no messages are accepted until there is room again; delete "
        "topics, consume messages that retention can then release, or free disk space. Nothing was "
        "lost"
    )
