"""Receipts for messages that are not stored, and stored duplicates."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from bugs.believing import nothing
from pybroker.broker.deduplication import producer_sequence
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.deduplication.producer_sequence import ProducerSequence, Standing
from pybroker.broker.deletion.topic_storage import TopicStorage

RANGES = 2


@contextmanager
def _standing_wrong(instead_of: Standing) -> Iterator[None]:
    right = ProducerSequence.standing

    def standing(self: ProducerSequence, first: int, last: int, txn_id: Any) -> Standing:
        found = right(self, first, last, txn_id)
        return Standing.DUPLICATE if found is instead_of else found

    with patch.object(ProducerSequence, "standing", standing):
        yield


@contextmanager
def copy_answered_as_duplicate() -> Iterator[None]:
    """A copy of a message whose transaction is open is dropped with a receipt."""
    with _standing_wrong(Standing.COPY):
        yield


@contextmanager
def aborted_ranges_forgotten() -> Iterator[None]:
    """The lowest of many aborted ranges are forgotten, so a resent message counts as stored."""
    with (
        patch.object(producer_sequence, "MAX_RETURNED_RANGES", RANGES),
        _standing_wrong(Standing.FORGOTTEN),
    ):
        yield


@contextmanager
def snapshot_outlives_its_topic() -> Iterator[None]:
    """The next topic of that name begins with the old topic's sequence ids."""
    with (
        patch.object(TopicStorage, "_remove_snapshots", nothing),
        patch.object(TopicStorage, "remove_strays", nothing),
    ):
        yield


@contextmanager
def sequence_ids_forgotten_at_recovery() -> Iterator[None]:
    """Messages since the last snapshot are stored again when they are resent."""

    async def replay(self: Deduplication, run: Any, untagged: Any) -> None:
        pass

    with patch.object(Deduplication, "_replay", replay):
        yield


BUGS = {
    "sequence-ids-forgotten-at-recovery": sequence_ids_forgotten_at_recovery,
    "copy-answered-as-duplicate": copy_answered_as_duplicate,
    "aborted-ranges-forgotten": aborted_ranges_forgotten,
    "snapshot-outlives-its-topic": snapshot_outlives_its_topic,
}
