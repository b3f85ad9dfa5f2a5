"""The durable ledger list of one managed ledger, and the changes to it that are on their way.

Changes are queued at once, each on top of the one before, so several may be under way. When one
fails, those behind it fail too, and what the metadata store holds is the truth again.
"""

import asyncio

from managed_ledger.ledger_metadata import LedgerList
from managed_ledger.storage.backend import MetadataStore, Versioned

ABSENT = Versioned(LedgerList().encode(), -1)


class ListRecord:
    """`queued` is the list as it will be when all writes so far succeed."""

    __slots__ = (
        "_durable",
        "_durable_version",
        "_key",
        "_metadata",
        "_version",
        "queued",
    )

    def __init__(self, metadata: MetadataStore, key: str) -> None:
        self._metadata = metadata
        self._key = key
        self._durable_version = -1
        self._durable = LedgerList()
        self.queued = self.durable
        self._version = self._durable_version

    @property
    def durable(self) -> LedgerList:
        stored = self._metadata.get(self._key) or ABSENT
        if stored.version != self._durable_version:
            self._durable = LedgerList.decode(stored.value, self._key)
            self._durable_version = stored.version
        return self._durable

    def write(self, value: LedgerList, new_ledger_id: int | None = None) -> asyncio.Future[None]:
        """Fails with BadVersion when somebody else has written the list. A new ledger is made with
        its list, or not at all, so there is none that no list has.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        makes_room = new_ledger_id is None
        put = self._metadata.put(
            self._key, value.encode(), self._version, makes_room, new_ledger_id
        )
        self.queued = value
        self._version += 1
        put.add_done_callback(lambda put: self._written(put, value, done))
        return done

    def amend(self, value: LedgerList) -> None:
        """What the next write starts from; not worth a write of its own."""
        self.queued = value

    def _written(
        self, put: asyncio.Future[int], value: LedgerList, done: asyncio.Future[None]
    ) -> None:
        error = put.exception()
        if error is not None:
            self._reload()
        else:
            self._durable, self._durable_version = value, put.result()
        if done.cancelled():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _reload(self) -> None:
        self.queued = self.durable
        self._version = self._durable_version
