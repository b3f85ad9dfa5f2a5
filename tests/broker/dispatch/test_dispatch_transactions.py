"""What open transactions acknowledge is withheld from all consumers, and delivered again after an
abort.
"""

import asyncio
import gc
import logging
import weakref
from unittest.mock import patch

import pytest
from dispatch_fakes import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    LEDGER,
    SHARED,
    FakeTopic,
    with_topic,
)

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import StorageFull
from managed_ledger.position import Position
from pybroker.base.errors import NotAllowed, PersistenceError, ServiceNotReady, TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.subscriptions.consumer import SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.pending_ack import PendingAck, PendingAcks
from pybroker.transaction.snapshot_log import Done
from pybroker.transaction.txn_status import TxnAction

T1, T2 = TxnId(0, 1), TxnId(0, 2)
COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
EVERY_TYPE = pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])


async def acknowledge(
    subscription: Subscription, txn_id: TxnId, *positions: Position, cumulative: bool = False
) -> None:
    acks = [PendingAck(position) for position in positions]
    consumer = subscription.consumers[0]
    await subscription.acknowledge_in_transaction(consumer, txn_id, acks, cumulative)


async def end(subscription: Subscription, txn_id: TxnId, action: TxnAction) -> None:
    ending = subscription.end_transaction(txn_id, action)
    if ending is not None:
        await ending


@EVERY_TYPE
def test_pending_messages_are_not_redelivered_until_the_abort(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, kind, 100)
        positions = await topic.publish(4)
        sink.take()
        await acknowledge(subscription, T1, positions[1], positions[2])
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take() == [0, 3]
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [1, 2]

    with_topic(scenario)


@EVERY_TYPE
def test_pending_messages_are_withheld_from_the_next_consumer(kind: SubscriptionType) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, kind, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[0])
        await acknowledge(subscription, T2, positions[1])
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, kind, 100)
        assert sink.take() == [2, 3]
        await end(subscription, T1, COMMIT)
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.take() == [1]
        assert subscription.cursor.mark_delete_position == positions[0]

    with_topic(scenario)


@EVERY_TYPE
def test_unacknowledged_messages_go_to_the_remaining_consumers(kind: SubscriptionType) -> None:
    """A consumer leaves while its acknowledgement is being written. The next consumer receives the
    message once that write has failed.
    """

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, kind, 100)
        positions = await topic.publish(3)
        await acknowledge(subscription, T1, positions[0])
        written: list[Done] = []
        assert subscription.pending_acks is not None
        store = subscription.pending_acks._store
        with patch.object(store, "append", lambda record, done: written.append(done)):
            acknowledging = asyncio.ensure_future(acknowledge(subscription, T1, positions[1]))
            await topic.settled()
        subscription.remove_consumer(consumer)
        _, sink = await topic.consumer(subscription, kind, 100)
        assert sink.take() == [2]
        written[0](StorageFull("no space left"))
        with pytest.raises(PersistenceError):
            await acknowledging
        await topic.settled()
        assert sink.take() == [1]

    with_topic(scenario)


def test_the_failure_of_an_opening_that_many_may_wait_for_keeps_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # a log record would keep the failure alive

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        with patch.object(topic.factory, "open", side_effect=StorageFull("no space left")):
            (failure,) = await asyncio.gather(
                subscription._transactional.open(), return_exceptions=True
            )
        assert isinstance(failure, PersistenceError)
        there = weakref.ref(failure)
        await topic.settled()
        del failure
        assert there() is None

    gc.disable()
    try:
        with_topic(scenario)
    finally:
        gc.enable()


def test_who_consumes_does_not_wait_for_a_log_that_there_was_no_room_to_make() -> None:
    """Consuming may free the room."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        (position,) = await topic.publish(1)
        full = StorageFull("no space left")
        with patch.object(topic.factory, "open", side_effect=full):
            with pytest.raises(PersistenceError):
                await acknowledge(subscription, T1, position)
            subscription.remove_consumer(consumer)
            _, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
            assert sink.take() == [0]
            await end(subscription, T1, ABORT)
        await acknowledge(subscription, T1, position)
        assert subscription.pending_acks is not None

    with_topic(scenario)


def test_pending_messages_are_withheld_after_a_restart() -> None:
    async def scenario(topic: FakeTopic) -> None:
        first = await topic.subscribe()
        consumer, _ = await topic.consumer(first, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await acknowledge(first, T1, positions[1])
        await first.close()
        again = await topic.subscribe()
        consumer, sink = await topic.consumer(again, EXCLUSIVE, 100)
        assert sink.take() == [0, 2]
        again.acknowledge(consumer, positions)
        await end(again, T1, COMMIT)
        assert again.backlog == 0

    with_topic(scenario)


def test_an_unload_during_the_replay_leaves_the_transaction_s_end_to_be_asked_again() -> None:
    """The replay's cancellation once cancelled the coordinator's task, too: COMMITTING forever."""

    async def scenario(topic: FakeTopic) -> None:
        first = await topic.subscribe()
        await topic.consumer(first, EXCLUSIVE, 100)
        positions = await topic.publish(2)
        await acknowledge(first, T1, positions[0])
        await first.close()
        replaying = await topic.subscribe()
        ending = asyncio.ensure_future(end(replaying, T1, COMMIT))
        await asyncio.sleep(0)
        await replaying.close()
        await topic.tasks.close()
        for refused in (ending, end(replaying, T1, COMMIT)):
            with pytest.raises(ServiceNotReady):
                await refused
        again = await topic.subscribe()
        await end(again, T1, COMMIT)
        assert again.backlog == 1

    with_topic(scenario)


def test_a_replay_that_an_unload_overtakes_comes_to_nothing() -> None:
    """The replay once ended before the topic's tasks were cancelled. Nothing closed the store that
    it had opened. That store then emptied the log, which the reloaded subscription was using.
    """

    async def scenario(topic: FakeTopic) -> None:
        first = await topic.subscribe()
        await topic.consumer(first, EXCLUSIVE, 100)
        positions = await topic.publish(2)
        await acknowledge(first, T1, positions[0])
        await first.close()
        replaying = await topic.subscribe()
        await asyncio.sleep(0)
        await replaying.close()
        await topic.settled()
        assert replaying.pending_acks is None
        again = await topic.subscribe()
        await end(again, T1, COMMIT)
        assert again.backlog == 1

    with_topic(scenario)


def test_a_plain_acknowledgement_of_a_pending_message_is_dropped() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(2)
        await acknowledge(subscription, T1, positions[0])
        sink.take()
        subscription.acknowledge(consumer, positions)
        assert subscription.backlog == 1
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0]

    with_topic(scenario)


def test_unacked_counts_go_down_at_the_acknowledgement_and_come_back_on_abort() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(3, batch=4)
        assert consumer.unacked.messages == 12
        await acknowledge(subscription, T1, positions[0])
        await subscription.acknowledge_in_transaction(
            consumer, T1, [PendingAck(positions[1], 0b0111, 4)], cumulative=False
        )
        assert consumer.unacked.messages == 7
        sink.take()
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert consumer.unacked.messages == 12
        assert [message.redelivery_count for message in sink.received] == [1, 1]

    with_topic(scenario)


def test_batch_indexes_of_two_transactions_end_apart() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        (position,) = await topic.publish(1, batch=4)
        for txn_id, still_unacked in (T1, 0b1110), (T2, 0b1101):
            await subscription.acknowledge_in_transaction(
                consumer, txn_id, [PendingAck(position, still_unacked, 4)], cumulative=False
            )
        sink.received.clear()
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert [message.unacked for message in sink.received] == [(0b1100, 4)]
        subscription.acknowledge_indexes(consumer, position, 0b1000, 4)
        await end(subscription, T1, COMMIT)
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.received[-1].unacked == (0b1010, 4)

    with_topic(scenario)


def test_a_plain_acknowledgement_of_a_batch_spares_its_pending_indexes() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, SHARED, 100)
        (position,) = await topic.publish(1, batch=4)
        await subscription.acknowledge_in_transaction(
            consumer, T1, [PendingAck(position, 0b1011, 4)], cumulative=False
        )
        subscription.acknowledge(consumer, [position])
        assert consumer.unacked.messages == 0
        sink.received.clear()
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert [message.unacked for message in sink.received] == [(0b0100, 4)]

    with_topic(scenario)


def test_a_committed_cumulative_acknowledgement_moves_the_cursor() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        await acknowledge(subscription, T2, positions[3])
        await end(subscription, T1, COMMIT)
        sink.take()
        subscription.redeliver(consumer, None)
        await end(subscription, T2, ABORT)
        await topic.settled()
        assert sink.take() == [3]

    with_topic(scenario)


def test_hidden_entries_below_a_withheld_position_stay_hidden_after_the_abort() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        topic.limit = Position(0, -1)
        positions = await topic.publish(5)
        await topic.hide(positions[1:3])
        topic.limit = None
        await topic.changed()
        await acknowledge(subscription, T1, positions[3], cumulative=True)
        subscription.remove_consumer(consumer)
        subscription.cursor.reset(positions[0])
        _, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [0, 3, 4]
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == []

    with_topic(scenario)


def test_cumulative_acknowledgement_in_a_transaction_needs_one_active_consumer() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(2)
        with pytest.raises(NotAllowed):
            await acknowledge(subscription, T1, positions[1], cumulative=True)
        other = await topic.subscribe("other")
        await topic.consumer(other, EXCLUSIVE, 100)
        with pytest.raises(NotAllowed):
            await acknowledge(other, T1, *positions, cumulative=True)

    with_topic(scenario)


def test_readers_take_no_transactional_acknowledgement() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe("reader", durable=False)
        await topic.consumer(subscription, EXCLUSIVE, 100)
        (position,) = await topic.publish(1)
        with pytest.raises(NotAllowed):
            await acknowledge(subscription, T1, position)

    with_topic(scenario)


def test_a_conflict_leaves_the_unacked_count_alone() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(2)
        await acknowledge(subscription, T1, positions[0])
        with pytest.raises(TransactionConflict):
            await acknowledge(subscription, T2, positions[1], positions[0])
        assert consumer.unacked.messages == 1

    with_topic(scenario)


def test_a_seek_does_not_deliver_what_is_pending() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, SHARED, 100)
        positions = await topic.publish(3)
        await acknowledge(subscription, T1, positions[1])
        await subscription.seek(positions[0])
        _, sink = await topic.consumer(subscription, SHARED, 100)
        assert sink.take() == [0, 2]

    with_topic(scenario)


def test_deleting_a_subscription_deletes_its_pending_acks() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, SHARED, 100)
        (position,) = await topic.publish(1)
        await acknowledge(subscription, T1, position)
        assert len(topic.factory.names()) == 2
        await subscription.delete()
        assert topic.factory.names() == [LEDGER]

    with_topic(scenario)


def test_a_commit_during_a_seek_is_in_force_after_a_crash_exactly_if_it_was_before() -> None:
    """Replay must not repeat an acknowledgement that the seek has undone."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await acknowledge(subscription, T1, positions[0])
        cursor = subscription.cursor
        flush = ManagedCursor.flush

        async def commit_meanwhile(flushed: ManagedCursor) -> None:
            if flushed is cursor:
                await end(subscription, T1, COMMIT)
            await flush(flushed)

        with patch.object(ManagedCursor, "flush", commit_meanwhile):
            await subscription.seek(positions[0])
        acknowledged = cursor.is_deleted(positions[0])
        await PendingAcks.open(topic.factory, topic.name, cursor, topic.outcomes, topic.config)
        assert cursor.is_deleted(positions[0]) == acknowledged

    with_topic(scenario)
