"""Message indexes are never reused, whatever happens to their entries."""

import asyncio
from typing import Any

from dispatch_fakes import SteppedClock

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.memory import MemoryBackend
from managed_ledger.trim import Retention
from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.persistent.entry_metadata import INDEX, stamping
from pybroker.wire.message_metadata import broker_index_of

NAME = "public/default/persistent/stamped"
STAMPED = BrokerConfig(broker_entry_metadata_interceptors=(INDEX,))


async def opened(
    backend: Any, config: BrokerConfig = STAMPED
) -> tuple[ManagedLedgerFactory, ManagedLedger]:
    clock = SteppedClock()
    small = ManagedLedgerConfig(max_entries_per_ledger=2, min_rollover_time_ms=0)
    factory = ManagedLedgerFactory(backend, clock, small)
    ledger = await factory.open(NAME)
    await stamping(ledger, config, clock)
    return factory, ledger


async def append(ledger: ManagedLedger, count: int = 1) -> int | None:
    """Appends an entry and returns its broker index."""
    position = await ledger.append_one(b"entry", count)
    run = await ledger.read(position, position, 1, 1)
    assert run is not None
    return broker_index_of(run.entries[0])


def run(scenario: Any) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        await scenario(backend)
        await backend.close()

    asyncio.run(go())


def test_numbers_go_on_when_all_that_had_them_have_gone() -> None:
    async def scenario(backend: MemoryBackend) -> None:
        factory, ledger = await opened(backend)
        cursor = await ledger.open_cursor("c")
        for number in range(5):
            assert await append(ledger, 2) == 2 * number + 1
        cursor.mark_delete(ledger.last_confirmed)
        await factory.close()
        factory, ledger = await opened(backend)
        await ledger.trim(Retention(time_ms=0, size_bytes=0))
        assert sum(info.entries for info in ledger.ledgers()) == 0
        await factory.close()
        factory, ledger = await opened(backend)
        assert await append(ledger) == 10
        await factory.close()

    run(scenario)


def test_numbers_go_on_behind_entries_that_have_none() -> None:
    async def scenario(backend: MemoryBackend) -> None:
        factory, ledger = await opened(backend)
        assert await append(ledger) == 0
        await factory.close()
        factory, ledger = await opened(backend, BrokerConfig())
        assert await append(ledger) is None
        await factory.close()
        factory, ledger = await opened(backend)
        assert await append(ledger) == 1
        await factory.close()

    run(scenario)
