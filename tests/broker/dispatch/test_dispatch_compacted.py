"""Reading compacted: what consumers receive that come and go meanwhile."""

import asyncio
from typing import Any

import pytest
from dispatch_fakes import EXCLUSIVE, FakeTopic, RecordingSink, with_topic

from managed_ledger.errors import DamagedEntries
from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import PersistenceError
from pybroker.broker.compaction.compacted_log import CompactedLog, Kept, encode
from pybroker.broker.subscriptions import consumer_dispatch
from pybroker.broker.subscriptions.consumer import Consumer, SubscribeRequest
from pybroker.broker.subscriptions.subscription import Subscription


class SlowCompaction:
    """Every second entry of a topic is kept. They can be read once `open` is set."""

    def __init__(self, topic: FakeTopic) -> None:
        self._topic = topic
        self.horizon: Position | None = None
        self.open = asyncio.Event()
        self.opened = 0

    async def keep(self, positions: list[Position], kept: list[Position]) -> None:
        self._ledger = await self._topic.factory.open("kept")
        for position in kept:
            await self._ledger.append_one(encode(Kept(position, b"x", 1)), 1)
        self.horizon = positions[-1]

    async def log(self) -> CompactedLog:
        self.opened += 1
        await self.open.wait()
        return CompactedLog(self._ledger)


async def compacted(topic: Any) -> SlowCompaction:
    compaction = topic.compaction = SlowCompaction(topic)
    positions = await topic.publish(6)
    await compaction.keep(positions, positions[::2])
    return compaction


async def consumer(
    subscription: Subscription, read_compacted: bool, permits: int = 100
) -> tuple[Consumer, RecordingSink]:
    sink = RecordingSink()
    found = Consumer(SubscribeRequest(1, "c", read_compacted=read_compacted), sink)
    await subscription.add_consumer(found, EXCLUSIVE)
    subscription.flow(found, permits)
    return found, sink


async def some_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_read_for_one_that_has_gone_moves_nothing_for_the_next() -> None:
    async def scenario(topic: FakeTopic) -> None:
        """The read finds that nothing was kept, and would continue after the horizon."""
        subscription = await topic.subscribe()
        unlike: Any = topic
        compaction = unlike.compaction = SlowCompaction(topic)
        await compaction.keep(await topic.publish(6), [])
        first, sink = await consumer(subscription, read_compacted=True)
        await some_turns()
        assert compaction.opened == 1
        subscription.remove_consumer(first)
        _, second = await consumer(subscription, read_compacted=False, permits=2)
        await some_turns()
        compaction.open.set()
        await topic.settled()
        subscription.flow(subscription.consumers[0], 100)
        await topic.settled()
        assert (sink.entry_ids, second.entry_ids) == ([], [0, 1, 2, 3, 4, 5])

    with_topic(scenario)


def test_permits_bound_what_is_delivered_and_the_log_follows_the_horizon() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        compaction = await compacted(topic)
        compaction.open.set()
        reader, sink = await consumer(subscription, read_compacted=True, permits=1)
        await topic.settled()
        assert sink.take() == [0]
        subscription.flow(reader, 1)
        await topic.settled()
        assert sink.take() == [2]
        await topic.publish(2)
        subscription.flow(reader, 100)
        await topic.settled()
        await topic.settled()
        assert sink.take() == [4, 6, 7]

    with_topic(scenario)


def test_what_is_acknowledged_is_left_out_and_redelivery_begins_behind_the_mark() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        compaction = await compacted(topic)
        compaction.open.set()
        reader, sink = await consumer(subscription, read_compacted=True)
        await topic.settled()
        assert sink.take() == [0, 2, 4]
        subscription.acknowledge(reader, [Position(0, 2)])
        subscription.redeliver(reader, None)
        await topic.settled()
        assert sink.take() == [0, 4]
        subscription.acknowledge_cumulative(reader, Position(0, 1))
        subscription.redeliver(reader, None)
        await topic.settled()
        assert sink.take() == [4]
        await subscription.seek(EARLIEST)
        _, again = await consumer(subscription, read_compacted=True)
        await topic.settled()
        assert again.take() == [0, 2, 4]

    with_topic(scenario)


def test_what_an_abort_gives_back_comes_again_in_its_order() -> None:
    async def scenario(topic: FakeTopic) -> None:
        """Calls the dispatcher as an aborted transaction does."""
        subscription = await topic.subscribe()
        compaction = await compacted(topic)
        compaction.open.set()
        _, sink = await consumer(subscription, read_compacted=True)
        await topic.settled()
        assert sink.take() == [0, 2, 4]
        dispatcher: Any = subscription.dispatch.dispatcher
        dispatcher.restore([Position(0, 2)])
        await topic.changed()
        assert sink.take() == [0, 2, 4]

    with_topic(scenario)


@pytest.mark.parametrize("cumulatively", [True, False])
def test_damage_in_the_compacted_log_is_told_once_what_precedes_it_is_acknowledged(
    cumulatively: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compaction left out is never acknowledged singly."""
    monkeypatch.setattr(consumer_dispatch, "_LOOK_AT_DAMAGE_S", 0)

    async def scenario(topic: FakeTopic) -> None:
        reads = list[Position]()

        async def damaged_read(log: CompactedLog, at: Position) -> tuple[list[Kept], Position]:
            reads.append(at)
            if at.entry_id < 2:
                found, _ = await read(log, at)
                return found[:2], Position(at.ledger_id, 2)
            raise DamagedEntries(at.ledger_id, 2, 2, "bad checksum")

        read = CompactedLog.read
        monkeypatch.setattr(CompactedLog, "read", damaged_read)
        subscription = await topic.subscribe()
        (await compacted(topic)).open.set()
        found, sink = await consumer(subscription, read_compacted=True)
        for _ in range(5):
            subscription.flow(found, 1)
            await topic.settled()
        assert (sink.entry_ids, sink.closed) == ([0, 2], [])
        assert len(reads) == 2  # what is damaged is read once
        for received in sink.received:
            assert sink.closed == []
            if cumulatively:
                subscription.acknowledge_cumulative(found, received.position)
            else:
                subscription.acknowledge(found, [received.position])
            await topic.settled()
        assert "entries 2 to 2" in sink.closed[0]
        assert "resetcursor" not in sink.closed[0]  # the positions are those of another log
        with pytest.raises(PersistenceError, match="without readCompacted"):
            await consumer(subscription, read_compacted=True)
        _, plain = await consumer(subscription, read_compacted=False)
        await topic.settled()
        assert plain.entry_ids[-2:] == [4, 5]

    with_topic(scenario)
