"""The seam between managed ledgers and storage: ledgers by number, keys by version.

The embedded engine (embedded/journal.py), the memory backend (memory.py) and BookKeeper with
ZooKeeper (bookkeeper/backend.py) implement `Backend`. Everything above uses only these Protocols.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from managed_ledger.storage.commit_stats import CommitStats
from managed_ledger.storage.fullness import Fullness
from managed_ledger.storage.tag_runs import TagRun

# Called exactly once, on the event loop: with None after the entries are durable, else with the
# reason why they are not. Calls come in the order of the appends to the same ledger.
Appended = Callable[[Exception | None], None]
Span = tuple[int, int]  # the first and the last of some entries
# As a tag: others read these entries too, and must find nothing but them. An engine that keeps
# counts and tags in front of entries leaves that out; such entries are read as foreign ones.
BARE: Final = b"\0"


@dataclass(slots=True)
class EntryRun:
    """Consecutive entries of one ledger, by column: entry i is `first_entry_id + i`.

    `message_counts[i]` is how many messages the entry carries (a batch is one entry; a
    transaction marker carries 0). `tags` lists the tagged ones.
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


class KeyAt(NamedTuple):
    """The condition that a key is at a version."""

    key: str
    version: int


class MetadataStore(Protocol):
    """Small durable values by key, with compare-and-set.

    Keys are '/'-separated paths. Every mutation is durable when its future is done (or it raises
    and nothing changed). Mutations take effect, in memory and on disk, in the order of the calls:
    they are queued by the call itself, not by awaiting it. For mutations and appends together, see
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
        with BadVersion. `makes_room`: it is written even on a full disk. `new_ledger_id`: an empty
        ledger of that number is created if and only if this is written. `only_while`: as in
        `delete`.
        """
        ...

    def delete(
        self,
        key: str,
        expected_version: int | None = None,
        only_while: KeyAt | None = None,
    ) -> asyncio.Future[None]:
        """Idempotent: a key that is absent is deleted. With `expected_version` it fails with
        BadVersion if the key is at another one. Versions start over when a key is created again.
        `only_while`: with BadVersion nothing is changed if that other key is absent, or at another
        version, in that same moment.
        """
        ...

    def keys(self, prefix: str) -> list[str]:
        """All keys that start with `prefix`, sorted."""
        ...

    async def refresh(self, prefix: str) -> None:
        """Other processes may have written the key `prefix`, or what is below it if it ends with
        '/': `get` and `keys` know it when this returns. Only for keys that no other process writes
        any more because their writers are fenced. Raises ManagedLedgerError.
        """
        ...

    async def release(self, keys: Iterable[str]) -> None:
        """This process will not write these keys before it has refreshed them: what it keeps open
        for their sake ends. Never raises.
        """
        ...

    def watch(self, prefix: str, changed: Callable[[str], None]) -> None:
        """`changed(key)` is called when a key that starts with `prefix` was written or deleted."""
        ...


class LogStorage(Protocol):
    """Append-only ledgers by number; one writer each, which numbers the entries from 0."""

    @property
    def is_ordered(self) -> bool:
        """Whether all appends and mutations take effect in the order of the calls. False: only
        appends to the same ledger do, and mutations among themselves; await one before the other.
        """
        ...

    @property
    def keeps_appends_whole(self) -> bool:
        """Whether a crash leaves either all entries of an append or none. False: it may leave only
        the first ones, each with the append's tag.
        """
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other processes keep managed ledgers here. Then ledgers unknown to this process
        belong to them and must not be deleted.
        """
        ...

    def new_ledger_id(self) -> int:
        """A number for `MetadataStore.put`: never used before, and once a ledger has it, never
        reused after the ledger's deletion or a restart.
        """
        ...

    async def number_above(self, ledger_id: int) -> None:
        """Numbers from now on are larger: a managed ledger's ledgers are in the order of their
        numbers, and another process may have created the last one. Raises ManagedLedgerError.
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

        The caller must not change `entries` afterwards. `appended` is called once, in order. After
        LedgerEnded the ledger accepts no more, and nothing that failed with it is in the ledger.
        After LedgerClosed that is unknown: another writer decides. `tag`, of at most 65,535 bytes,
        is stored with all of these entries and read with them.

        True: the append is ordered with everything appended to any ledger from now on until
        `appended` is called. Those appends are durable only if this one is; if this one fails, they
        fail too; their `appended` is called later. False: there is no such guarantee.
        """
        ...

    async def close_ledger(self, ledger_id: int) -> None:
        """Ends the ledger, so that others can read it without recovering it. There must be no
        pending appends. Raises LedgerClosed if another writer has taken it.
        """
        ...

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        """Fence the old writer, settle the last entry, return a summary. Raises LedgerNotFound."""
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
        """Entries from `first_entry_id` to `last_entry_id` (inclusive) within the limits: at least
        the first one, if it exists, and not always as many as the limits allow.

        Raises LedgerNotFound, CorruptStorage.
        """
        ...

    def delete_ledger(self, ledger_id: int) -> asyncio.Future[None]:
        """Queued by the call; durable when awaited. Idempotent. Space is released at once, in the
        background.
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
        """Bytes queued by `append` that are not durable yet, for back-pressure."""
        ...

    @property
    def fullness(self) -> Fullness:
        """Whether messages are refused for lack of space."""
        ...

    @property
    def commit_stats(self) -> CommitStats:
        """Statistics of commits so far."""
        ...

    @property
    def cached_bytes(self) -> int | None:
        """The cache of blocks read back from disk; None if there is none."""
        ...

    def refusal(self) -> str | None:
        """Why a message would be refused now; None if it would be accepted, as far as is known."""
        ...

    async def open(self) -> None:
        """Recover. Raises CorruptStorage or DirectoryInUse without changing anything."""
        ...

    async def close(self) -> None:
        """Make everything queued durable, then release the storage. Idempotent."""
        ...
