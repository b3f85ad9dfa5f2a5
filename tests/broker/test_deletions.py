"""Deletions interrupted by a crash: one that has begun is completed, any other has no effect.

The crash comes before each operation on the disk in turn.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from dispatch_fakes import FakeOutcomes, SteppedClock

sys.path.insert(0, str(Path(__file__).parents[1] / "managed_ledger"))
from faulty_disk import FaultyDisk

from managed_ledger.errors import ManagedLedgerError, StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ServiceNotReady, TopicNotFound
from pybroker.base.names import TopicName, pending_ack_log
from pybroker.broker.deduplication.snapshot import encode_head, snapshot_keys
from pybroker.broker.namespaces.tenants import Conflict, Tenants
from pybroker.broker.policies.table import DEDUPLICATION
from pybroker.broker.schemas.registry import StoredSchema
from pybroker.broker.topics import Topics
from pybroker.transaction.buffer.log_order.buffer_snapshot import (
    BufferSnapshots,
    encode_buffer_head,
)

ORDERS = TopicName.parse("orders")
OTHER = TopicName.parse("other")
PARTITIONS = 2
CONFIG = replace(BrokerConfig(), broker_deduplication_enabled=True)
SUBSCRIPTION = "a/sub"


class Life:
    """A broker's storage and topics, from start to crash."""

    def __init__(self, disk: FaultyDisk) -> None:
        clock = SteppedClock()
        executor = ThreadPoolExecutor(1)
        self.backend = EmbeddedBackend(disk, clock, executor=executor, journal_max_bytes=700)
        self.factory = ManagedLedgerFactory(self.backend, clock)
        self.metadata = self.backend.metadata
        self.tenants = Tenants(self.metadata, CONFIG)
        outcomes: Any = FakeOutcomes()
        self.topics = Topics(self.factory, self.metadata, self.tenants, outcomes, clock, CONFIG)

    async def __aenter__(self) -> "Life":
        await self.backend.open()
        await self.factory.sweep()
        await self.topics.deletions.finish_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.topics.close()
        await self.factory.close()
        await self.backend.close()

    # What exists

    async def fill(self, name: TopicName) -> None:
        """Creates a message, a subscription with pending acknowledgements, and snapshots of all
        kinds.
        """
        topic = await self.topics.get(name, create=True)
        assert topic is not None
        await topic.subscription(SUBSCRIPTION, EARLIEST, {}, create=True)
        await topic.ledger.append_one(str(name).encode())
        pending = await self.factory.open(pending_ack_log(name, SUBSCRIPTION))
        await pending.append_one(b"pending")
        await pending.open_cursor("its own")
        snapshots = BufferSnapshots(self.metadata, name.ledger_name)
        await snapshots.write(await encode_buffer_head(Position(0, 0), []), {0: b"hidden"})
        await self.topics.schemas.add(name, StoredSchema("s", 1, b""))
        (key,) = snapshot_keys(self.metadata, name.ledger_name)
        await self.metadata.put(key, encode_head(Position(0, 0)))

    def traces(self, name: TopicName) -> list[str]:
        """Every metadata key of the topic and its partitions."""
        kinds = name.ledger_name, quote(name.ledger_name, safe="")
        return [key for key in self.metadata.keys("") if any(kind in key for kind in kinds)]

    async def is_whole(self, name: TopicName) -> bool:
        topic = await self.topics.get(name)
        assert topic is not None
        run = await topic.ledger.read(EARLIEST, LATEST, 10, 1000)
        kept = run is not None and run.entries == [str(name).encode()]
        return kept and SUBSCRIPTION in topic.subscriptions and self.has_log(name)

    def has_log(self, name: TopicName) -> bool:
        return self.factory.exists(pending_ack_log(name, SUBSCRIPTION))


Work = Callable[[Life], Awaitable[None]]


def crash_everywhere(
    prepare: Work, work: Work, check: Callable[[Life, bool], Awaitable[None]]
) -> None:
    """Runs `check` on the disk as of each crash, with whether `work` had returned by then."""
    disk = FaultyDisk()
    crashes: list[tuple[dict[str, bytes], bool]] = []
    finished = False

    async def before() -> None:
        async with Life(disk) as life:
            await prepare(life)

    async def during() -> None:
        nonlocal finished
        async with Life(disk) as life:
            disk.fault = lambda operation, name: crashes.append((disk.contents(), finished))
            await work(life)
            finished = True

    async def after(files: dict[str, bytes], had_returned: bool) -> None:
        async with Life(FaultyDisk(files)) as life:
            await check(life, had_returned)

    asyncio.run(before())
    asyncio.run(during())
    different = {repr(sorted(files.items())): (files, said) for files, said in crashes}
    assert len(different) > 5
    for files, said in different.values():
        asyncio.run(after(files, said))


def test_a_partitioned_topic_is_deleted_whole_or_not_at_all() -> None:
    async def prepare(life: Life) -> None:
        await life.topics.create_partitioned(ORDERS, PARTITIONS)
        for index in range(PARTITIONS):
            await life.fill(ORDERS.partition_at(index))
        await life.fill(OTHER)

    async def check(life: Life, had_returned: bool) -> None:
        if life.tenants.partitions(ORDERS):
            assert not had_returned
            for index in range(PARTITIONS):
                assert await life.is_whole(ORDERS.partition_at(index))
            await life.topics.delete_partitioned(ORDERS)
        assert life.traces(ORDERS) == []
        assert await life.is_whole(OTHER)
        await life.topics.delete(OTHER)
        assert life.metadata.keys("") == []
        assert life.backend.ledger_ids() == []

    crash_everywhere(prepare, lambda life: life.topics.delete_partitioned(ORDERS), check)


def test_what_was_granted_goes_with_its_topic_or_stays_with_it() -> None:
    granted = [ORDERS, ORDERS.partition_at(0), OTHER]

    async def prepare(life: Life) -> None:
        await life.topics.create_partitioned(ORDERS, PARTITIONS)
        await life.topics.get(ORDERS.partition_at(0), create=True)
        for name in granted:
            await life.topics.permissions.grant_on_topic(name, "alice", ["consume"])

    async def check(life: Life, had_returned: bool) -> None:
        kept = granted if life.tenants.partitions(ORDERS) else [OTHER]
        assert not (had_returned and len(kept) > 1)
        grants = life.topics.permissions.grants("public/default")
        assert sorted(grants.topics) == sorted(map(str, kept))

    crash_everywhere(prepare, lambda life: life.topics.delete_partitioned(ORDERS), check)


def test_a_topic_in_use_is_deleted_whole_or_not_at_all() -> None:
    async def work(life: Life) -> None:
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        await topic.subscriptions[SUBSCRIPTION].cursor.flush()
        await life.topics.delete(ORDERS)

    async def check(life: Life, had_returned: bool) -> None:
        if life.topics.exists(ORDERS):
            assert not had_returned
            assert await life.is_whole(ORDERS)
        else:
            assert life.metadata.keys("") == []
            assert life.backend.ledger_ids() == []

    crash_everywhere(lambda life: life.fill(ORDERS), work, check)


def test_a_subscription_goes_with_its_pending_acknowledgements_or_keeps_them() -> None:
    async def work(life: Life) -> None:
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        await topic.delete_subscription(SUBSCRIPTION)

    async def check(life: Life, had_returned: bool) -> None:
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        subscribed = SUBSCRIPTION in topic.subscriptions
        assert subscribed == life.has_log(ORDERS)
        assert not (subscribed and had_returned)
        assert topic.ledger.last_confirmed.entry_id == 0
        await life.topics.delete(ORDERS)
        assert life.metadata.keys("") == []
        assert life.backend.ledger_ids() == []

    crash_everywhere(lambda life: life.fill(ORDERS), work, check)


def test_a_new_topic_leaves_no_ledgers_behind_when_its_creation_is_cut_short() -> None:
    async def nothing(life: Life) -> None:
        pass

    async def check(life: Life, had_returned: bool) -> None:
        if life.topics.exists(ORDERS):
            await life.topics.delete(ORDERS)
        assert life.metadata.keys("") == []
        assert life.backend.ledger_ids() == []

    crash_everywhere(nothing, lambda life: life.fill(ORDERS), check)


# -- while it runs


def run(scenario: Work, disk: FaultyDisk | None = None) -> None:
    async def go() -> None:
        async with Life(disk or FaultyDisk()) as life:
            await scenario(life)

    asyncio.run(go())


def test_a_deduplication_snapshot_goes_with_its_topic_though_deduplication_is_off_by_then() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        await life.topics.policies.set_for_namespace("public/default", DEDUPLICATION, False)
        await life.topics.following.told()
        await life.topics.delete(ORDERS)
        assert life.traces(ORDERS) == []

    run(scenario)


def test_what_outlived_its_topic_goes_at_start() -> None:
    disk = FaultyDisk()

    async def leave(life: Life) -> None:
        await life.fill(OTHER)
        await life.metadata.put(f"/deduplication/{ORDERS.ledger_name}", b"{}")
        snapshots = BufferSnapshots(life.metadata, ORDERS.ledger_name)
        await snapshots.write(await encode_buffer_head(Position(0, 0), []), {0: b"hidden"})
        await life.factory.open(pending_ack_log(ORDERS, SUBSCRIPTION))

    async def look(life: Life) -> None:
        assert life.traces(ORDERS) == []
        assert len(life.traces(OTHER)) == 7

    run(leave, disk)
    run(look, disk)


def test_deleting_a_topic_that_is_just_being_unloaded_deletes_it() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        await life.topics.unload(ORDERS)
        loading = asyncio.ensure_future(life.topics.get(ORDERS))
        await asyncio.sleep(0)
        await asyncio.gather(life.topics.unload(ORDERS), life.topics.delete(ORDERS), loading)
        assert not life.topics.exists(ORDERS)

    run(scenario)


def test_who_asks_for_a_topic_while_it_is_deleted_gets_a_new_one_afterwards() -> None:
    async def scenario(life: Life) -> None:
        await life.topics.create_partitioned(ORDERS, PARTITIONS)
        await life.fill(ORDERS.partition_at(0))
        deleting = asyncio.ensure_future(life.topics.delete_partitioned(ORDERS))
        await asyncio.sleep(0)
        partitions, topic, _ = await asyncio.gather(
            life.topics.partitions_for_client(ORDERS, auto_create=False),
            life.topics.get(ORDERS.partition_at(0)),
            life.topics.create_partitioned(ORDERS, 3),
            return_exceptions=True,
        )
        await deleting
        assert isinstance(partitions, TopicNotFound)
        assert topic is None
        assert life.tenants.partitions(ORDERS) == 3

    run(scenario)


def test_a_topic_is_made_partitioned_once() -> None:
    async def scenario(life: Life) -> None:
        outcomes = await asyncio.gather(
            life.topics.create_partitioned(ORDERS, 2),
            life.topics.create_partitioned(ORDERS, 3),
            life.topics.partitioned.grow(ORDERS, 5),
            life.topics.get(ORDERS, create=True),
            return_exceptions=True,
        )
        assert outcomes[0] is None
        assert isinstance(outcomes[1], Conflict)
        assert not life.factory.exists(ORDERS.ledger_name)

    run(scenario)


def test_a_deletion_that_finds_no_room_to_be_decided_changes_nothing() -> None:
    disk = FaultyDisk()

    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)

        async def refuse(*_: object, **options: object) -> int:
            raise StorageFull("no room")

        put, life.metadata.put = life.metadata.put, refuse  # type: ignore[method-assign]
        with pytest.raises(ManagedLedgerError):
            await life.topics.delete(ORDERS)
        life.metadata.put = put  # type: ignore[method-assign]
        assert await life.is_whole(ORDERS)

    run(scenario, disk)


def test_a_schema_that_comes_during_its_topics_deletion_does_not_outlive_it() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        deleting = asyncio.ensure_future(life.topics.delete(ORDERS))
        refused = 0
        while not deleting.done():
            if life.topics.deletions.concerns(ORDERS):
                with pytest.raises(ServiceNotReady, match="being deleted"):
                    await life.topics.schemas.add(ORDERS, StoredSchema("s", 1, b"new"))
                refused += 1
            await asyncio.sleep(0)
        assert refused
        assert not life.traces(ORDERS)

    run(scenario)


@pytest.mark.parametrize("tenant", ["compacted", "pending-acks"])
def test_a_tenant_may_be_called_as_what_belongs_to_topics_begins(tenant: str) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        name = TopicName.parse(f"persistent://{tenant}/ns/orders")
        async with Life(disk) as life:
            await (await life.factory.open(name.ledger_name)).append_one(b"x")
        async with Life(FaultyDisk(disk.contents())) as life:
            ledger = await life.factory.open(name.ledger_name)
            assert await ledger.read(EARLIEST, LATEST, 1, 1) is not None

    asyncio.run(scenario())
