"""A log in memory whose publishes go through deduplication. A crash loses what is not durable."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from dispatch_fakes import SteppedClock

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.names import TxnId
from pybroker.broker.deduplication import (
    Copy,
    Deduplication,
    Duplicate,
    New,
    Piece,
    Rest,
    Taken,
)
from pybroker.transaction.buffer.transactional_entries import marker, tag_of, with_sent
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry, parse_metadata


class SequenceIds(NamedTuple):
    """The sequence ids of an entry: one message, a batch from lowest to highest, or a chunk."""

    lowest: int
    highest: int
    chunk: int = 0
    chunks: int = 1
    entry: bytes = b""  # a batch whose producer states only its lowest id
    messages: int = 1


@dataclass
class Run:
    ids: list[SequenceIds]
    txn_id: TxnId | None
    producer: str = "p"

    @property
    def chunked(self) -> bool:
        return self.ids[0].chunks > 1

    @property
    def message_counts(self) -> list[int]:
        return [ids.messages for ids in self.ids]

    @property
    def entries(self) -> list[bytes]:
        return [entry_of(ids, self.producer, self.txn_id) for ids in self.ids]

    def sequence_ids(self) -> list[int]:
        return [ids.lowest for ids in self.ids]

    def highest_sequence_ids(self) -> list[int]:
        return [ids.highest for ids in self.ids]


class World:
    def __init__(self, backend: MemoryBackend, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.metadata = backend.metadata
        self.open_txns: set[TxnId] = set()  # as the topic's transaction buffer knows them
        self.deduplication = self.new()

    def new(self, max_producers: int = 100, interval: int = 1000) -> Deduplication:
        return Deduplication(self.ledger, self.metadata, max_producers, interval)

    async def crash_and_recover(self) -> None:
        self.ledger.trimmer.kept_from = ()
        self.deduplication = self.new()
        await self.recover()

    async def recover(self) -> None:
        await self.deduplication.recover(self)

    def ongoing(self) -> list[Any]:
        return [SimpleNamespace(txn_id=txn_id) for txn_id in self.open_txns]

    async def read_aside(self) -> AsyncIterator[EntryRun]:
        for run in ():  # nothing is kept aside
            yield run

    async def publish_unchecked(
        self, ids: SequenceIds, producer: str = "p", txn_id: TxnId | None = None
    ) -> None:
        """Appends like a topic without deduplication."""
        if txn_id is not None:
            self.open_txns.add(txn_id)
        tag = b"" if txn_id is None else tag_of(txn_id)
        await self.ledger.append_one(entry_of(ids, producer, txn_id), ids.messages, tag)

    def ask(self, ids: SequenceIds, producer: str = "p", txn_id: TxnId | None = None) -> Piece:
        """What deduplication says of the message. If it is new, it is in flight from now on."""
        (piece,) = self.deduplication.pieces(producer, Run([ids], txn_id, producer))
        if txn_id is not None:
            self.open_txns.add(txn_id)
        return piece

    def take(self, ids: SequenceIds, producer: str = "p", txn_id: TxnId | None = None) -> Taken:
        """Asserts that the message is new and returns it in flight to the log."""
        piece = self.ask(ids, producer, txn_id)
        assert isinstance(piece, New), piece
        return piece.taken

    def fail(self, taken: Taken, error: Exception) -> None:
        taken.failed(error)
        self.deduplication.failed(taken.txn_id)

    async def publish(
        self, ids: SequenceIds, producer: str = "p", txn_id: TxnId | None = None
    ) -> bool:
        """False for a duplicate; durable when it returns."""
        piece = self.ask(ids, producer, txn_id)
        if isinstance(piece, New):
            tag = b"" if txn_id is None else tag_of(txn_id)
            tag = with_sent(piece.taken.sent_by(producer), tag)
            entry, messages = entry_of(ids, producer, txn_id), ids.messages
            if isinstance(piece, Rest):
                entry, messages = piece.entry, piece.messages
            await self.ledger.append_one(entry, messages, tag)
            piece.taken.stored()
            return True
        assert isinstance(piece, Duplicate), piece
        return False

    def copied(
        self, ids: SequenceIds, producer: str = "p", txn_id: TxnId | None = None
    ) -> TxnId | None:
        """The other transaction that holds the message, or None."""
        piece = self.ask(ids, producer, txn_id)
        return piece.txn_id if isinstance(piece, Copy) else None

    async def end(self, txn_id: TxnId, abort: bool) -> None:
        action = TxnAction.ABORT if abort else TxnAction.COMMIT
        await self.ledger.append_one(marker(txn_id, action, 0), 0, tag_of(txn_id, action))
        self.open_txns.discard(txn_id)
        self.deduplication.ended(txn_id, abort)

    async def entries(self) -> list[Any]:
        """The metadata of all entries in the log."""
        found: list[Any] = []
        position = EARLIEST
        while run := await self.ledger.read(position, LATEST, 1000, 1 << 20):
            found += map(parse_metadata, run.entries)
            position = self.ledger.last_confirmed.after
        return found


def one(sequence_id: int) -> SequenceIds:
    return SequenceIds(sequence_id, sequence_id)


def chunk(number: int, of: int, sequence_id: int = 7) -> SequenceIds:
    return SequenceIds(sequence_id, sequence_id, number, of)


def entry_of(ids: SequenceIds, producer: str, txn_id: TxnId | None) -> bytes:
    if ids.entry:
        return ids.entry
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=ids.lowest, publish_time=0)
    if ids.highest > ids.lowest:
        metadata.highest_sequence_id = ids.highest
    if ids.chunks > 1:
        metadata.chunk_id, metadata.num_chunks_from_msg = ids.chunk, ids.chunks
    if txn_id is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
    return build_entry(metadata, b"x")


def with_world(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, SteppedClock())
        await scenario(World(backend, await factory.open("orders")))
        await factory.close()
        await backend.close()

    asyncio.run(run())
