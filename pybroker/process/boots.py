"""How often a broker has started on a storage: producers' names contain the number."""

from typing import Final

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import MetadataStore

_BOOTS: Final = "/boots"


async def count_boot(metadata: MetadataStore) -> int:
    """The number of earlier starts of brokers on this storage. The new count is durable when this
    returns. Brokers that start at the same time get different numbers.
    """
    while True:
        stored = metadata.get(_BOOTS)
        boot, version = (0, -1) if stored is None else (int(stored.value) + 1, stored.version)
        try:
            await metadata.put(_BOOTS, str(boot).encode(), version)
        except BadVersion:  # another broker was first
            await metadata.refresh(_BOOTS)  # a mirror that waits for events may be late each time
        else:
            return boot
