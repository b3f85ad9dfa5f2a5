"""Reads a partition's entries as RecordBatches, from an offset on.

A RecordBatch is handed out as it is stored; messages of Pulsar's clients become one. Entries that
readers do not get (aborted messages, markers, the first chunks of a message) leave a gap in the
offsets, over which clients move with the next batch. If no batch follows, a placeholder fills the
gap, so that a reader comes to the end of the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.kafka.conversion.converted import FOR_KAFKA
from pybroker.kafka.conversion.entries import batch_start
from pybroker.kafka.log.chunks import Whole, is_chunk, is_last_chunk, whole_message
from pybroker.kafka.log.offsets import Offsets, Place, Placed
from pybroker.kafka.records.batch import LAST_SEQUENCE, checked, placed_at
from pybroker.kafka.records.errors import BadRecords
from pybroker.kafka.records.placeholder import placeholder
from pybroker.wire.message_metadata import BadEntry, split_entry

_READ_ENTRIES: Final = 500
_MOST_ENTRIES: Final = 20_000  # looked at for one response, most of them left out
_CONVERTED_A_TURN: Final = 500  # messages


@dataclass(slots=True)
class Fetched:
    """Batches, and the offset behind them."""

    next_offset: int
    batches: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, batch: bytes, next_offset: int) -> None:
        self.batches.append(batch)
        self.size_bytes += len(batch)
        self.next_offset = next_offset

    def fill_up_to(self, offset: int) -> None:
        """With one placeholder: behind it the next request goes on, however far `offset` is."""
        if self.next_offset < offset:
            last = min(offset - 1, self.next_offset + LAST_SEQUENCE - 1)
            self.add(placeholder(self.next_offset, last), last + 1)


async def fetch(
    topic: Topic,
    offsets: Offsets,
    offset: int,
    limit: Position,
    most_bytes: int,
    at_least_one: bool,
) -> Fetched:
    """Batches from `offset` on, up to the entry at `limit`, of about `most_bytes`. With
    `at_least_one`, the first batch may be larger. Raises ManagedLedgerError.
    """
    reading = _Reading(topic, offsets, Fetched(offset), most_bytes, at_least_one)
    place = await offsets.find(offset)
    while place.position <= limit and not reading.is_full and reading.looked_at < _MOST_ENTRIES:
        run = await _read(topic.ledger, place.position, limit, reading.room_bytes)
        if run is None:
            break
        place = await reading.take(run, place.offset)
    reading.fetched.fill_up_to(place.offset)
    offsets.remember(place)
    return reading.fetched


async def _read(
    ledger: ManagedLedger, position: Position, limit: Position, most_bytes: int
) -> EntryRun | None:
    run = ledger.read_cached(position, limit, _READ_ENTRIES, most_bytes)
    return run or await ledger.read(position, limit, _READ_ENTRIES, most_bytes)


class _Reading:
    def __init__(
        self,
        topic: Topic,
        offsets: Offsets,
        fetched: Fetched,
        most_bytes: int,
        at_least_one: bool,
    ) -> None:
        self._topic = topic
        self._offsets = offsets
        self._most_bytes = most_bytes
        self._at_least_one = at_least_one
        self._pace = Pace(_CONVERTED_A_TURN)
        self.fetched = fetched
        self.looked_at = 0
        self.is_full = False

    @property
    def room_bytes(self) -> int:
        return max(1, self._most_bytes - self.fetched.size_bytes)

    async def take(self, run: EntryRun, offset: int) -> Place:
        """Adds what fits; returns the first entry that was not taken, or the one after the run."""
        self.looked_at += len(run.entries)
        for placed, is_shown in self._looked_at(run, offset):
            position = Position(run.ledger_id, placed.entry_id)
            if is_shown:
                batch = await self._batch(position, placed)
                if batch is not None and not self._add(batch, placed.next_offset):
                    return Place(position, max(placed.first_offset, self.fetched.next_offset))
            offset = placed.next_offset
        return Place(Position(run.ledger_id, run.first_entry_id + len(run.entries)), offset)

    def _looked_at(self, run: EntryRun, offset: int) -> Iterator[tuple[Placed, bool]]:
        """The entries, and whether they are for the reader."""
        ledger_id, first = run.ledger_id, run.first_entry_id
        ranges = self._topic.hidden.ranges_within(ledger_id, first, first + len(run.entries) - 1)
        hidden = {each for start, stop in ranges for each in range(start, stop + 1)}
        for placed in self._offsets.placed(run, offset):
            is_new = placed.messages > 0 and placed.next_offset > self.fetched.next_offset
            yield placed, is_new and placed.entry_id not in hidden

    def _add(self, batch: bytes, next_offset: int) -> bool:
        fetched = self.fetched
        fits = fetched.size_bytes + len(batch) <= self._most_bytes
        if not fits and (fetched.batches or not self._at_least_one):
            self.is_full = True
            return False
        fetched.add(batch, next_offset)
        self.is_full = not fits
        return True

    async def _batch(self, position: Position, placed: Placed) -> bytes | None:
        """None: the messages are not for the reader, or a later entry has them."""
        batch = stored_batch(placed)
        if batch is None:
            await self._pace.step(placed.messages)
            converted = await converted_batch(self._topic.ledger, position, placed)
            batch = None if converted is None else converted.batch
        return batch


class AsBatch(NamedTuple):
    """The batch that a Pulsar client's entry becomes, and where earlier parts of it are."""

    batch: bytes
    earlier: Sequence[Position] = ()


async def converted_batch(
    ledger: ManagedLedger, position: Position, placed: Placed
) -> AsBatch | None:
    """None if the entry is a chunk, and the message is not complete with it. Raises
    ManagedLedgerError.
    """
    whole = await _in_one_piece(ledger, position, placed.entry)
    if whole is None:
        return None
    batch = await FOR_KAFKA.of(whole.entry, placed.first_offset, placed.messages)
    return AsBatch(batch, whole.earlier)


async def _in_one_piece(ledger: ManagedLedger, position: Position, entry: bytes) -> Whole | None:
    try:
        metadata, start = split_entry(entry)
    except BadEntry:
        return Whole(entry)
    if not is_chunk(metadata):
        return Whole(entry)
    if not is_last_chunk(metadata):
        return None
    return await whole_message(ledger, position, metadata, entry[start:])


def stored_batch(placed: Placed) -> bytes | None:
    """None if the entry is not Kafka's, or what claims to be a RecordBatch is none."""
    if not (start := batch_start(placed.entry)):
        return None
    batch = placed.entry[start:]
    try:
        header = checked(batch)
    except BadRecords:
        return None
    if header.last_offset_delta + 1 != placed.messages or header.is_control:
        return None
    if header.base_offset != placed.first_offset:  # a copy, for instance
        return placed_at(batch, placed.first_offset, header.leader_epoch)
    return batch
