"""Deduplication of one topic: what each producer name has sent, across restarts.

A message is a duplicate if its highest sequence id is not above the producer's highest one, unless
it was aborted or not written: then it may be sent again. A copy of a message in an open transaction
can be neither stored nor acknowledged: it waits until that transaction ends.

State is rebuilt at load from a snapshot in the metadata store and a scan of the entries after it,
which the log keeps until then. A snapshot writes the whole state. So it is due when as many
messages have arrived as the state has parts, and not before `interval` messages. Entry tags name
the transaction and what ended it, the producer, the sequence ids, and the earlier ids that were
refused.

A topic that is loaded without deduplication drops the snapshot (`forget`) before it accepts a
message: a producer may restart its numbers meanwhile, and these would be taken for duplicates
later.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.housekeeper import Visit
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.backend import EntryRun, MetadataStore
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.broker.deduplication.batch_ids import Examinations, highest_in_turns
from pybroker.broker.deduplication.pieces import (
    HIGHEST_ID,
    New,
    Piece,
    SequencedRun,
    Taken,
    chunk_of,
    pieces_of,
    spans_of_batches,
)
from pybroker.broker.deduplication.producer_sequence import (
    MAX_RETURNED_RANGES,
    Chunk,
    ProducerSequence,
)
from pybroker.broker.deduplication.sent import MAX_TAKEN, Sent, decode_sent, encode_sent
from pybroker.broker.deduplication.sequence_ranges import Range, SequenceRanges
from pybroker.broker.deduplication.snapshot import (
    decode,
    encode_head,
    encode_producer,
    snapshot_keys,
)
from pybroker.broker.persistent.publishing import Published
from pybroker.transaction.buffer.transactional_entries import UntaggedSpan, parse_tag, told_entries
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire.message_metadata import BadEntry, parse_metadata

log = logging.getLogger(__name__)

USUAL_INTERVAL_S: Final = 120.0
_SCAN_ENTRIES: Final = 250  # parsed at once: two milliseconds
_SCAN_BYTES: Final = 4 * 1024 * 1024
_WRITE_PRODUCERS: Final = 200  # encoded at once


class HasTxnId(Protocol):
    @property
    def txn_id(self) -> TxnId: ...


class OpenOnTopic(Protocol):
    """The topic's transactions, as recovery needs them."""

    def ongoing(self) -> Iterable[HasTxnId]:
        """The transactions that have not ended here."""
        ...

    def read_aside(self) -> AsyncIterator[EntryRun]:
        """The entries of transactions in the side log, piece by piece."""
        ...


class Deduplication:
    def __init__(
        self,
        ledger: ManagedLedger,
        metadata: MetadataStore,
        max_producers: int,
        interval: int,
        interval_s: float = USUAL_INTERVAL_S,
    ) -> None:
        """A snapshot is due after `interval` messages and, if there were any, after
        `interval_s`.
        """
        self._ledger = ledger
        self._metadata = metadata
        (self._key,) = snapshot_keys(metadata, ledger.name)
        # A tag names all messages of its append; a crash must not leave only some of them.
        self._most_taken = MAX_TAKEN if ledger.keeps_appends_whole else 1
        self._max_producers = max_producers
        self._interval = interval
        self._since_snapshot = 0  # messages and ends of transactions
        self._due = interval  # number of these at which a snapshot is due
        self._writing = asyncio.Lock()  # held while a snapshot is written
        self.interval_s = interval_s
        self._visit: Visit | None = None
        self._closed = False
        self._tasks = Tasks(f"deduplication of {ledger.name}")
        self._recovered_from = EARLIEST  # after a crash now, the scan would begin here
        self._producers: OrderedDict[str, ProducerSequence] = OrderedDict()
        self._writers: dict[TxnId, dict[str, ProducerSequence]] = {}  # of open transactions
        self._waiting: dict[TxnId, list[Callable[[], None]]] = {}
        self._known_ends: dict[TxnId, bool] | None = None  # during recovery: whether aborted
        self._met: dict[str, SequenceRanges] = {}  # ids that recovery found in the log, by producer

    def knows(self, producer: str) -> bool:
        """Whether it may have sent messages that are stored, also in open transactions."""
        in_transactions = self._writers.values()
        return producer in self._producers or any(producer in each for each in in_transactions)

    def last_sequence_id(self, producer: str) -> int:
        """-1 for a producer that never published here. Aborted ids do not count, and neither do ids
        that are not durable yet: the producer continues after the returned id, and a crash may lose
        them. The result is at most the highest id that can be sent: a log from before deduplication
        may hold higher ids.
        """
        state = self._producers.get(producer)
        return min(state.returned.before(state.durable_to), HIGHEST_ID) if state else -1

    def pieces(
        self, producer: str, run: SequencedRun, examinations: Examinations | None = None
    ) -> Iterator[Piece]:
        """The pieces of a run that are handled alike. `examinations` limits the work on batches."""
        state, examinations = self._state(producer), examinations or Examinations()
        for piece in pieces_of(state, producer, run, examinations, self._most_taken):
            if isinstance(piece, New):
                self._since_snapshot += piece.stop - piece.start
                if self._visit is None:
                    self._visit_later()
                if run.txn_id is not None:
                    self._writers.setdefault(run.txn_id, {})[producer] = state
            yield piece

    def when_decided(self, txn_id: TxnId, go_on: Callable[[], None]) -> None:
        """Call `go_on`, from the loop, once `txn_id` holds no ids here, or fewer than before."""
        self._waiting.setdefault(txn_id, []).append(go_on)

    def noting(self, taken: Taken, published: Published) -> Published:
        """A callback to use in place of `published`: it first records whether the messages were
        stored.
        """

        def done(position: Position | None, error: Exception | None) -> None:
            if error is None:
                taken.stored()
            else:
                taken.failed(error)
                self.failed(taken.txn_id)
            published(position, error)
            self.snapshot_if_due()

        return done

    def failed(self, txn_id: TxnId | None) -> None:
        """Called when messages that were taken did not reach the log. The log will not show
        that.
        """
        self._since_snapshot += self._interval
        if txn_id is not None:
            self._forget_writers(txn_id)
            self._wake(txn_id)

    def refused(self, producer: str, first: int, last: int) -> None:
        """Called when a message arrived damaged, or must not be stored."""
        self._state(producer).refused(first, last)

    def refused_all(self, producer: str, run: SequencedRun, examinations: Examinations) -> None:
        """Called when the messages of the run must not be stored."""
        for span in spans_of_batches(run, examinations, all_of_them=True):
            self.refused(producer, *span)

    # -- what the topic's log records about transactions in the side log

    def sent_again(self, sent: bytes) -> bytes:
        """The tag for a copied append. Ids given back are listed as they are now: some may have
        been sent again, and stored, meanwhile.
        """
        producer, chunk, taken, _, _ = decode_sent(sent)
        state = self._state(producer)
        return encode_sent(Sent(producer, chunk, taken, list(state.untold), state.floor))

    def given_back(self, txn_id: TxnId) -> list[bytes]:
        """The tags to store when the transaction is aborted, as if its messages were in the topic's
        log: they may be sent again, even after a restart.
        """
        found = []
        for producer, state in self._writers.get(txn_id, {}).items():
            ranges, untold = list(state.held_by(txn_id)), list(state.untold)
            for at in range(0, len(ranges), MAX_TAKEN):
                some = ranges[at : at + MAX_TAKEN]
                found.append(encode_sent(Sent(producer, -1, some, untold, state.floor)))
        return found

    def ended(self, txn_id: TxnId, aborted: bool) -> None:
        """Also called during recovery, when the marker of a transaction becomes durable."""
        if self._known_ends is None:
            self._end(txn_id, aborted)
        else:
            self._known_ends[txn_id] = aborted

    def _end(self, txn_id: TxnId, aborted: bool) -> None:
        for state in self._writers.pop(txn_id, {}).values():
            state.ended(txn_id, aborted)
            self._since_snapshot += 1
        self._wake(txn_id)

    def _forget_writers(self, txn_id: TxnId) -> None:
        """A transaction that holds no ids here need not end here."""
        writers = self._writers.get(txn_id, {})
        if not any(txn_id in state.open or state.chunk_txn == txn_id for state in writers.values()):
            self._writers.pop(txn_id, None)

    def _wake(self, txn_id: TxnId) -> None:
        for go_on in self._waiting.pop(txn_id, ()):
            asyncio.get_running_loop().call_soon(go_on)

    def _state(self, producer: str) -> ProducerSequence:
        state = self._producers.get(producer)
        if state is None:
            if len(self._producers) >= self._max_producers:
                self._forget_oldest()
            state = self._producers[producer] = ProducerSequence()
        self._producers.move_to_end(producer)
        return state

    def _forget_oldest(self) -> None:
        for name, state in self._producers.items():
            if state.is_settled:
                del self._producers[name]
                return

    # -- recovery

    async def recover(self, buffer: OpenOnTopic) -> None:
        """`buffer` knows the transactions that have not ended on this topic. Call `ended` for those
        that end from now on: their markers may reach the log after it was read.
        """
        told = self._known_ends = {}
        await self._metadata.refresh(self._key)
        stored = self._metadata.get(self._key)
        if stored is not None:
            self._recovered_from, producers = decode(stored.value, self._key)
            self._producers.update(producers)
            for name, state in producers.items():
                for txn_id in (*state.open, state.chunk_txn):
                    if txn_id is not None:
                        self._writers.setdefault(txn_id, {})[name] = state
        async for kept in buffer.read_aside():
            self._replay_returned_aside(kept)
        position, untagged = self._recovered_from, UntaggedSpan.of(self._ledger.properties)
        while run := await self._ledger.read_whole(position, LATEST, _SCAN_ENTRIES, _SCAN_BYTES):
            await self._replay(run, untagged)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
            await asyncio.sleep(0)
        self._met.clear()
        async for kept in buffer.read_aside():  # these transactions hold what they took
            await self._replay_aside(kept)
        still_open = {each.txn_id for each in buffer.ongoing()}
        for txn_id in [txn_id for txn_id in self._writers if txn_id not in still_open]:
            if txn_id in told:
                self._end(txn_id, told[txn_id])
            else:
                self._outcome_lost(txn_id)
        self._known_ends = None
        self._ledger.trimmer.keep(lambda: self._recovered_from)
        if stored is None and self._ledger.is_shared:
            # If a broker of Apache Pulsar loads the topic next, it reads nothing before the
            # snapshot.
            await self._catch_up()
        if self._since_snapshot:  # otherwise the log would be kept until the next message
            self._visit_later()

    def _replay_returned_aside(self, run: EntryRun) -> None:
        """The log is read after this, because ids given back before these entries may have been
        stored in the log since. The snapshot covers ids up to its last durable one.
        """
        for _, _, tag in run.tags:
            if (sent := parse_tag(tag).sent) is not None:
                told = decode_sent(sent)
                state = self._state(told.producer)
                above = [each for each in told.returned if each[0] > state.durable]
                state.replay_returned(above, told.floor)

    async def _replay_aside(self, run: EntryRun) -> None:
        for first, last, tag in run.tags:
            txn_id, _, sent = parse_tag(tag)
            if sent is not None:
                told = decode_sent(sent)._replace(returned=[])
                self._replay_sent(told, txn_id, last - first + 1)
                continue
            start, stop = first - run.first_entry_id, last + 1 - run.first_entry_id
            await self._replay_messages(run, start, stop, txn_id, anew=False)

    def _outcome_lost(self, txn_id: TxnId) -> None:
        """The transaction has ended here, but the record of its end is no longer in the log, or is
        damaged. The end will not be reported again, so nothing may wait for it.
        """
        log.warning("%s: the outcome of transaction %s is unknown", self._ledger.name, txn_id)
        for state in self._writers.pop(txn_id).values():
            state.outcome_lost(txn_id)
        self._since_snapshot += 1

    async def _replay(self, run: EntryRun, untagged: UntaggedSpan) -> None:
        start = 0
        for txn_id, action, sent, first, count in told_entries(run, untagged):
            at = first.entry_id - run.first_entry_id
            await self._replay_messages(run, start, at, None)
            start = at + count
            if sent is not None:
                told = decode_sent(sent)
                returned = self._not_met(told)
                self._replay_sent(told._replace(returned=returned), txn_id, count)
            elif action is None:
                await self._replay_messages(run, at, start, txn_id)
            elif txn_id is not None:
                self._end(txn_id, action is TxnAction.ABORT)
        await self._replay_messages(run, start, len(run.entries), None)

    def _not_met(self, sent: Sent) -> list[Range]:
        """Ids given back, except those found in the log. The messages of this append waited in the
        side log, and ids were not compared when they were copied: ids given back may have been sent
        again, and stored, before the copy.
        """
        met = self._met.setdefault(sent.producer, SequenceRanges())
        returned = SequenceRanges(sent.returned)
        if any(met.overlaps(*each) for each in sent.returned):
            for first, last in met:
                returned.take_out(first, last)
        if sent.chunk < 0:
            for first, last in sent.taken:
                met.add(first, last)
            met.forget_lowest(MAX_RETURNED_RANGES)
        return list(returned)

    def _replay_sent(self, sent: Sent, txn_id: TxnId | None, entry_count: int) -> None:
        self._since_snapshot += entry_count
        state = self._state(sent.producer)
        state.replay_returned(sent.returned, sent.floor)
        for first, last in sent.taken:
            if sent.chunk >= 0:
                state.replay_chunk(Chunk(first, sent.chunk), txn_id)
            else:
                state.replay(first, last, txn_id)
        if txn_id is not None:
            self._writers.setdefault(txn_id, {})[sent.producer] = state

    async def _replay_messages(
        self, run: EntryRun, start: int, stop: int, txn_id: TxnId | None, anew: bool = True
    ) -> None:
        """The messages were written while deduplication was off, or by a version whose tags do not
        name the producer. So their own metadata counts, and the producer's last message determines
        where the producer continues.
        """
        counts = run.message_counts[start:stop]
        for entry, count in zip(run.entries[start:stop], counts, strict=True):
            try:
                metadata = parse_metadata(entry)
            except BadEntry:
                continue  # its producer made it so; it has no sequence id to remember
            highest = max(metadata.sequence_id, metadata.highest_sequence_id)
            if count > 1 and highest == metadata.sequence_id:
                highest = await highest_in_turns(entry, metadata.sequence_id)
            self._replay_message(metadata, highest, txn_id, anew)

    def _replay_message(
        self, metadata: Any, highest: int, txn_id: TxnId | None, anew: bool
    ) -> None:
        self._since_snapshot += 1
        state = self._state(metadata.producer_name)
        first = metadata.sequence_id
        if anew:  # otherwise it may precede messages that were read before it
            state.began_again(first)
            met = self._met.setdefault(metadata.producer_name, SequenceRanges())
            met.take_out(first, HIGHEST_ID)
            met.add(first, highest)
        chunk = chunk_of(first, metadata.chunk_id, metadata.num_chunks_from_msg)
        if chunk is not None:
            state.replay_chunk(chunk, txn_id)
        else:
            state.replay(first, highest, txn_id)
        if txn_id is not None:
            self._writers.setdefault(txn_id, {})[metadata.producer_name] = state

    # -- snapshots

    def _visit_later(self) -> None:
        self._visit = self._ledger.housekeeper.visit_in(self.interval_s, self._visited)

    def _visited(self) -> None:
        self._visit = None
        self._tasks.start(self.snapshot(), "snapshot")

    def snapshot_if_due(self) -> None:
        """Call from time to time, also from a completion."""
        if self._is_due():
            self._tasks.start(self.snapshot(), "snapshot")

    async def close(self) -> None:
        """Leave a snapshot, so that the next recovery has nothing to scan."""
        await self.stop()
        await self.snapshot()
        await self._metadata.release([self._key])

    async def stop(self) -> None:
        """Write nothing more."""
        self._closed = True
        if self._visit is not None:
            self._visit.cancel()
        await self._tasks.close()

    def _is_due(self) -> bool:
        if self._since_snapshot < self._due or self._writing.locked() or self._closed:
            return False
        self._due = max(self._interval, sum(state.size for state in self._producers.values()))
        return self._since_snapshot >= self._due

    async def snapshot(self) -> None:
        """Bounds the next recovery's scan. It contains only durable ids. Never call this from a
        completion: it must agree with `last_confirmed`.
        """
        if self._writing.locked() or not self._since_snapshot:
            return
        async with self._writing:
            await self._write()

    async def catch_up(self) -> None:
        """Write a snapshot of everything durable at the call, so that recovery no longer needs
        those entries. Raises ServiceNotReady, ManagedLedgerError.
        """
        catching_up = self._tasks.start(self._catch_up(), "snapshot")
        await asyncio.wait([catching_up])
        if catching_up.cancelled():
            raise ServiceNotReady(f"{self._ledger.name} is being unloaded: try again")
        catching_up.result()

    async def _catch_up(self) -> None:
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        self._since_snapshot = 0
        try:
            position = self._ledger.last_confirmed.after
            value = await self._encode(position)
            await self._metadata.put(self._key, value, only_while=self._ledger.still_owned)
            self._recovered_from = position
            self._ledger.touch()  # more may be trimmed now
        except (ManagedLedgerError, asyncio.CancelledError):
            self._since_snapshot += 1  # to be written later
            raise
        finally:
            if self._since_snapshot and self._visit is None and not self._closed:
                self._visit_later()  # also if a visit came during this snapshot

    async def _encode(self, position: Position) -> bytes:
        parts, names = [encode_head(position)], list(self._producers)
        for number, name in enumerate(names, 1):
            if (state := self._producers.get(name)) is not None:
                parts.append(encode_producer(name, state))
            if number % _WRITE_PRODUCERS == 0:
                await asyncio.sleep(0)
        return b"".join(parts)
