"""Operations that a backend makes durable, as values in one queue.

Each operation can report its outcome to its caller, exactly once.
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from managed_ledger.storage.backend import Appended, KeyAt, Versioned


@dataclass(slots=True, eq=False)
class Append:
    """Entries by column: `entries[i]` has `lengths[i]` bytes and `message_counts[i]` messages; all
    have the same `tag`.
    """

    ledger_id: int
    first_entry_id: int
    entries: Sequence[bytes]
    lengths: "array[int]"
    message_counts: "array[int]"
    size_bytes: int
    complete: Appended
    tag: bytes


@dataclass(slots=True, eq=False)
class Put:
    key: str
    stored: Versioned
    done: asyncio.Future[int]
    makes_room: bool = False  # leads to the release of space: written even on a full disk
    new_ledger_id: int | None = None  # a ledger created by this operation
    only_while: KeyAt | None = None

    def complete(self, error: Exception | None) -> None:
        settle(self.done, self.stored.version, error)


@dataclass(slots=True, eq=False)
class Remove:
    key: str
    done: asyncio.Future[None]
    version: int | None = None  # None: any
    only_while: KeyAt | None = None

    def complete(self, error: Exception | None) -> None:
        settle(self.done, None, error)


@dataclass(slots=True, eq=False)
class DeleteLedger:
    ledger_id: int
    done: asyncio.Future[None]

    def complete(self, error: Exception | None) -> None:
        settle(self.done, None, error)


@dataclass(slots=True, eq=False)
class Sync:
    """Writes nothing; when it is done, all operations before it are on disk."""

    done: asyncio.Future[None]

    def complete(self, error: Exception | None) -> None:
        settle(self.done, None, error)


T = TypeVar("T")
Operation = Append | Put | Remove | DeleteLedger | Sync


def settle(future: asyncio.Future[T], result: T, error: Exception | None) -> None:
    """Set the outcome of the future, unless it was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def call_safely(work: Callable[..., object], *args: object) -> None:
    """Call `work`. A failing callback must neither prevent other callbacks nor stop the caller."""
    try:
        work(*args)
    except Exception as mistake:
        context = {"message": "a storage callback failed", "exception": mistake}
        asyncio.get_running_loop().call_exception_handler(context)


def append_operation(
    ledger_id: int,
    first_entry_id: int,
    entries: Sequence[bytes],
    message_counts: Sequence[int],
    appended: Appended,
    tag: bytes,
) -> Append:
    lengths = array("I", map(len, entries))
    counts = array("I", message_counts)
    size_bytes = lengths[0] if len(lengths) == 1 else sum(lengths)
    return Append(ledger_id, first_entry_id, entries, lengths, counts, size_bytes, appended, tag)
