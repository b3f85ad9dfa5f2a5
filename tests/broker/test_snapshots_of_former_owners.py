"""A broker that has lost a topic without knowing it leaves the snapshots of the next owner."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from dispatch_fakes import SteppedClock

from managed_ledger.errors import BadVersion
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.memory import MemoryBackend
from pybroker.broker.deduplication import Deduplication
from pybroker.kafka.log.producer_snapshots import ProducerSnapshots
from pybroker.kafka.producers.partition_producers import PartitionProducers
from pybroker.transaction.buffer.log_order.transaction_index import TransactionIndex

LOG = "public/default/persistent/orders"


class SharedMemory(MemoryBackend):
    is_shared = True


class Snapshots(NamedTuple):
    prefix: str  # of its keys
    writing: Callable[[MemoryBackend, ManagedLedger, int], Callable[[], Awaitable[None]]]


def kafka_producers(
    backend: MemoryBackend, ledger: ManagedLedger, _: int
) -> Callable[[], Awaitable[None]]:
    topic: Any = SimpleNamespace(ledger=ledger, metadata=backend.metadata, clock=SteppedClock())
    snapshots = ProducerSnapshots(topic)
    return lambda: snapshots.write(PartitionProducers())


def deduplication(
    backend: MemoryBackend, ledger: ManagedLedger, _: int
) -> Callable[[], Awaitable[None]]:
    return Deduplication(ledger, backend.metadata, 100, 1000)._write


def transaction_buffer(
    backend: MemoryBackend, ledger: ManagedLedger, hidden_entry_id: int
) -> Callable[[], Awaitable[None]]:
    index = TransactionIndex(ledger, backend.metadata)

    async def write() -> None:
        index.hidden.hide(7, hidden_entry_id, hidden_entry_id)
        await index.snapshot(None)

    return write


KINDS = {
    "Kafka's producers": Snapshots("/kafka-producers/", kafka_producers),
    "deduplication": Snapshots("/deduplication/", deduplication),
    "transaction buffer": Snapshots("transaction-buffer/", transaction_buffer),
}


def stored(backend: MemoryBackend, prefix: str) -> dict[str, Any]:
    return {key: backend.metadata.get(key) for key in backend.metadata.keys(prefix)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_snapshot_does_not_replace_the_next_owners(kind: str) -> None:
    prefix, writing = KINDS[kind]

    async def scenario() -> None:
        backend, clock = SharedMemory(), SteppedClock()
        lost = await ManagedLedgerFactory(backend, clock).open(LOG)
        late = writing(backend, lost, 1)
        await late()
        heir = await ManagedLedgerFactory(backend, clock).open(LOG)
        await heir.append_one(b"newer")
        await writing(backend, heir, 2)()
        newest = stored(backend, prefix)
        assert newest
        with pytest.raises(BadVersion):
            await late()
        assert stored(backend, prefix) == newest
        await backend.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_whose_list_of_ledgers_is_changing_writes_its_snapshot(kind: str) -> None:
    prefix, writing = KINDS[kind]

    async def scenario() -> None:
        backend, clock = SharedMemory(), SteppedClock()
        ledger = await ManagedLedgerFactory(backend, clock).open(LOG)
        changing = ledger.set_property("changing", "yes")
        await writing(backend, ledger, 1)()
        assert stored(backend, prefix)
        await changing
        await backend.close()

    asyncio.run(scenario())


def test_batches_of_a_failed_snapshot_are_in_the_next() -> None:
    async def scenario() -> None:
        backend, clock = SharedMemory(), SteppedClock()
        ledger = await ManagedLedgerFactory(backend, clock).open(LOG)
        topic: Any = SimpleNamespace(ledger=ledger, metadata=backend.metadata, clock=clock)
        snapshots, producers = ProducerSnapshots(topic), PartitionProducers()
        snapshots.stored(producers)
        await ManagedLedgerFactory(backend, clock).open(LOG)
        for _ in range(2):  # the second one would write nothing if the batch were forgotten
            with pytest.raises(BadVersion):
                await snapshots.close(producers)
        await backend.close()

    asyncio.run(scenario())
