"""Damaged entries: what consumers get before them, and when they are told."""

from typing import Any

import pytest
from dispatch_fakes import EXCLUSIVE, SHARED, FakeTopic, with_topic

from managed_ledger.errors import DamagedEntries
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.errors import PersistenceError
from pybroker.broker.subscriptions import consumer_dispatch
from pybroker.broker.subscriptions.consumer import SubscriptionType


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_consumers_stay_until_they_have_acknowledged_what_precedes_the_damage(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients drop at a disconnection what they have prefetched, and could not get it again."""
    monkeypatch.setattr(consumer_dispatch, "_LOOK_AT_DAMAGE_S", 0)

    async def scenario(topic: FakeTopic) -> None:
        read, reads = topic.ledger.read, list[int]()

        async def damaged_read(position: Position, up_to: Position, *limits: int) -> EntryRun:
            reads.append(position.entry_id)
            if position.entry_id < 2:
                up_to = min(up_to, Position(up_to.ledger_id, 1))
                return await read(position, up_to, *limits)
            raise DamagedEntries(position.ledger_id, 2, 3, "bad checksum")

        subscription = await topic.subscribe()
        positions = await topic.publish(4)
        topic.ledger.warm, topic.ledger.read = False, damaged_read
        consumer, sink = await topic.consumer(subscription, kind, permits=10)
        for _ in range(5):
            subscription.flow(consumer, 1)
            await topic.settled()
        assert (sink.entry_ids, sink.closed) == ([0, 1], [])
        assert reads == [0, 2]  # what is damaged is read once
        subscription.acknowledge(consumer, [positions[0]])
        await topic.settled()
        assert sink.closed == []
        subscription.acknowledge(consumer, [positions[1]])
        await topic.settled()
        assert "entries 2 to 3" in sink.closed[0]
        with pytest.raises(PersistenceError, match="resetcursor"):
            await topic.consumer(subscription, kind, permits=10)

    with_topic(scenario)


def test_who_comes_while_the_others_hold_what_precedes_the_damage_gets_it_again() -> None:
    async def scenario(topic: FakeTopic) -> None:
        read = topic.ledger.read

        async def damaged_read(position: Position, up_to: Position, *limits: int) -> EntryRun:
            if position.entry_id == 0:
                return await read(position, min(up_to, position), *limits)
            raise DamagedEntries(position.ledger_id, 1, 1, "bad checksum")

        subscription = await topic.subscribe()
        await topic.publish(2)
        topic.ledger.warm, topic.ledger.read = False, damaged_read
        first, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        await topic.settled()
        subscription.remove_consumer(first)
        _, second = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        await topic.settled()
        assert (sink.entry_ids, second.entry_ids, second.closed) == ([0], [0], [])

    with_topic(scenario)


def test_who_holds_a_part_of_the_damaged_block_from_memory_acknowledges_it_first() -> None:
    """The damage is that of a whole block, from its first entry on."""

    async def scenario(topic: FakeTopic) -> None:
        async def damaged_read(position: Position, *limits: Any) -> EntryRun | None:
            raise DamagedEntries(position.ledger_id, 0, 3, "bad checksum")

        subscription = await topic.subscribe()
        await topic.publish(4)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=2)
        await topic.settled()
        topic.ledger.warm, topic.ledger.read = False, damaged_read
        subscription.flow(consumer, 10)
        await topic.settled()
        assert (sink.entry_ids, sink.closed) == ([0, 1], [])

    with_topic(scenario)


def test_a_cumulative_acknowledgement_goes_past_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_dispatch, "_LOOK_AT_DAMAGE_S", 0)

    async def scenario(topic: FakeTopic) -> None:
        read = topic.ledger.read

        async def damaged_read(position: Position, up_to: Position, *limits: int) -> EntryRun:
            if position.entry_id == 1:
                raise DamagedEntries(position.ledger_id, 1, 1, "bad checksum")
            return await read(position, min(up_to, position), *limits)

        subscription = await topic.subscribe()
        positions = await topic.publish(4)
        topic.ledger.warm, topic.ledger.read = False, damaged_read
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits=10)
        await topic.settled()
        subscription.acknowledge_cumulative(consumer, positions[1])
        await topic.settled()
        assert (sink.entry_ids, sink.closed) == ([0, 2, 3], [])

    with_topic(scenario)


def test_damage_found_at_a_redelivery_is_told_although_later_damage_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_dispatch, "_LOOK_AT_DAMAGE_S", 0)

    async def scenario(topic: FakeTopic) -> None:
        async def damaged_read(position: Position, *limits: Any) -> EntryRun | None:
            entry_id = position.entry_id
            raise DamagedEntries(position.ledger_id, entry_id, entry_id, "bad checksum")

        subscription = await topic.subscribe()
        positions = await topic.publish(4)
        consumer, sink = await topic.consumer(subscription, SHARED, permits=3)
        await topic.settled()
        topic.ledger.warm, topic.ledger.read = False, damaged_read
        subscription.flow(consumer, 10)
        await topic.settled()
        assert (sink.entry_ids, sink.closed) == ([0, 1, 2], [])
        subscription.redeliver(consumer, [positions[1]])
        await topic.settled()
        assert sink.closed == []
        subscription.acknowledge(consumer, [positions[0]])
        await topic.settled()
        assert "entries 1 to 1" in sink.closed[0]

    with_topic(scenario)
