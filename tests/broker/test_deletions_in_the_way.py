"""Deletions that block others: which calls wait for them, and what follows a failed one."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from test_deletions import ORDERS, PARTITIONS, SUBSCRIPTION, Life, run
from topics_world import World
from topics_world import run as run_virtually

from managed_ledger.errors import BadVersion, StorageFailed
from managed_ledger.position import EARLIEST
from pybroker.admin.finding import finish_deletions_of_a_cluster
from pybroker.base.errors import ServiceNotReady, TopicNotFound
from pybroker.broker.brokers.bundle_release import release_topics
from pybroker.broker.brokers.ownership import (
    ALONE,
    LAST_HASH,
    BrokerAddress,
    Bundle,
    OnSeveralBrokers,
)
from pybroker.broker.deletion.deletions import Doomed
from pybroker.broker.namespaces.tenants import partitions_key
from pybroker.broker.schemas.registry import Schemas, StoredSchema


class Removal:
    """Replaces a step of a deletion: waits, fails, or runs the real step."""

    def __init__(self, life: Life, step: str) -> None:
        self._topic_storage: Any = life.topics.deletions._topic_storage
        self._step = step
        self._right = getattr(self._topic_storage, step)
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.failures: list[Exception] = []
        self.tries = 0
        setattr(self._topic_storage, step, self._remove)

    async def _remove(self, *what: Any) -> None:
        self.tries += 1
        self.begun.set()
        if self.failures:
            raise self.failures.pop(0)
        await self.may_go_on.wait()
        await self._right(*what)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("doomed", "said"),
    [
        (Doomed(ORDERS), f"{ORDERS}"),
        (Doomed(ORDERS, PARTITIONS), f"{ORDERS} with 2 partitions"),
        (Doomed(ORDERS, 0, "s"), f"subscription s of {ORDERS}"),
    ],
)
def test_what_is_deleted_is_said(doomed: Doomed, said: str) -> None:
    assert str(doomed) == said
    assert Doomed.decode(doomed.encode()) == doomed


def test_a_topic_loads_when_no_subscription_of_it_is_half_deleted() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        removal = Removal(life, "remove_subscription")
        deleting = asyncio.ensure_future(topic.delete_subscription(SUBSCRIPTION))
        await removal.begun.wait()
        await life.topics.unload(ORDERS)
        loading = asyncio.ensure_future(life.topics.get(ORDERS))
        await turns()
        assert not loading.done()
        removal.may_go_on.set()
        await deleting
        again = await loading
        assert again is not None and SUBSCRIPTION not in again.subscriptions

    run(scenario)


def test_a_subscriptions_deletion_that_failed_ends_before_its_topic_loads() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        removal = Removal(life, "remove_subscription")
        removal.may_go_on.set()
        removal.failures = [StorageFailed("no"), StorageFailed("not yet")]
        with pytest.raises(StorageFailed):
            await topic.delete_subscription(SUBSCRIPTION)
        await life.topics.unload(ORDERS)
        with pytest.raises(ServiceNotReady, match="being deleted, and the deletion cannot finish"):
            await life.topics.get(ORDERS)
        again = await life.topics.get(ORDERS)
        assert again is not None and SUBSCRIPTION not in again.subscriptions
        assert not life.has_log(ORDERS)

    run(scenario)


def test_a_failed_deletion_is_finished_by_the_next_request_for_its_topic() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        removal = Removal(life, "remove_topic")
        removal.may_go_on.set()
        removal.failures = [StorageFailed("no"), StorageFailed("not yet")]
        with pytest.raises(StorageFailed):
            await life.topics.delete(ORDERS)
        with pytest.raises(ServiceNotReady, match="not yet"):
            await life.topics.get(ORDERS)
        assert await life.topics.get(ORDERS) is None
        assert life.traces(ORDERS) == []

    run(scenario)


@pytest.mark.parametrize("is_decided_again", [False, True])
def test_a_deletion_that_another_broker_has_finished_spares_what_is_new(
    is_decided_again: bool,
) -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        removal = Removal(life, "remove_topic")
        deleting = asyncio.ensure_future(life.topics.delete(ORDERS))
        await removal.begun.wait()
        # As the mirror shows it after another broker has deleted and created the topic.
        metadata = life.backend.metadata
        (key,) = metadata.keys(Doomed(ORDERS).key)
        await metadata.delete(key)
        if is_decided_again:
            await metadata.put(f"{Doomed(ORDERS).key}@again", Doomed(ORDERS).encode())
        log = await life.topics._factory.open(ORDERS.ledger_name)
        await log.append_one(b"new")
        await log.close()
        removal.may_go_on.set()
        await deleting
        assert life.topics._factory.exists(ORDERS.ledger_name) == (not is_decided_again)
        assert not metadata.keys(Doomed(ORDERS).key)
        assert not life.topics.deletions.concerns(ORDERS)

    run(scenario)


def test_who_gives_topics_away_waits_until_their_deletions_have_ended() -> None:
    """Otherwise the next owner would create what this broker still deletes."""

    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        removal = Removal(life, "remove_topic")
        deleting = asyncio.ensure_future(life.topics.delete(ORDERS))
        await removal.begun.wait()
        releasing = asyncio.ensure_future(
            release_topics(life.topics, life.factory, Bundle(ORDERS.namespace_name, 0, LAST_HASH))
        )
        await turns()
        assert not releasing.done()
        removal.may_go_on.set()
        await releasing
        assert deleting.done()

    run(scenario)


def test_closing_stops_a_deletion_where_it_is() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        removal = Removal(life, "remove_topic")
        deleting = asyncio.ensure_future(life.topics.delete(ORDERS))
        await removal.begun.wait()
        await life.topics.deletions.close()
        assert life.topics.deletions._running == {}
        with pytest.raises(asyncio.CancelledError):
            await deleting
        assert life.topics.deletions.concerns(ORDERS), "the next start goes on"

    run(scenario)


def test_who_subscribes_behind_a_deletion_that_failed_has_a_subscription_that_stays() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        removal = Removal(life, "remove_subscription")
        removal.may_go_on.set()
        removal.failures = [StorageFailed("no")]
        with pytest.raises(StorageFailed):
            await topic.delete_subscription(SUBSCRIPTION)
        await topic.subscription(SUBSCRIPTION, EARLIEST, {}, create=True)
        await life.topics.unload(ORDERS)
        again = await life.topics.get(ORDERS)
        assert again is not None and SUBSCRIPTION in again.subscriptions

    run(scenario)


def test_subscribing_during_an_unwatched_deletion_creates_a_new_subscription() -> None:
    async def scenario(life: Life) -> None:
        await life.fill(ORDERS)
        topic = await life.topics.get(ORDERS)
        assert topic is not None
        removal = Removal(life, "remove_subscription")
        deleting = asyncio.ensure_future(topic.delete_subscription(SUBSCRIPTION))
        await removal.begun.wait()
        deleting.cancel()
        anew = asyncio.ensure_future(topic.subscription(SUBSCRIPTION, EARLIEST, {}, create=True))
        await turns()
        removal.may_go_on.set()
        subscription = await anew
        await life.topics.deletions.subscriptions_settled(ORDERS)
        assert topic.ledger.cursors[SUBSCRIPTION] is subscription.cursor
        assert life.factory.has_cursor(ORDERS.ledger_name, SUBSCRIPTION)

    run(scenario)


def test_a_schema_that_is_compared_while_its_topic_is_deleted_does_not_outlive_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = asyncio.Event()

    async def slow_compare(*what: Any) -> None:
        await compared.wait()

    monkeypatch.setattr(Schemas, "_why_not", slow_compare)

    async def scenario(world: World) -> None:
        await world.topic()
        schema = StoredSchema("s", 1, b"")
        adding = asyncio.ensure_future(world.topics.schemas.add(ORDERS, schema))
        await asyncio.sleep(1)
        deleting = asyncio.ensure_future(world.topics.delete(ORDERS))
        await asyncio.sleep(1)
        compared.set()
        with pytest.raises(ServiceNotReady, match="is being deleted"):
            await adding
        await deleting
        with pytest.raises(TopicNotFound):
            world.topics.schemas.get(ORDERS)

    run_virtually(scenario)


def test_who_decides_a_deletion_late_spares_a_partitioned_topic_that_was_created_anew() -> None:
    async def scenario(world: World) -> None:
        topics, tenants = world.topics, world.tenants
        await topics.create_partitioned(ORDERS, PARTITIONS)
        await topics.partitioned.doom(ORDERS)
        late = tenants.doom_of(ORDERS)
        await topics.delete_partitioned(ORDERS)
        await topics.create_partitioned(ORDERS, PARTITIONS)
        await world.topic(ORDERS.partition_at(0))
        with pytest.raises(BadVersion):
            await topics.delete_all_of(Doomed(ORDERS, PARTITIONS), True, late)
        assert tenants.partitions(ORDERS) == PARTITIONS
        assert world.exists(ORDERS.partition_at(0))
        assert not topics.deletions.concerns(ORDERS)

    run_virtually(scenario)


def test_a_doomed_topic_is_not_deleted_over_the_heads_of_its_partitions_brokers() -> None:
    async def scenario(world: World) -> None:
        topics = world.topics
        await topics.create_partitioned(ORDERS, PARTITIONS)
        partition = ORDERS.partition_at(1)
        await world.topic(partition)
        await topics.partitioned.doom(ORDERS)
        elsewhere: Any = SimpleNamespace(
            owns=lambda name: name != partition,
            owner_of=AsyncMock(return_value=BrokerAddress("pulsar://other:6650")),
        )
        topics.ownership = elsewhere
        with pytest.raises(OnSeveralBrokers):
            await topics.delete_partitioned(ORDERS, force=True)
        assert world.exists(partition)
        topics.ownership = ALONE

    run_virtually(scenario)


@pytest.mark.parametrize(("forced", "stays"), [(True, False), (False, True)])
def test_deletions_that_a_cluster_had_begun_are_finished_by_a_broker_that_is_alone(
    forced: bool, stays: bool
) -> None:
    async def scenario(world: World) -> None:
        topics, tenants = world.topics, world.tenants
        await tenants.create_namespace("public/shop", {})
        carts = ORDERS._replace(namespace="shop", local="carts")
        for name in (carts, ORDERS):
            await topics.create_partitioned(name, PARTITIONS)
            await world.topic(name.partition_at(1))
        await topics.partitioned.doom(ORDERS)
        await tenants.mark_going("public/shop", forced)
        await finish_deletions_of_a_cluster(topics)
        assert not world.exists(ORDERS.partition_at(1))
        assert world.exists(carts.partition_at(1)) is stays
        assert tenants.takes_topics("public/shop") is stays
        assert not tenants.marked() and not tenants.doomed_topics()
        await topics.create_partitioned(ORDERS, PARTITIONS)

    run_virtually(scenario)


def test_a_name_is_free_as_soon_as_another_broker_has_deleted_the_topic() -> None:
    """This broker does not know it yet."""

    async def scenario(world: World) -> None:
        topics = world.topics
        await topics.create_partitioned(ORDERS, PARTITIONS)

        async def refreshed() -> None:
            await world.backend.metadata.delete(partitions_key(ORDERS))

        behind: Any = SimpleNamespace(owns=lambda name: True, refreshed=refreshed)
        topics.ownership = behind
        await topics.create_partitioned(ORDERS, PARTITIONS + 1)
        assert world.tenants.partitions(ORDERS) == PARTITIONS + 1

    run_virtually(scenario)
