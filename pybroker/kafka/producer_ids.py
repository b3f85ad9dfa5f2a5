"""Producer ids: no two producers of a storage ever have the same one.

A range of them is reserved by one write, and what is left of it is lost with the broker. Brokers of
a cluster reserve from the same key, by compare-and-set.
"""

import asyncio
from typing import Final

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import MetadataStore

RESERVED: Final = 1000
_KEY: Final = "/kafka-producer-ids"  # the next id that nobody has reserved
_ATTEMPTS: Final = 20


class ProducerIds:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._free = range(0)
        self._reserving = asyncio.Lock()

    async def new(self) -> int:
        """An id that no producer has had. Raises ManagedLedgerError."""
        async with self._reserving:
            if not self._free:
                self._free = await self._reserved()
            producer_id, self._free = self._free[0], self._free[1:]
        return producer_id

    async def _reserved(self) -> range:
        for _ in range(_ATTEMPTS):
            await self._metadata.refresh(_KEY)
            stored = self._metadata.get(_KEY)
            first, version = (0, -1) if stored is None else (int(stored.value), stored.version)
            try:
                await self._metadata.put(_KEY, b"%d" % (first + RESERVED), version)
            except BadVersion:
                continue  # another broker has reserved these
            return range(first, first + RESERVED)
        raise BadVersion(f"{_KEY} is being changed all the time: try again")
