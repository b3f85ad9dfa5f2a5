"""The durable list of a managed ledger's ledgers, and the changes in flight.

Changes are queued at once, each based on the previous one, so several may be in flight. When a
change fails, those after it fail, too, and the next new change is based on those before it. This
holds from the moment of the failure, not from when a caller learns of it: otherwise a change made
in between would be based on a failed one.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from managed_ledger.ledger_metadata import LedgerList
from managed_ledger.storage.backend import KeyAt, MetadataStore, Versioned

ABSENT = Versioned(LedgerList().encode(), -1)


class _Change(NamedTuple):
    put: asyncio.Future[int]
    value: LedgerList
    version: int

    @property
    def failed(self) -> bool:
        return self.put.done() and self.put.exception() is not None


class ListRecord:
    __slots__ = (
        "_durable",
        "_durable_version",
        "_key",
        "_metadata",
        "_queued",
        "_under_way",
        "_version",
    )

    def __init__(self, metadata: MetadataStore, key: str) -> None:
        self._metadata = metadata
        self._key = key
        self._durable_version = -1
        self._durable = LedgerList()
        self._queued = self.durable
        self._version = self._durable_version
        self._under_way: tuple[_Change, ...] = ()

    @property
    def durable(self) -> LedgerList:
        stored = self._metadata.get(self._key) or ABSENT
        if stored.version != self._durable_version:
            self._durable = LedgerList.decode(stored.value, self._key)
            self._durable_version = stored.version
        return self._durable

    @property
    def queued(self) -> LedgerList:
        """The list as it will be if all pending writes succeed."""
        self._forget_failed()
        return self._queued

    @property
    def as_queued(self) -> KeyAt:
        """The condition that no other writer has written the list."""
        self._forget_failed()
        return KeyAt(self._key, self._version)

    def write(
        self,
        value: LedgerList,
        new_ledger_id: int | None = None,
        only_while: KeyAt | None = None,
    ) -> asyncio.Future[None]:
        """Fails with BadVersion if another writer has written the list, or `only_while` does not
        hold. A new ledger is created atomically with the list, so no ledger exists without a list.
        """
        self._forget_failed()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        makes_room = new_ledger_id is None
        put = self._metadata.put(
            self._key, value.encode(), self._version, makes_room, new_ledger_id, only_while
        )
        self._queued = value
        self._version += 1
        self._under_way += (_Change(put, value, self._version),)
        put.add_done_callback(lambda put: self._written(put, value, done))
        return done

    async def settled(self) -> None:
        """Wait until all changes so far are durable or have failed."""
        if self._under_way:
            await asyncio.wait([each.put for each in self._under_way])

    @property
    def deletable(self) -> tuple[int, ...]:
        """Ledgers whose data may be deleted, regardless of the outcome of pending writes."""
        durable = self.durable.deleting
        return tuple(each for each in self.queued.deleting if each in durable)

    def forget_deleted(self, ids: Collection[int]) -> None:
        """The data of these ledgers is deleted. The next write records this; it needs none of its
        own.
        """
        left = tuple(each for each in self.queued.deleting if each not in ids)
        self._queued = replace(self._queued, deleting=left)

    def _written(
        self, put: asyncio.Future[int], value: LedgerList, done: asyncio.Future[None]
    ) -> None:
        error = put.exception()
        if error is not None:
            self._forget_failed()
        else:
            self._under_way = tuple(each for each in self._under_way if each.put is not put)
            self._durable, self._durable_version = value, put.result()
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _forget_failed(self) -> None:
        left = self._under_way
        while left and left[-1].failed:
            left = left[:-1]
        if len(left) == len(self._under_way):
            return
        self._under_way = left
        if left:
            _, self._queued, self._version = left[-1]
        else:
            self._queued, self._version = self.durable, self._durable_version
