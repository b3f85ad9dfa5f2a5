"""Deduplication: each producer name's highest sequence id, and what aborts gave back.

A message is a duplicate when its highest sequence id is not above the producer's highest one,
unless a transaction that carried it was aborted: then it may come again. Memory is ahead of the
disk by what is in flight: a duplicate of a message that is not durable yet is answered when that
one is.

State is rebuilt at load from a snapshot in the metadata store and a scan of the entries behind it.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.backend import MetadataStore
from pybroker.names import TxnId
from pybroker.wire.message_metadata import (
    MARKER_TXN_ABORT,
    MARKER_TXN_COMMIT,
    parse_metadata,
    transaction_of,
)

_SCAN_ENTRIES: Final = 1000
_SCAN_BYTES: Final = 4 * 1024 * 1024


class ProducerSequence:
    """One producer name's sequence ids on one topic."""

    __slots__ = ("durable", "highest", "retaken", "returned", "waiting")

    def __init__(self, highest: int = -1, returned: set[int] | None = None) -> None:
        self.highest = highest
        self.durable = highest
        self.returned: set[int] = returned or set()  # aborted: they may come again
        self.retaken: set[int] = set()  # came again, not durable yet
        self.waiting: list[tuple[int, int, Callable[[], None]]] = []

    def is_duplicate(self, lowest: int, highest: int) -> bool:
        return highest <= self.highest and not self.returned.issuperset(range(lowest, highest + 1))

    def is_durable(self, lowest: int, highest: int) -> bool:
        return highest <= self.durable and self.retaken.isdisjoint(range(lowest, highest + 1))

    def take(self, lowest: int, highest: int) -> None:
        self.highest = max(self.highest, highest)
        if self.returned:
            again = self.returned.intersection(range(lowest, highest + 1))
            self.returned -= again
            self.retaken |= again

    def became_durable(self, lowest: int, highest: int) -> None:
        self.durable = max(self.durable, highest)
        if self.retaken:
            self.retaken.difference_update(range(lowest, highest + 1))
        if self.waiting:
            self._answer()

    def give_back(self, lowest: int, highest: int) -> None:
        self.retaken.difference_update(range(lowest, highest + 1))
        self.returned.update(range(lowest, highest + 1))

    def _answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        for lowest, highest, answer in waiting:
            if self.is_durable(lowest, highest):
                answer()
            else:
                self.waiting.append((lowest, highest, answer))


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
        self._in_transaction: dict[TxnId, list[tuple[str, int, int]]] = {}

    @property
    def snapshot_due(self) -> bool:
        return self._since_snapshot >= self._interval

    def last_sequence_id(self, producer: str) -> int:
        """-1 for a producer that never published here."""
        state = self._producers.get(producer)
        return state.highest if state else -1

    def is_duplicate(self, producer: str, lowest: int, highest: int) -> bool:
        return self._state(producer).is_duplicate(lowest, highest)

    def when_durable(
        self, producer: str, lowest: int, highest: int, answer: Callable[[], None]
    ) -> None:
        """Call `answer` once the first copy of a duplicate is durable; at once if it is."""
        state = self._state(producer)
        if state.is_durable(lowest, highest):
            answer()
        else:
            state.waiting.append((lowest, highest, answer))

    def take(self, producer: str, lowest: int, highest: int, txn_id: TxnId | None) -> None:
        """A message goes to the ledger: what comes again from now on is a duplicate."""
        self._state(producer).take(lowest, highest)
        self._since_snapshot += 1
        if txn_id is not None:
            carried = self._in_transaction.setdefault(txn_id, [])
            carried.append((producer, lowest, highest))

    def became_durable(self, producer: str, lowest: int, highest: int) -> None:
        self._state(producer).became_durable(lowest, highest)

    def give_back(self, producer: str, lowest: int, highest: int) -> None:
        """A message that was taken did not reach the ledger, or its transaction aborted."""
        self._state(producer).give_back(lowest, highest)

    def ended(self, txn_id: TxnId, aborted: bool) -> None:
        for producer, lowest, highest in self._in_transaction.pop(txn_id, ()):
            if aborted:
                self.give_back(producer, lowest, highest)

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
        while run := await self._ledger.read(position, LATEST, _SCAN_ENTRIES, _SCAN_BYTES):
            for entry in run.entries:
                self._replay(entry)
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    def _replay(self, entry: bytes) -> None:
        metadata = parse_metadata(entry)
        txn_id = transaction_of(metadata)
        if metadata.marker_type in (MARKER_TXN_COMMIT, MARKER_TXN_ABORT):
            if txn_id is not None:
                self.ended(txn_id, metadata.marker_type == MARKER_TXN_ABORT)
            return
        producer, lowest = metadata.producer_name, metadata.sequence_id
        highest = max(lowest, metadata.highest_sequence_id)
        self.take(producer, lowest, highest, txn_id)
        self.became_durable(producer, lowest, highest)

    async def snapshot(self) -> None:
        """Bound the next recovery's scan. Only what is durable is in it; call it from a task of
        its own, never from a completion, so that it agrees with `last_confirmed`.
        """
        self._since_snapshot = 0
        await self._metadata.put(self._key, json.dumps(self._record()).encode())

    async def delete(self) -> None:
        await self._metadata.delete(self._key)

    def _record(self) -> dict[str, Any]:
        position = self._ledger.last_confirmed
        return {
            "next": [position.ledger_id, position.entry_id + 1],
            "producers": {
                name: [state.durable, sorted(state.returned | state.retaken)]
                for name, state in self._producers.items()
            },
            "open": [[*txn_id, carried] for txn_id, carried in self._in_transaction.items()],
        }

    def _restore(self, record: dict[str, Any]) -> Position:
        for name, (highest, returned) in record["producers"].items():
            self._producers[name] = ProducerSequence(highest, set(returned))
        for most, least, carried in record["open"]:
            self._in_transaction[TxnId(most, least)] = [
                (producer, lowest, highest) for producer, lowest, highest in carried
            ]
        return Position(*record["next"])
