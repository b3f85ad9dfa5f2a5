"""Deletions that stop half-way, space that does not come back, failures that are none."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from bugs.believing import nothing
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage import disk_errors
from pybroker.broker.deletions import Deletions
from pybroker.broker.topics import Topics


@contextmanager
def deletion_without_a_tombstone() -> Iterator[None]:
    """A crash in the middle leaves partitions behind that nobody knows of."""

    async def remove(self: Deletions, doomed: Any, vacate: Any) -> None:
        await vacate()
        await self._belongings.remove_shared(doomed.topic)
        for topic in doomed.topics():
            await self._belongings.remove_topic(topic)

    with patch.object(Deletions, "_decide_and_remove", remove):
        yield


@contextmanager
def deleted_ledgers_left() -> Iterator[None]:
    """What a crash kept from being unlinked stays for good."""
    with patch.object(ManagedLedgerFactory, "sweep", nothing):
        yield


@contextmanager
def deletion_overtaken_by_an_unload() -> Iterator[None]:
    """Who deletes a topic that is being unloaded is told that it is gone when it is closed."""
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


BUGS = {
    "deletion-without-a-tombstone": deletion_without_a_tombstone,
    "deleted-ledgers-left": deleted_ledgers_left,
    "deletion-overtaken-by-an-unload": deletion_overtaken_by_an_unload,
    "missing-descriptors-end-it": missing_descriptors_taken_for_a_failed_disk,
}
