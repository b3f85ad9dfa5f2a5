"""Group commit: what is asked for in one tick, or during the last write, is one write.

Operations wait in groups; one group is written at a time. When it is durable its operations take
effect and tell their callers, in the order in which they were submitted. When a write fails, its
operations and all that were queued behind it fail, for they were numbered on top of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.storage.operations import Append, Operation

MAX_GROUP_BYTES: Final = 16 * 1024 * 1024
OPERATION_OVERHEAD_BYTES: Final = 64


@dataclass(slots=True)
class Group:
    operations: list[Operation] = field(default_factory=list)
    size_bytes: int = 0


class GroupCommit:
    """`write` makes a group durable, or fails; the others change the state on the loop:
    `apply` lets an operation take effect, `withdraw` forgets one that failed.
    """

    def __init__(
        self,
        write: Callable[[Group], asyncio.Future[None]],
        apply: Callable[[Operation], None],
        withdraw: Callable[[Operation], None],
    ) -> None:
        self._write = write
        self._apply = apply
        self._withdraw = withdraw
        self._queue: deque[Group] = deque()
        self._writing: Group | None = None
        self._scheduled = False
        self._held = False
        self._idle: asyncio.Event | None = None
        self.pending_bytes = 0

    def submit(self, operation: Operation, size_bytes: int) -> None:
        size_bytes += OPERATION_OVERHEAD_BYTES
        if not self._queue or self._queue[-1].size_bytes >= MAX_GROUP_BYTES:
            self._queue.append(Group())
        group = self._queue[-1]
        group.operations.append(operation)
        group.size_bytes += size_bytes
        self.pending_bytes += size_bytes
        if self._writing is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def hold(self) -> None:
        """Write nothing more until `release`; operations keep queueing."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self._start_next()

    async def drain(self) -> None:
        """Return once nothing is queued or being written."""
        while self._queue or self._writing is not None:
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()

    def fail_queued(self, error: Exception) -> None:
        """Nothing of what waits was written, and it will not be."""
        groups = list(self._queue)
        self._queue.clear()
        self._fail(groups, error)

    def _start(self) -> None:
        self._scheduled = False
        self._start_next()

    def _start_next(self) -> None:
        if self._writing is None and self._queue and not self._held:
            self._writing = self._queue.popleft()
            self._write(self._writing).add_done_callback(self._written)

    def _written(self, outcome: asyncio.Future[None]) -> None:
        group, self._writing = self._writing, None
        assert group is not None
        error = outcome.exception()
        if error is None:
            self._start_next()  # before the callbacks: the disk need not wait for them
            self._succeed(group)
        else:
            assert isinstance(error, Exception)
            groups = [group, *self._queue]
            self._queue.clear()
            self._fail(groups, error)
        if self._idle is not None and not self._queue and self._writing is None:
            self._idle.set()
            self._idle = None

    def _succeed(self, group: Group) -> None:
        self.pending_bytes -= group.size_bytes
        for operation in group.operations:
            self._apply(operation)
            self._tell(operation, None)

    def _fail(self, groups: list[Group], error: Exception) -> None:
        """Withdraw everything first: a caller that hears of it may submit anew at once."""
        self.pending_bytes -= sum(group.size_bytes for group in groups)
        operations = [operation for group in groups for operation in group.operations]
        for operation in operations:
            self._withdraw(operation)
        for operation in operations:
            self._tell(operation, error)

    def _tell(self, operation: Operation, error: Exception | None) -> None:
        """One caller's mistake must not keep the others from hearing."""
        try:
            operation.complete(error)
        except Exception as mistake:
            context = {"message": "a storage callback failed", "exception": mistake}
            asyncio.get_running_loop().call_exception_handler(context)


def size_of(operation: Operation) -> int:
    if isinstance(operation, Append):
        return operation.size_bytes + 8 * len(operation.entries)
    return 0
