"""Which client an acknowledgement comes from: the lives of consumers, also across unloads."""

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, FakeTopic, given_back, with_topic
from test_dispatch_cumulative import left
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, end

from managed_ledger.position import Position
from pybroker.base.errors import TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.dispatch.lives import Lives
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.life_log import LifeLog
from pybroker.transaction.pending_acks.records import AckRecord, LifeRecord, PendingAck

T3 = TxnId(0, 3)


async def take(
    subscription: Subscription,
    consumer: Consumer,
    txn_id: TxnId,
    position: Position,
    *,
    cumulative: bool = True,
    unacked: int | None = None,
    size: int = 0,
) -> None:
    acks = [PendingAck(position, unacked, size)]
    await subscription.acknowledge_in_transaction(consumer, txn_id, acks, cumulative=cumulative)


async def refused(
    subscription: Subscription, consumer: Consumer, txn_id: TxnId, position: Position
) -> None:
    with pytest.raises(TransactionConflict, match="abort, ask for redelivery"):
        await take(subscription, consumer, txn_id, position)


def test_a_new_process_is_not_refused_what_its_predecessor_would_be() -> None:
    """Whatever its name: its requests are numbered from elsewhere."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        dead, _ = await topic.consumer(subscription, FAILOVER, 100, request_id=5)
        positions = await topic.publish(5)
        subscription.remove_consumer(dead)
        other, _ = await topic.consumer(subscription, FAILOVER, 100, name="other")
        await take(subscription, other, T1, positions[2])
        await end(subscription, T1, COMMIT)
        returned, _ = await topic.consumer(subscription, FAILOVER, 100, request_id=6)
        await refused(subscription, returned, T2, positions[4])
        subscription.remove_consumer(returned)
        new, _ = await topic.consumer(subscription, FAILOVER, 100, request_id=2)
        await take(subscription, new, T2, positions[4])

    with_topic(scenario)


def test_what_a_client_has_acknowledged_it_may_have_again_over_a_new_connection() -> None:
    """In the same transaction, and in the next one."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await take(subscription, consumer, T1, positions[0])
        subscription.remove_consumer(consumer)
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        await refused(subscription, consumer, T1, positions[1])
        await end(subscription, T1, COMMIT)
        await refused(subscription, consumer, T2, positions[1])
        subscription.redeliver(consumer, None)
        await take(subscription, consumer, T2, positions[1])

    with_topic(scenario)


def test_an_unload_between_acknowledgement_and_commit_puts_nothing_in_doubt() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await take(subscription, consumer, T1, positions[0])
        for _ in range(2):  # read from records, and from a snapshot
            await subscription.close()
            subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE)
        await end(subscription, T1, COMMIT)
        subscription.flow(consumer, 100)
        await topic.settled()
        await take(subscription, consumer, T2, positions[1])

    with_topic(scenario)


def test_what_came_again_before_an_unload_is_in_doubt_once_it_is_committed() -> None:
    """It was consumed a second time: the client may acknowledge what it had received again."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await take(subscription, consumer, T1, positions[0])
        subscription.remove_consumer(consumer)
        await topic.consumer(subscription, EXCLUSIVE, 100)
        await subscription.close()
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE)
        await end(subscription, T1, COMMIT)
        subscription.flow(consumer, 100)
        await topic.settled()
        await refused(subscription, consumer, T2, positions[1])
        subscription.redeliver(consumer, None)
        await take(subscription, consumer, T2, positions[1])

    with_topic(scenario)


def test_an_orderly_unload_is_like_a_reconnect() -> None:
    """What a client was given once before is not taken for given twice."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await take(subscription, consumer, T1, positions[0])
        await end(subscription, T1, COMMIT)
        await subscription.close()
        more = await topic.publish(2)
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        await take(subscription, consumer, T2, more[0])
        await end(subscription, T2, COMMIT)
        await take(subscription, consumer, T3, more[1])

    with_topic(scenario)


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("request_id", [7, 8])
def test_a_crash_forgets_whether_what_was_held_had_come_twice_unless_nobody_came_since(
    returns: bool, request_id: int
) -> None:
    log, known = LifeLog(None, lambda: None), LifeRecord(1, "c", 1, 7, epoch=0)  # type: ignore[arg-type]
    log.replay(known)
    log.came_since = False  # as by a cumulative acknowledgement
    tainted = LifeRecord(1, "c", 1, 7, ((T1, (Position(0, 0), 0)),), epoch=0)
    log.replay(LifeRecord(1, "c", 1, request_id, epoch=0) if returns else tainted)
    assert log.came_since is returns
    lives = Lives(lambda: Position(0, 5), lambda: Position(0, 0))
    lives.restore([known], Position(0, 5), Position(0, 0))
    hold = AckRecord(T1, True, [PendingAck(Position(0, 2))], life=1, is_clear=True)
    lives.restore_hold(hold, log.came_since)
    lives.commits(hold, lambda _: 0)
    (life,) = lives
    assert bool(life.taints) is returns


def test_what_others_have_taken_of_what_a_client_was_given_is_known_after_an_unload() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
        positions = await topic.publish(5)
        active, _ = await topic.consumer(subscription, FAILOVER, 100, name="a")
        await take(subscription, active, T1, positions[1])
        await take(subscription, active, T2, positions[3], cumulative=False)
        await end(subscription, T1, COMMIT)
        await subscription.close()
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
        await refused(subscription, first, T3, positions[2])
        subscription.redeliver(first, None)
        await topic.settled()
        await take(subscription, first, T3, positions[2])
        await end(subscription, T2, ABORT)

    with_topic(scenario)


def test_after_an_unload_a_new_process_covers_what_an_abort_gave_back_before() -> None:
    """Each new one spared it again: it was consumed by several transactions."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await take(subscription, first, T1, positions[1], cumulative=False)
        await take(subscription, first, T2, positions[3])
        await end(subscription, T2, COMMIT)
        await end(subscription, T1, ABORT)
        await subscription.close()
        subscription = await topic.subscribe()
        new, sink = await topic.consumer(subscription, EXCLUSIVE, 100, name="new")
        assert sink.take() == [1, 4]
        await take(subscription, new, T3, positions[4])
        await end(subscription, T3, COMMIT)
        assert left(subscription, *positions) == []

    with_topic(scenario)


def test_of_a_batch_only_what_was_given_back_comes_late_and_is_in_doubt() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        (batch,) = await topic.publish(1, batch=8)
        await take(subscription, consumer, T1, batch, cumulative=False, unacked=0b11011111, size=8)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert [each.unacked for each in sink.received] == [None, (0b00100000, 8)]
        await take(subscription, consumer, T2, batch, unacked=0b11110000, size=8)
        await end(subscription, T2, COMMIT)
        with pytest.raises(TransactionConflict, match=r"messages 0 to 6 of batch .* redelivered"):
            await take(subscription, consumer, T3, batch, unacked=0b10000000, size=8)
        await take(subscription, consumer, T3, batch, unacked=0b11100000, size=8)

    with_topic(scenario)


def test_a_request_for_redelivery_without_a_new_epoch_forgets_nothing() -> None:
    """The client may go on receiving what is on its way."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        subscription.redeliver(consumer, None, drops=False)
        await topic.settled()
        await take(subscription, consumer, T1, positions[0])
        await end(subscription, T1, COMMIT)
        await refused(subscription, consumer, T2, positions[2])
        assert [consumer.begins_epoch(epoch) for epoch in (0, 0, 2, 1, 3)] == [1, 0, 1, 0, 1]

    with_topic(scenario)


def test_what_was_given_back_is_forgotten_once_no_client_may_have_it_from_before() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(3)
        await take(subscription, consumer, T1, positions[1], cumulative=False)
        await end(subscription, T1, ABORT)
        assert given_back(subscription)
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert not given_back(subscription)
        await take(subscription, consumer, T2, positions[2])
        await end(subscription, T2, COMMIT)
        assert subscription.backlog == 0

    with_topic(scenario)
