"""Deduplication: each producer name's highest sequence id, and what aborts gave back.

A message is a duplicate when its highest sequence id is not above the producer's highest one,
unless a transaction that carried it was aborted: then it may come again. The chunks of a large
message share its sequence id; it counts as seen with its last chunk. Memory is ahead of the disk by
what is in flight: a duplicate of a message that is not durable yet is answered when that one is.

State is rebuilt at load from a snapshot in the metadata store and a scan of the entries behind it.
What belongs to a transaction, and what ended it, is told by the entries' tags, as everywhere.
"""

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.backend import EntryRun, MetadataStore
from pybroker.broker.sequence_ranges import SequenceRanges
from pybroker.names import TxnId
from pybroker.transaction.transactional_entries import UntaggedSpan, transactional_entries
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire.message_metadata import BadEntry, parse_metadata

_SCAN_ENTRIES: Final = 1000
_SCAN_BYTES: Final = 4 * 1024 * 1024
_NO_CHUNK: Final = (-1, -1)


class SequenceIds(NamedTuple):
    """What an entry carries: one message, a batch from lowest to highest, or a chunk of one."""

    lowest: int
    highest: int
    chunk: int = 0
    chunks: int = 1

    @property
    def complete(self) -> bool:
        return self.chunk + 1 >= self.chunks

    @property
    def place(self) -> tuple[int, int]:
        """Chunks come in this order."""
        return self.lowest, self.chunk


# Called with the reason why the first copy of a duplicate was not written, or None if it was.
Answer = Callable[[Exception | None], None]


class ProducerSequence:
    """One producer name's sequence ids on one topic."""

    __slots__ = (
        "chunk",
        "durable",
        "durable_chunk",
        "highest",
        "retaken",
        "returned",
        "waiting",
    )

    def __init__(self, highest: int = -1) -> None:
        self.highest = highest
        self.durable = highest
        self.chunk = _NO_CHUNK  # the last one of a message that is not complete yet
        self.durable_chunk = _NO_CHUNK
        self.returned = SequenceRanges()  # aborted: they may come again
        self.retaken = SequenceRanges()  # came again, not durable yet
        self.waiting: list[tuple[SequenceIds, Answer]] = []

    def is_duplicate(self, ids: SequenceIds) -> bool:
        if ids.highest <= self.highest and not self.returned.covers(ids.lowest, ids.highest):
            return True
        return not ids.complete and ids.place <= self.chunk

    def is_durable(self, ids: SequenceIds) -> bool:
        if ids.highest <= self.durable and not self.retaken.overlaps(ids.lowest, ids.highest):
            return True
        return not ids.complete and ids.place <= self.durable_chunk

    def take(self, ids: SequenceIds) -> None:
        if not ids.complete:
            self.chunk = ids.place
            return
        self.highest = max(self.highest, ids.highest)
        if self.returned:
            for first, last in self.returned.take_out(ids.lowest, ids.highest):
                self.retaken.add(first, last)

    def became_durable(self, ids: SequenceIds) -> None:
        if ids.complete:
            self.durable = max(self.durable, ids.highest)
            self.highest = max(self.highest, ids.highest)
            if self.retaken:
                self.retaken.take_out(ids.lowest, ids.highest)
        else:
            self.durable_chunk = ids.place
        if self.waiting:
            self._answer_durable()

    def give_back(self, ids: SequenceIds) -> None:
        if ids.place <= self.chunk:
            self.chunk = self.durable_chunk = (ids.lowest, ids.chunk - 1)
        if ids.complete:
            self.retaken.take_out(ids.lowest, ids.highest)
            self.returned.add(ids.lowest, ids.highest)

    def fail_waiting(self, ids: SequenceIds, error: Exception) -> None:
        """The first copy of these was not written: nor are the duplicates."""
        waiting, self.waiting = self.waiting, []
        for other, answer in waiting:
            if other.lowest <= ids.highest and ids.lowest <= other.highest:
                answer(error)
            else:
                self.waiting.append((other, answer))

    def _answer_durable(self) -> None:
        waiting, self.waiting = self.waiting, []
        for ids, answer in waiting:
            if self.is_durable(ids):
                answer(None)
            else:
                self.waiting.append((ids, answer))


class Deduplication:
    def __init__(
        self, ledger: ManagedLedger, metadata: MetadataStore, max_producers: int, interval: int
    ) -> None:
        self._ledger = ledger
        self._metadata = metadata
        self._key = f"/deduplication/{ledger.name}"
        self._max_producers = max_producers
        self._interval = interval
        self._since_snapshot = 0
        self._producers: dict[str, ProducerSequence] = {}
        # What each open transaction carried: given back if it aborts.
        self._in_transaction: dict[TxnId, list[tuple[str, SequenceIds]]] = {}

    def last_sequence_id(self, producer: str) -> int:
        """-1 for a producer that never published here; what was aborted does not count."""
        state = self._producers.get(producer)
        return state.returned.before(state.highest) if state else -1

    def is_duplicate(self, producer: str, ids: SequenceIds) -> bool:
        return self._state(producer).is_duplicate(ids)

    def when_durable(self, producer: str, ids: SequenceIds, answer: Answer) -> None:
        """Call `answer` once the first copy of a duplicate is durable; at once if it is."""
        state = self._state(producer)
        if state.is_durable(ids):
            answer(None)
        else:
            state.waiting.append((ids, answer))

    def take(self, producer: str, ids: SequenceIds, txn_id: TxnId | None) -> None:
        """A message goes to the ledger: what comes again from now on is a duplicate."""
        self._state(producer).take(ids)
        self._since_snapshot += 1
        if txn_id is not None:
            self._in_transaction.setdefault(txn_id, []).append((producer, ids))

    def became_durable(self, producer: str, ids: SequenceIds) -> None:
        self._state(producer).became_durable(ids)

    def failed(
        self, producer: str, ids: SequenceIds, txn_id: TxnId | None, error: Exception
    ) -> None:
        """A message that was taken did not reach the ledger: it may come again."""
        state = self._state(producer)
        state.give_back(ids)
        state.fail_waiting(ids, error)
        carried = self._in_transaction.get(txn_id, []) if txn_id is not None else []
        if (producer, ids) in carried:
            carried.remove((producer, ids))

    def ended(self, txn_id: TxnId, aborted: bool) -> None:
        for producer, ids in self._in_transaction.pop(txn_id, ()):
            if aborted:
                self._state(producer).give_back(ids)

    def _state(self, producer: str) -> ProducerSequence:
        state = self._producers.pop(producer, None) or ProducerSequence()
        self._producers[producer] = state  # last used last
        if len(self._producers) > self._max_producers:
            self._forget_oldest()
        return state

    def _forget_oldest(self) -> None:
        for name, state in self._producers.items():
            if not state.waiting:
                del self._producers[name]
                return

    # -- snapshot and recovery

    async def recover(self) -> None:
        stored = self._metadata.get(self._key)
        position = EARLIEST
        if stored is not None:
            position = self._restore(json.loads(stored.value))
        untagged = UntaggedSpan.of(self._ledger.properties)
        while run := await self._ledger.read(position, LATEST, _SCAN_ENTRIES, _SCAN_BYTES):
            self._replay_run(run, untagged)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    def _replay_run(self, run: EntryRun, untagged: UntaggedSpan) -> None:
        start = 0
        for txn_id, action, first, count in transactional_entries(run, untagged):
            at = first.entry_id - run.first_entry_id
            for entry in run.entries[start:at]:
                self._replay(entry, None)
            start = at + count
            if action is None:
                for entry in run.entries[at:start]:
                    self._replay(entry, txn_id)
            else:
                self.ended(txn_id, action is TxnAction.ABORT)
        for entry in run.entries[start:]:
            self._replay(entry, None)

    def _replay(self, entry: bytes, txn_id: TxnId | None) -> None:
        try:
            metadata = parse_metadata(entry)
        except BadEntry:
            return  # its producer made it so; it has no sequence id to remember
        lowest, chunk = metadata.sequence_id, metadata.chunk_id
        highest = max(lowest, metadata.highest_sequence_id)
        ids = SequenceIds(lowest, highest, chunk, metadata.num_chunks_from_msg)
        self.take(metadata.producer_name, ids, txn_id)
        self.became_durable(metadata.producer_name, ids)

    def snapshot_is_due(self) -> bool:
        """Whether it is time for `snapshot`; says so once."""
        if self._since_snapshot < self._interval:
            return False
        self._since_snapshot = 0
        return True

    async def snapshot(self) -> None:
        """Bound the next recovery's scan. Only what is durable is in it; call it from a task of
        its own, never from a completion, so that it agrees with `last_confirmed`.
        """
        await self._metadata.put(self._key, json.dumps(self._record()).encode())

    async def delete(self) -> None:
        await self._metadata.delete(self._key)

    def _record(self) -> dict[str, Any]:
        position = self._ledger.last_confirmed
        return {
            "next": [position.ledger_id, position.entry_id + 1],
            "producers": {
                name: {
                    "highest": state.durable,
                    "returned": state.returned.all() + state.retaken.all(),
                    "chunk": state.durable_chunk,
                }
                for name, state in self._producers.items()
            },
            "open": [[*txn_id, carried] for txn_id, carried in self._in_transaction.items()],
        }

    def _restore(self, record: dict[str, Any]) -> Position:
        for name, stored in record["producers"].items():
            state = self._producers[name] = ProducerSequence(stored["highest"])
            for first, last in stored["returned"]:
                state.returned.add(first, last)
            state.chunk = state.durable_chunk = tuple(stored["chunk"])
        for most, least, carried in record["open"]:
            self._in_transaction[TxnId(most, least)] = [
                (producer, SequenceIds(*ids)) for producer, ids in carried
            ]
        return Position(*record["next"])
