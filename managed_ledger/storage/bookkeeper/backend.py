"""The storage seam on BookKeeper and ZooKeeper.

Differs from the embedded engine, within the contract of `storage.backend`:

- There is no order between different ledgers, nor between appends and metadata: `append` returns
  False, and outcomes are in order only within a ledger.
- A ledger that has too few bookies left, or fewer copies than a new ledger could have, accepts no
  more entries: entry numbers are not reused. It is closed after its last complete append.
  Unconfirmed appends fail with LedgerEnded and are certainly not in the ledger. The managed ledger
  continues in a new ledger.
- `ledger_ids` lists only the ledgers of this process, which must not delete others of the cluster.
- An entry is confirmed when an ack quorum of bookies has synced it.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from managed_ledger.config import Clock
from managed_ledger.errors import (
    BadVersion,
    CorruptStorage,
    LedgerClosed,
    LedgerNotFound,
    ManagedLedgerError,
)
from managed_ledger.storage.backend import (
    BARE,
    Appended,
    EntryRun,
    LedgerSummary,
    MetadataStore,
    Span,
)
from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.client import PULSARS_QUORUMS, BookKeeper
from managed_ledger.storage.bookkeeper.entry_body import HEAD_BYTES, EntryBody
from managed_ledger.storage.bookkeeper.entry_header import Count, Headers, decode
from managed_ledger.storage.bookkeeper.errors import BookieFailed, BookKeeperError
from managed_ledger.storage.bookkeeper.formats.family import Family, JoinedFamily, ListFamily
from managed_ledger.storage.bookkeeper.formats.known import KnownFormats
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from managed_ledger.storage.bookkeeper.importing import refuse_leftovers, take_over
from managed_ledger.storage.bookkeeper.ledger_ids import LedgerIds
from managed_ledger.storage.bookkeeper.metadata import Metadata
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata, LedgerState
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.reader import LedgerReader
from managed_ledger.storage.bookkeeper.tails import Tails
from managed_ledger.storage.bookkeeper.value_ledgers import ValueLedgers
from managed_ledger.storage.bookkeeper.writer import LedgerWriter
from managed_ledger.storage.commit_stats import CommitStats
from managed_ledger.storage.entry_columns import EntryColumns
from managed_ledger.storage.fullness import EntryLimit, Fullness
from managed_ledger.storage.importing import LedgerExists
from managed_ledger.storage.operations import DeleteLedger
from managed_ledger.storage.queueing_backend import not_found
from managed_ledger.storage.tls_files import ClientTls
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import ZooKeeperError
from managed_ledger.storage.zookeeper.operations import Operation
from managed_ledger.storage.zookeeper.session import FINAL_STATES

_RECOVERY_READ: Final = (1000, 4 << 20)  # entries, bytes
_ADD_OVERHEAD_BYTES: Final = 128  # what a request adds to its entry and tag, at most
_OWNER: Final = {"application": b"pybroker"}  # the custom metadata of ledgers


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    metadata_root: str = "/pybroker/metadata"
    ledgers_root: str = "/ledgers"  # zkLedgersRootPath
    session_timeout_ms: int = 30_000  # metadataStoreSessionTimeoutMillis
    quorums: Quorums = PULSARS_QUORUMS
    ledger_password: bytes = field(default=b"", repr=False)  # managedLedgerPassword
    limits: BookieLimits = field(default_factory=BookieLimits)
    bookie_tls: ClientTls | None = None
    zookeeper_tls: ClientTls | None = None
    families: tuple[Family, ...] = (ManagedLedgers(),)  # in formats of Apache Pulsar
    joined: tuple[JoinedFamily, ...] = ()
    lists: tuple[ListFamily, ...] = ()


def one_message(_: bytes) -> int:
    return 1


class BookKeeperBackend:
    is_ordered = False
    keeps_appends_whole = False  # each entry is confirmed on its own
    is_shared = True

    def __init__(
        self,
        servers: str,
        clock: Clock,
        rng: random.Random,
        config: ClusterConfig | None = None,
        count: Count = one_message,
        foreign: bytes = b"",
    ) -> None:
        """`servers` are those of ZooKeeper. `count` returns the number of messages in an entry of
        another program; such entries are read with the tag `foreign`.
        """
        self._config = config or ClusterConfig()
        self._zookeeper = ZooKeeper(
            servers, rng, self._config.session_timeout_ms, self._config.zookeeper_tls
        )
        self._client = BookKeeper(
            self._zookeeper,
            clock,
            rng,
            self._config.quorums,
            self._config.ledgers_root,
            self._config.limits,
            self._config.bookie_tls,
            self._config.ledger_password,
        )
        self._store = self._client.store
        self._ids = LedgerIds(self._store)
        self._values = ValueLedgers(self._client)
        self._formats = KnownFormats(
            self._config.families,
            self._config.metadata_root,
            self._config.joined,
            self._config.lists,
        )
        self._metadata = Metadata(self, self._store, self._values, self._formats)
        self._count, self._foreign = count, foreign
        self._headers = Headers()
        self._tails = Tails()
        self._importing: set[int] = set()  # ledgers that are not whole yet
        self._planned: dict[int, LedgerMetadata] = {}
        self._writers: dict[int, LedgerWriter] = {}
        self._settled: dict[int, LedgerMetadata] = {}  # CLOSED
        self._next: dict[int, int] = {}  # the next entry of each writer
        self._is_closed = False
        self.fullness = Fullness()
        self.entry_limit = EntryLimit()
        self._client.bookies.on_limits = self._frame_limits_changed
        self.commit_stats = CommitStats()

    # --- life

    async def open(self) -> None:
        """Raises ZooKeeperError if ZooKeeper does not answer."""
        await self._zookeeper.open()
        await self._client.open()
        await self._metadata.open()
        await self._ids.open()

    async def close(self) -> None:
        """Close the ledgers of this process's writers, so that the next process need not recover
        them. Idempotent.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self._metadata.close()
        for ledger_id in self._importing & self._writers.keys():
            self._writers[ledger_id].abandon()  # it stays open, so that the copy can be continued
        writers = list(self._writers.values())
        await asyncio.gather(*(each.close() for each in writers), return_exceptions=True)
        await self._values.close()
        await self._ids.close()
        await self._client.close()
        await self._zookeeper.close()

    def crash(self) -> None:
        """For tests: drop everything as kill -9 would; ZooKeeper notices when the session ends."""
        for writer in self._writers.values():
            writer.abandon()
        self._is_closed = True

    # --- beyond the seam, for brokers that share the storage

    @property
    def tls(self) -> tuple[ClientTls | None, ClientTls | None]:
        """TLS to bookies and to ZooKeeper; None: without TLS."""
        return self._config.bookie_tls, self._config.zookeeper_tls

    def bookies(self) -> tuple[str, ...]:
        """The ids of the bookies that accept writes, sorted."""
        return self._client.bookies.registered

    @property
    def zookeeper(self) -> ZooKeeper:
        """The client whose session is that of this process."""
        return self._zookeeper

    def path_of(self, key: str) -> str:
        """The node with the key's value."""
        return self._formats.path_of(key)

    async def caught_up(self) -> None:
        """Return when `metadata` shows everything written before the call. This is certain only if
        the caller has just written to ZooKeeper.
        """
        await self._metadata.caught_up()

    async def refresh_ledgers(self) -> None:
        """Read all values that are in ledgers into `metadata`, and fence their writers, as
        `MetadataStore.refresh` does. Raises ManagedLedgerError.
        """
        await self._metadata.refresh_ledgers()

    # --- statistics

    @property
    def metadata(self) -> MetadataStore:
        return self._metadata.table

    @property
    def pending_bytes(self) -> int:
        appends = sum(
            writer.pending_bytes + HEAD_BYTES * writer.pending_entries
            for writer in self._writers.values()
        )
        return appends + self._metadata.pending_bytes

    @property
    def short_of_copies(self) -> int:
        return sum(writer.lacks_copies for writer in self._writers.values())

    @property
    def cached_bytes(self) -> int | None:
        return self._tails.size_bytes

    def refusal(self) -> str | None:
        if self._zookeeper.state in FINAL_STATES:
            return f"the ZooKeeper session is {self._zookeeper.state.value}; restart the broker"
        return None

    def damaged(self, ledger_id: int) -> tuple[Span, ...]:
        """Always empty: bookies report damage only when an entry is read."""
        return ()

    def ledger_ids(self) -> list[int]:
        """The ledgers that this process has created, recovered or read."""
        return sorted({*self._writers, *self._settled})

    # --- creating and deleting ledgers

    def new_ledger_id(self) -> int:
        return self._ids.take()

    async def number_above(self, ledger_id: int) -> None:
        await self._ids.above(ledger_id)

    async def creation(self, ledger_id: int) -> Operation:
        self._planned[ledger_id] = self._client.new_metadata(_OWNER)
        return await self._store.creation(ledger_id, self._planned[ledger_id])

    def created(self, ledger_id: int) -> None:
        metadata = self._planned.pop(ledger_id)
        is_copy = ledger_id in self._importing
        self._writers[ledger_id] = self._client.writer(ledger_id, metadata, 0, is_copy)
        self._next[ledger_id] = 0

    def read_back(self, key: str, value: bytes) -> bytes:
        return self._metadata.read_back(key, value)

    async def begin_import(self, ledger_id: int, key: str) -> None:
        await refuse_leftovers(self._client.bookies, ledger_id)
        self._importing.add(ledger_id)
        try:
            await self.metadata.put(key, b"", -1, new_ledger_id=ledger_id)
        except BadVersion as why:
            raise LedgerExists(f"ledger {ledger_id} exists in the cluster already") from why

    async def resume_import(self, ledger_id: int, entries: int) -> int:
        """A partly copied ledger is written again, on newly chosen bookies."""
        found = await self._store.get(ledger_id)
        copied = found.metadata.last_entry_id + 1
        if found.metadata.state is LedgerState.CLOSED and copied >= entries:
            self._settled[ledger_id] = found.metadata
            return copied
        self._importing.add(ledger_id)
        metadata = self._client.new_metadata(_OWNER)
        version = await take_over(self._store, ledger_id, found, metadata)
        self._writers[ledger_id] = self._client.writer(ledger_id, metadata, version, is_copy=True)
        self._next[ledger_id] = 0
        return 0

    async def pass_ledger_id(self, ledger_id: int) -> None:
        await self._ids.pass_by(ledger_id)

    def delete_ledger(self, ledger_id: int) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._metadata.submit(DeleteLedger(ledger_id, done))
        return done

    def deleted(self, ledger_id: int) -> None:
        writer = self._writers.pop(ledger_id, None)
        if writer is not None:
            writer.abandon()
        self._next.pop(ledger_id, None)
        self._settled.pop(ledger_id, None)
        self._tails.drop(ledger_id)

    # --- appending

    def _frame_limits_changed(self) -> None:
        most = self._client.bookies.max_add_bytes(self._config.quorums.ack)
        self.entry_limit.set(None if most is None else most - _ADD_OVERHEAD_BYTES)

    def append(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        appended: Appended,
        tag: bytes = b"",
    ) -> bool:
        writer = self._writers.get(ledger_id)
        if writer is None:
            asyncio.get_running_loop().call_soon(appended, self._refuse(ledger_id))
            return False
        assert writer.ended or first_entry_id == self._next[ledger_id], "entries without gaps"
        self._next[ledger_id] = first_entry_id + len(entries)

        def confirmed(error: Exception | None) -> None:
            if error is None:
                self._tails.extend(ledger_id, first_entry_id, entries, message_counts, tag)
            appended(error)

        header = self._headers.header
        headers = [b"" if tag == BARE else header(count, tag) for count in message_counts]
        writer.append_all(headers, entries, confirmed)
        return False

    def _refuse(self, ledger_id: int) -> ManagedLedgerError:
        if ledger_id in self._settled:
            return LedgerClosed(f"ledger {ledger_id} is closed; open the managed ledger again")
        return not_found(ledger_id)

    async def close_ledger(self, ledger_id: int) -> None:
        """Raises LedgerFenced if another broker took the ledger over, LedgerNotFound if it was
        deleted, ZooKeeperError if ZooKeeper does not answer.
        """
        writer = self._writers.get(ledger_id)
        if writer is not None:
            self._settled[ledger_id] = await writer.close()
            self._forget_writer(ledger_id)

    def _forget_writer(self, ledger_id: int) -> None:
        self._writers.pop(ledger_id, None)
        self._next.pop(ledger_id, None)

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        """Raises LedgerNotFound if the ledger was deleted, RecoveryFailed if too few bookies
        answer, ZooKeeperError if ZooKeeper does not.
        """
        writer = self._writers.get(ledger_id)
        if writer is not None:
            try:
                await writer.close()
            except (BookKeeperError, ZooKeeperError, LedgerClosed, LedgerNotFound):
                writer.abandon()
            self._forget_writer(ledger_id)
        self._importing.discard(ledger_id)
        metadata = self._settled[ledger_id] = await self._client.recover(ledger_id)
        size = count = 0
        first = 0
        while first <= metadata.last_entry_id:
            run = await self.read(ledger_id, first, metadata.last_entry_id, *_RECOVERY_READ)
            size += sum(map(len, run.entries))
            count += sum(run.message_counts)
            first += len(run.entries)
        return LedgerSummary(metadata.last_entry_id, size, count)

    # --- reading

    def read_cached(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun | None:
        tail = self._tails.get(ledger_id)
        if tail is None:
            return None
        return tail.run(ledger_id, first_entry_id, last_entry_id, max_entries, max_bytes)

    async def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        last_entry_id: int,
        max_entries: int,
        max_bytes: int,
    ) -> EntryRun:
        """Raises LedgerNotFound, CorruptStorage; BookieFailed if bookies do not answer."""
        metadata, end = await self._readable(ledger_id)
        last = min(last_entry_id, end, first_entry_id + max_entries - 1)
        if last < first_entry_id:
            return EntryRun(ledger_id, first_entry_id, [], [])
        columns = EntryColumns(first_entry_id)
        for body in await self._read(ledger_id, metadata, first_entry_id, last, max_bytes):
            entry = decode(body.payload, self._count, self._foreign)
            columns.extend([entry.payload], [entry.message_count], entry.tag)
        run = columns.run(ledger_id, first_entry_id, last, max_entries, max_bytes)
        assert run is not None, "a reader brings at least the first entry"
        return run

    async def _read(
        self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int, max_bytes: int
    ) -> list[EntryBody]:
        """Read; after a failure, read once more if auto-recovery has moved entries to other
        bookies.
        """
        bookies = self._client.bookies
        try:
            return await LedgerReader(ledger_id, metadata, bookies).read(first, last, max_bytes)
        except (BookieFailed, CorruptStorage):
            found = await self._changed(ledger_id, metadata)
            if found is None:
                raise
        return await LedgerReader(ledger_id, found, bookies).read(first, last, max_bytes)

    async def _changed(self, ledger_id: int, known: LedgerMetadata) -> LedgerMetadata | None:
        """The current metadata if its bookies differ from those of `known`, else None."""
        try:
            found = (await self._store.get(ledger_id)).metadata
        except (ZooKeeperError, LedgerNotFound):
            return None
        if found.segments == known.segments:
            return None
        if self._settled.get(ledger_id) is known:
            self._settled[ledger_id] = found
        return found

    async def _readable(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """The metadata of the ledger, and its last confirmed entry."""
        writer = self._writers.get(ledger_id)
        if writer is not None:
            return writer.metadata, writer.last_confirmed
        metadata = self._settled.get(ledger_id)
        if metadata is None:
            metadata = (await self._store.get(ledger_id)).metadata
            if metadata.state is not LedgerState.CLOSED:
                raise BookKeeperError(
                    f"ledger {ledger_id} is {metadata.state.name}: another process writes to it "
                    "or recovers it; recover it before you read it"
                )
            self._settled[ledger_id] = metadata
        return metadata, metadata.last_entry_id
