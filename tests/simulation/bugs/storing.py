"""Interrupted deletions, space that is not freed, and errors misjudged."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from managed_ledger.appender import Appender
from managed_ledger.ledger import ManagedLedger
from managed_ledger.steady_time import SteadyTime
from managed_ledger.storage.embedded import disk_errors, journal
from managed_ledger.storage.embedded.block_reader import BlockReader
from managed_ledger.storage.embedded.checkpoints import Checkpoints
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.embedded.room import RESERVE, RESERVE_FOLDER, Room
from pybroker.broker.deletion.deletions import Deletions
from pybroker.broker.topics import Topics


@contextmanager
def deletion_without_a_tombstone() -> Iterator[None]:
    """A crash in the middle leaves partitions that no topic knows."""

    async def remove(self: Deletions, doomed: Any, vacate: Any, only_while: Any) -> None:
        await vacate()
        await self._topic_storage.remove_shared(doomed.topic, lambda: None)
        for topic in doomed.topics():
            await self._topic_storage.remove_topic(topic, lambda: None)

    with patch.object(Deletions, "_decide_and_remove", remove):
        yield


@contextmanager
def deletion_overtaken_by_an_unload() -> Iterator[None]:
    """A caller who deletes a topic during an unload gets success once the topic is closed."""
    right = Topics.delete

    async def delete(self: Topics, name: Any, force: bool = False) -> None:
        if (changing := self._changing.get(name)) is not None:
            await asyncio.wait([changing])
        else:
            await right(self, name, force)

    with patch.object(Topics, "delete", delete):
        yield


@contextmanager
def missing_descriptors_taken_for_a_failed_disk() -> Iterator[None]:
    """EMFILE ends the process."""
    with patch.object(disk_errors, "is_out_of_descriptors", lambda error: False):
        yield


@contextmanager
def journal_kept_on_a_full_disk() -> Iterator[None]:
    """Deleted data stays in the journal, which never grows to the size of a checkpoint."""
    with patch.object(journal, "EARLY_JOURNAL_BYTES", 1024 * 1024):
        yield


@contextmanager
def reserve_kept_at_a_start() -> Iterator[None]:
    """On a full disk no broker starts, so nothing can be deleted."""

    def begin(self: Room) -> None:
        self._has_reserve = RESERVE in self._disk.names(RESERVE_FOLDER)

    with patch.object(Room, "begin", begin):
        yield


@contextmanager
def reserve_not_regained() -> Iterator[None]:
    """A used reserve returns only with the next checkpoint, whenever that is."""
    with patch.object(EmbeddedBackend, "_see_to_the_reserve", lambda self: None):
        yield


@contextmanager
def reserve_for_records_only() -> Iterator[None]:
    """The reserve does not serve a checkpoint, so deleted data stays in the journal."""
    with patch.object(Checkpoints, "_checkpoint_even_if_full", Checkpoints._checkpoint):
        yield


@contextmanager
def expired_within_a_visit() -> Iterator[None]:
    """A ledger that expires while an older one is being deleted stays."""
    right = ManagedLedger.next_visit_s

    def next_visit_s(self: ManagedLedger) -> float | None:
        self._looked_after_ms = self._time.now_ms()
        return right(self)

    with patch.object(ManagedLedger, "next_visit_s", next_visit_s):
        yield


@contextmanager
def rollover_turns_the_order() -> Iterator[None]:
    """Appends held during a rollover go into the new ledger in reverse order."""
    right = Appender.release

    def release(self: Appender) -> None:
        self._held.reverse()
        right(self)

    with patch.object(Appender, "release", release):
        yield


@contextmanager
def ages_by_the_wall_clock() -> Iterator[None]:
    """If the clock is set back, consumed ledgers stay that much longer."""
    with patch.object(SteadyTime, "now_ms", lambda self: self._clock.now_ms()):
        yield


@contextmanager
def evicted_entries_mistaken() -> Iterator[None]:
    """A read from before the cached entries returns cached ones instead."""
    right = BlockReader.cached

    def cached(self: BlockReader, state: Any, first: int, last: int, *limits: int) -> Any:
        in_memory = state.tail.first_entry_id
        if not first < in_memory <= last:
            return right(self, state, first, last, *limits)
        run = right(self, state, in_memory, last, *limits)
        return None if run is None else replace(run, first_entry_id=first)

    with patch.object(BlockReader, "cached", cached):
        yield


BUGS = {
    "deletion-without-a-tombstone": deletion_without_a_tombstone,
    "deletion-overtaken-by-an-unload": deletion_overtaken_by_an_unload,
    "missing-descriptors-end-it": missing_descriptors_taken_for_a_failed_disk,
    "journal-kept-on-a-full-disk": journal_kept_on_a_full_disk,
    "reserve-kept-at-a-start": reserve_kept_at_a_start,
    "reserve-not-regained": reserve_not_regained,
    "reserve-for-records-only": reserve_for_records_only,
    "expired-within-a-visit": expired_within_a_visit,
    "rollover-turns-the-order": rollover_turns_the_order,
    "ages-by-the-wall-clock": ages_by_the_wall_clock,
    "evicted-entries-mistaken": evicted_entries_mistaken,
}
