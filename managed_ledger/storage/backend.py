"""The only seam between managed ledgers and where bytes live: ledgers by number, keys by version.

The embedded engine (journal.py), the memory backend (memory.py) and, later, BookKeeper with
ZooKeeper implement `Backend`. Everything above works through these Protocols alone.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from managed_ledger.storage.fullness import Fullness
from managed_ledger.storage.tag_runs import TagRun

# Called exactly once, on the event loop: None after the entries are durable, else the reason why
# they are not. Calls come in the order of the appends.
Appended = Callable[[Exception | None], None]
Span = tuple[int, int]  # the first and the last of some entries


@dataclass(slots=True)
class EntryRun:
    """Consecutive entries of one ledger, by column: entry i is `first_entry_id + i`.

    `message_counts[i]` is how many messages the entry carries (a batch is one entry; a
    transaction marker carries 0). `tags` says which of them were appended with a tag.
    """

    ledger_id: int
    first_entry_id: int
    entries: list[bytes]
    message_counts: list[int]
    tags: Iterable[TagRun] = ()


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What recovery found in a ledger. `last_entry_id` is -1 for an empty one."""

    last_entry_id: int
    size_bytes: int
    message_count: int


class Versioned(NamedTuple):
    value: bytes
    version: int  # counts from 0 at creation


class MetadataStore(Protocol):
    """Small durable values by key, with compare-and-set.

    Keys are '/'-separated paths. Every mutation is durable when its future is done (or it raises
    and nothing changed). Mutations and appends take effect, in memory and on disk, in the order
    of the calls: they are queued by the call itself, not by awaiting it.
    """

    def get(self, key: str) -> Versioned | None:
        """The durable value; mutations still queued do not show."""
        ...

    def put(
        self,
        key: str,
        value: bytes,
        expected_version: int | None = None,
        makes_room: bool = False,
        new_ledger_id: int | None = None,
    ) -> asyncio.Future[int]:
        """Write; the result is the new version. `expected_version` -1 means "must not exist",
        None means "whatever is there"; it is compared with what the queued mutations before this
        one will leave. Fails with BadVersion. `makes_room`: it is written on a full disk, too.
        `new_ledger_id`: there is an empty ledger of that number if this is written, else none.
        """
        ...

    def delete(self, key: str) -> asyncio.Future[None]:
        """Idempotent."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """All keys that start with `prefix`, sorted."""
        ...

    def watch(self, prefix: str, changed: Callable[[str], None]) -> None:
        """`changed(key)` is called when a key that starts with `prefix` was written or deleted."""
        ...


class LogStorage(Protocol):
    """Append-only ledgers by number; one writer each, which numbers the entries from 0."""

    def new_ledger_id(self) -> int:
        """A number for `MetadataStore.put`: never used before, and once there is a ledger of that
        number, never again after its deletion or a restart.
        """
        ...

    def append(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        appended: Appended,
        tag: bytes = b"",
    ) -> bool:
        """Queue consecutive entries for the next group commit; returns at once.

        The caller must not change `entries` afterwards. `appended` is called once, in order.
        `tag`, of at most 65,535 bytes, is kept with all of these entries and read with them.

        True: it stands in one order with whatever is appended from now on until `appended` is
        called, to any ledger. That is durable only if this is, and if this fails, so does that,
        and hears of it later. False: nothing of the kind is promised.
        """
        ...

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        """Fence an old writer, settle the last entry, say what is there. Raises LedgerNotFound."""
        ...

    def read_cached(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun | None:
        """What `read` would return, if the first entry is in memory; else None. Never blocks.

        Only durable entries are ever returned. At least one entry is returned even when it alone
        is larger than `max_bytes`.
        """
        ...

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun:
        """Entries from `first_entry_id` up to `last_entry_id` (inclusive) as far as the limits go:
        at least the first one, if it is there, and not always all that the limits allow.

        Raises LedgerNotFound, CorruptStorage.
        """
        ...

    def delete_ledger(self, ledger_id: int) -> asyncio.Future[None]:
        """Queued by the call; durable when awaited. Idempotent. Space is given back at once, in the
        background.
        """
        ...

    def damaged(self, ledger_id: int) -> tuple[Span, ...]:
        """Which entries are known not to be readable."""
        ...

    def ledger_ids(self) -> list[int]:
        """Of all ledgers that are there, durably."""
        ...


class Backend(LogStorage, Protocol):
    @property
    def metadata(self) -> MetadataStore: ...

    @property
    def pending_bytes(self) -> int:
        """Bytes queued by `append` that are not durable yet: what back-pressure looks at."""
        ...

    @property
    def fullness(self) -> Fullness:
        """Whether messages are refused for want of room."""
        ...

    def refusal(self) -> str | None:
        """Why a message would be refused now; None if it would be taken, as far as is known."""
        ...

    async def open(self) -> None:
        """Recover. Raises CorruptStorage or DirectoryInUse with nothing touched."""
        ...

    async def close(self) -> None:
        """Make everything queued durable, then let go. Idempotent."""
        ...
