"""The seam between managed ledgers and storage: ledgers by number, keys by version.

The embedded engine (embedded/journal.py), the memory backend (memory.py) and BookKeeper with
ZooKeeper (bookkeeper/backend.py) implement `Backend`. Callers use only these Protocols.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from managed_ledger.storage.commit_stats import CommitStats
from managed_ledger.storage.fullness import EntryLimit, Fullness
from managed_ledger.storage.tag_runs import TagRun

# Called exactly once, on the event loop: with None when the entries are durable, else with the
# error. Calls for the same ledger come in the order of its appends.
Appended = Callable[[Exception | None], None]
Span = tuple[int, int]  # the first and the last of some entries
# The tag of entries that other programs read, too. An engine that stores counts and tags in front
# of entries omits them here; such entries are read as foreign ones.
BARE: Final = b"\0"


@dataclass(slots=True)
class EntryRun:
    """Consecutive entries of one ledger, by column: entry i is `first_entry_id + i`.

    `message_counts[i]` is the number of messages in entry i (a batch is one entry; a transaction
    marker carries 0). `tags` lists the tags, by runs of entries.
    """

    ledger_id: int
    first_entry_id: int
    entries: list[bytes]
    message_counts: list[int]
    tags: Iterable[TagRun] = ()


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What recovery found in a ledger. `last_entry_id` is -1 if it is empty."""

    last_entry_id: int
    size_bytes: int
    message_count: int


class Versioned(NamedTuple):
    value: bytes
    version: int  # counts from 0 at creation


ABSENT: Final = -1


class KeyAt(NamedTuple):
    """The condition that a key has a version; ABSENT: that there is no such key."""

    key: str
    version: int


class MetadataStore(Protocol):
    """Small durable values by key, with compare-and-set.

    Keys are '/'-separated paths. Every mutation is durable when its future is done (or it raises
    and nothing changed). Mutations take effect, in memory and on disk, in the order of the calls:
    the call itself queues them, not the await. For the order of mutations and appends, see
    `LogStorage.is_ordered`.
    """

    def get(self, key: str) -> Versioned | None:
        """The durable value, without queued mutations."""
        ...

    def put(
        self,
        key: str,
        value: bytes,
        expected_version: int | None = None,
        makes_room: bool = False,
        new_ledger_id: int | None = None,
        only_while: KeyAt | None = None,
    ) -> asyncio.Future[int]:
        """Write; the result is the new version. `expected_version` -1 means "must not exist", None
        means "any"; it is compared with the state after all mutations queued before this one. Fails
        with BadVersion. `makes_room`: write it even on a full disk. `new_ledger_id`: create an
        empty ledger of that number atomically with this write. `only_while`: as in `delete`.
        """
        ...

    def delete(
        self,
        key: str,
        expected_version: int | None = None,
        only_while: KeyAt | None = None,
    ) -> asyncio.Future[None]:
        """Idempotent: deleting an absent key succeeds. Fails with BadVersion if the key has another
        version than `expected_version`. Versions start over when a key is created again.
        `only_while` is checked atomically with the change: if that other key has another version,
        also none, the call fails with BadVersion and changes nothing.
        """
        ...

    def keys(self, prefix: str) -> list[str]:
        """All keys that start with `prefix`, sorted."""
        ...

    async def refresh(self, prefix: str) -> None:
        """Read what other processes have written to the key `prefix` or, if it ends with '/', to
        the keys below it; `get` and `keys` show it when this returns. Only for keys whose other
        writers are fenced. Raises ManagedLedgerError.
        """
        ...

    async def release(self, keys: Iterable[str]) -> None:
        """Release the resources for writing these keys: this process will not write them before it
        has refreshed them. Never raises.
        """
        ...

    def watch(self, prefix: str, changed: Callable[[str], None]) -> None:
        """Call `changed(key)` when a key that starts with `prefix` has been written or deleted."""
        ...


class LogStorage(Protocol):
    """Append-only ledgers by number. Each has one writer, which numbers the entries from 0."""

    @property
    def is_ordered(self) -> bool:
        """Whether all appends and mutations take effect in the order of the calls. False: only
        appends to the same ledger are in order, and mutations among themselves; otherwise await the
        first before the second.
        """
        ...

    @property
    def keeps_appends_whole(self) -> bool:
        """Whether a crash leaves either all entries of an append or none. False: it may leave only
        the first entries, each with the append's tag.
        """
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other processes keep managed ledgers here. Then ledgers unknown to this process
        belong to them and must not be deleted.
        """
        ...

    def new_ledger_id(self) -> int:
        """A number for `MetadataStore.put` that was never used before. Once a ledger has it, it is
        never used again, even after the ledger's deletion or a restart.
        """
        ...

    async def number_above(self, ledger_id: int) -> None:
        """From now on `new_ledger_id` returns larger numbers: the ledgers of a managed ledger are
        in the order of their numbers, and another process may have created the last. Raises
        ManagedLedgerError.
        """
        ...

    @property
    def entry_limit(self) -> EntryLimit:
        """The largest entry that can be stored, as far as it is known."""
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
        LedgerEnded: the ledger accepts no more entries, and those that failed with it are not in
        the ledger. LedgerClosed: they may be; another writer decides. `tag`, of at most 65,535
        bytes, is stored with each of the entries and read with it.

        Returns True if this append is ordered with all appends, to any ledger, made from now until
        `appended` is called: they are durable only if this one is, they fail if this one fails, and
        their `appended` is called later. False: there is no such guarantee.
        """
        ...

    async def close_ledger(self, ledger_id: int) -> None:
        """Close the ledger, so that other processes can read it without recovering it. There must
        be no pending appends. Raises LedgerClosed if another writer has taken it over.
        """
        ...

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        """Fence the old writer and determine the last entry. Raises LedgerNotFound."""
        ...

    def read_cached(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun | None:
        """As `read`, if the first entry is in memory; else None. Never blocks.

        Returns only durable entries, and at least one, even if it alone is larger than `max_bytes`.
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
        """Entries from `first_entry_id` to `last_entry_id` (inclusive) within the limits: at least
        the first one, if it exists, but not always as many as the limits allow.

        Raises LedgerNotFound, CorruptStorage.
        """
        ...

    def delete_ledger(self, ledger_id: int) -> asyncio.Future[None]:
        """Delete the ledger. Queued by the call; durable when its future is done. Idempotent. The
        space is released soon afterwards, in the background.
        """
        ...

    def damaged(self, ledger_id: int) -> tuple[Span, ...]:
        """The entries known to be unreadable."""
        ...

    def ledger_ids(self) -> list[int]:
        """The ids of all durable ledgers."""
        ...


class Backend(LogStorage, Protocol):
    @property
    def metadata(self) -> MetadataStore: ...

    @property
    def pending_bytes(self) -> int:
        """The bytes of queued operations that are not durable yet, for back-pressure."""
        ...

    @property
    def fullness(self) -> Fullness:
        """Whether messages are refused for lack of space."""
        ...

    @property
    def commit_stats(self) -> CommitStats:
        """Statistics of the commits so far."""
        ...

    @property
    def short_of_copies(self) -> int:
        """The number of open ledgers whose new entries get fewer copies than configured; 0
        if the storage makes no copies.
        """
        ...

    @property
    def cached_bytes(self) -> int | None:
        """The size of the read cache in bytes; None if there is no cache."""
        ...

    def refusal(self) -> str | None:
        """Why a message would be refused now; None if it would probably be accepted."""
        ...

    async def open(self) -> None:
        """Recover. Raises CorruptStorage or DirectoryInUse without changing anything."""
        ...

    async def close(self) -> None:
        """Make all queued operations durable, then release the storage. Idempotent."""
        ...
