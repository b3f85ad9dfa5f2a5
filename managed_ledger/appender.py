"""Appends to the current ledger, in order, even across a rollover or a failure.

Backends call back in the order of the appends, so one bound method and a deque suffice to match
callbacks to appends. Appends are held while a new ledger is being created, and continue in order.
If the ledger has ended (LedgerEnded), the appends that it lacks are held ahead of all later ones
and are repeated in the next ledger. This is safe because the storage has closed the ended ledger:
no reader will ever find them there. After any other failure the caller must repeat the append.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from managed_ledger.errors import EntryTooLarge, LedgerClosed, LedgerEnded, ManagedLedgerError
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.position import Position
from managed_ledger.storage.backend import LogStorage
from managed_ledger.storage.operations import call_safely

# Called with the reason why the current ledger accepts no more entries (LedgerClosed: it belongs to
# another writer), and with None for each append that is held.
OnTrouble = Callable[[LedgerEnded | LedgerClosed | None], None]
# Called once, in the order of the appends, with the position of the first entry or the error.
Appended = Callable[[Position | None, Exception | None], None]


_LARGE_BYTES: Final = 512 << 10  # less than any storage's limit of an entry
Held = tuple[Sequence[bytes], Sequence[int], Appended, bytes]
NONE_WAITING: Final[deque[Any]] = deque(
    maxlen=0
)  # shared by idle ledgers: an empty deque takes 600 bytes


def ignore_trouble(ended: LedgerEnded | LedgerClosed | None) -> None:
    """The callback before a Rollover exists and after the managed ledger has ended."""


class Appender:
    __slots__ = (
        "_abandoned",
        "_ahead_of_held",
        "_drained",
        "_held",
        "_holds",
        "_index",
        "_max_bytes",
        "_max_entries",
        "_pending",
        "_queued_bytes",
        "_refusal",
        "_storage",
        "on_full",
        "on_trouble",
        "queued_entries",
    )

    def __init__(
        self,
        storage: LogStorage,
        index: LedgerIndex,
        max_entries: int,
        max_bytes: int,
        on_full: Callable[[], None],
    ) -> None:
        """`on_full` is called after each append that leaves the current ledger at a limit."""
        self._storage = storage
        self._index = index
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self.on_full = on_full
        self.on_trouble: OnTrouble = ignore_trouble
        self._pending: deque[tuple[int, Held]] = NONE_WAITING  # size in bytes, and the append
        self._held: deque[Held] = NONE_WAITING
        self._ahead_of_held: tuple[Callable[[], None], ...] = ()
        self._holds = 0  # calls of `hold` without a `release`
        self._abandoned = 0  # callbacks still to come for appends that failed with an earlier one
        self._drained: asyncio.Event | None = None
        self._refusal: LedgerClosed | None = None
        self.queued_entries = 0  # of the current ledger, durable or queued
        self._queued_bytes = 0

    def append(
        self, entries: Sequence[bytes], message_counts: Sequence[int], done: Appended, tag: bytes
    ) -> bool:
        """Returns True like `LogStorage.append`; held appends have no order relative to other
        ledgers.
        """
        if self._refusal is not None:
            refusal = LedgerClosed(*self._refusal.args)
            asyncio.get_running_loop().call_soon(done, None, refusal)
        elif self._holds:
            if self._held is NONE_WAITING:
                self._held = deque()
            self._held.append((entries, message_counts, done, tag))
            self.on_trouble(None)
        else:
            return self._submit(entries, message_counts, done, tag)
        return False

    @property
    def is_holding(self) -> bool:
        """Whether appends are currently held."""
        return self._holds > 0

    def queued_messages(self) -> int:
        """The number of messages in appends that are not durable yet."""
        queued = (*(each for _, each in self._pending), *self._held)
        return sum(sum(message_counts) for _, message_counts, _, _ in queued)

    def call_after_queued(self, work: Callable[[], None]) -> None:
        """Call `work` once all appends so far are durable or have failed."""
        if self._held:
            entries, message_counts, done, tag = self._held.pop()
            self._held.append((entries, message_counts, _and_then(done, work), tag))
        elif self._pending:
            self._call_after_pending(work)
        else:
            call_safely(work)

    def _call_after_pending(self, work: Callable[[], None]) -> None:
        size_bytes, (entries, message_counts, done, tag) = self._pending.pop()
        held = entries, message_counts, _and_then(done, work), tag
        self._pending.append((size_bytes, held))

    def hold(self) -> None:
        """Hold appends until every `hold` has had its `release`."""
        self._holds += 1

    def hold_until(self, done: "asyncio.Future[None]") -> None:
        """Hold appends until `done` succeeds, fails or is cancelled."""
        self.hold()
        done.add_done_callback(lambda _: self.release())

    def call_ahead_of_held(self, work: Callable[[], None]) -> None:
        """Call `work` once, just before held appends continue; never if they fail."""
        if self._holds:
            self._ahead_of_held += (work,)

    def release(self) -> None:
        """Continue held appends into the index's current ledger."""
        if not self._pending:
            self._count_anew()  # the current ledger may be a new one
        self._holds -= 1
        if self._holds:
            return
        ahead, self._ahead_of_held = self._ahead_of_held, ()
        for work in ahead:
            call_safely(work)
        while self._held and not self._holds:
            self._submit(*self._held.popleft())
        if not self._held:
            self._held = NONE_WAITING

    def refuse(self, error: LedgerClosed) -> None:
        """Fail held and all later appends. Each gets its own instance of the error, because a
        traceback stays attached to the instance that is raised.
        """
        self._refusal = error
        held, self._held = self._held, NONE_WAITING
        self._ahead_of_held = ()
        for _, _, done, _ in held:
            call_safely(done, None, LedgerClosed(*error.args))

    def fail_held(self, error: ManagedLedgerError) -> None:
        """Fail held appends, but keep holding new ones: the next attempt to create a ledger may
        succeed.
        """
        held, self._held = self._held, NONE_WAITING
        for _, _, done, _ in held:
            call_safely(done, None, type(error)(*error.args))

    async def drained(self) -> None:
        """Return once every append passed to the storage has completed."""
        while self._pending:
            if self._drained is None:
                self._drained = asyncio.Event()
            await self._drained.wait()

    def _submit(
        self, entries: Sequence[bytes], message_counts: Sequence[int], done: Appended, tag: bytes
    ) -> bool:
        first_entry_id = self.queued_entries
        count = len(entries)
        size_bytes = len(entries[0]) if count == 1 else sum(map(len, entries))
        if size_bytes > _LARGE_BYTES and (error := self._why_too_large(entries, tag)) is not None:
            self._refuse_in_turn(done, error)
            return False
        self.queued_entries += count
        self._queued_bytes += size_bytes
        if self._pending is NONE_WAITING:
            self._pending = deque()
        self._pending.append((size_bytes, (entries, message_counts, done, tag)))
        in_order = self._storage.append(
            self._index.current_id,
            first_entry_id,
            entries,
            message_counts,
            self._on_appended,
            tag,
        )
        if self.queued_entries >= self._max_entries or self._queued_bytes >= self._max_bytes:
            self.on_full()
        return in_order

    def _why_too_large(self, entries: Sequence[bytes], tag: bytes) -> EntryTooLarge | None:
        most = self._storage.entry_limit.max_bytes
        if most is None or (size_bytes := max(map(len, entries)) + len(tag)) <= most:
            return None
        return EntryTooLarge(
            f"an entry has {size_bytes} bytes, but the bookies store at most {most}: make "
            "nettyMaxFrameSizeBytes of the bookies larger than maxMessageSize of the brokers"
        )

    def _refuse_in_turn(self, done: Appended, error: EntryTooLarge) -> None:
        """After the pending appends. Only this append fails, because it took no number."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(call_safely, done, None, error)
            return
        self._call_after_pending(lambda: done(None, error))

    def _on_appended(self, error: Exception | None) -> None:
        if self._abandoned:
            self._abandoned -= 1
        elif error is not None:
            self._fail_pending(error)
        else:
            size_bytes, (entries, _, done, _) = self._pending.popleft()
            first = self._index.grow(len(entries), size_bytes)
            call_safely(done, first, None)
        if not self._pending:
            self._all_came_back()

    def _all_came_back(self) -> None:
        self._pending = NONE_WAITING
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    def _fail_pending(self, error: Exception) -> None:
        """Fail the pending appends numbered after the failed one, because the next append reuses
        its number, and the held ones, which must not overtake them.
        """
        failed = deque(each for _, each in self._pending)
        failed.extend(self._held)
        self._abandoned = len(self._pending) - 1
        self._pending = self._held = NONE_WAITING
        self._count_anew()
        if isinstance(error, LedgerEnded) and self._refusal is None:
            self._held = failed
            self.on_trouble(error)
            return
        if isinstance(error, LedgerEnded | LedgerClosed):
            self.on_trouble(error)  # before a caller repeats an append
        for _, _, done, _ in failed:
            call_safely(done, None, error)

    def _count_anew(self) -> None:
        self.queued_entries = self._index.current_entries
        self._queued_bytes = self._index.current_size_bytes


def _and_then(done: Appended, work: Callable[[], None]) -> Appended:
    def both(position: Position | None, error: Exception | None) -> None:
        call_safely(done, position, error)
        call_safely(work)

    return both
