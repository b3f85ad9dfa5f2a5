"""Messages delivered late after an abort, and acknowledgements of a part of them."""

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, FakeTopic, RecordingSink, given_back, with_topic
from test_dispatch_cumulative import left, successor
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, acknowledge, end

from managed_ledger.position import Position
from pybroker.base.errors import TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.records import PendingAck


async def late_batch(
    topic: FakeTopic, held: int | None
) -> tuple[Subscription, Consumer, list[Position]]:
    """Three batches of four. All were acknowledged, and then the second came late: the messages in
    the bit set `held`, or all of it if None.
    """
    subscription = await topic.subscribe()
    consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
    positions = await topic.publish(3, batch=4)
    acks = [PendingAck(positions[1], None if held is None else 0b1111 & ~held, 4)]
    await subscription.acknowledge_in_transaction(consumer, T1, acks, cumulative=False)
    consumer, sink = await successor(topic, subscription)
    subscription.acknowledge_cumulative(consumer, positions[2])
    await end(subscription, T1, ABORT)
    await topic.settled()
    assert sink.take()[-1] == 1
    return subscription, consumer, positions


@pytest.mark.parametrize(
    ("held", "first", "second"), [(None, 0b1110, 0b1100), (0b1001, 0b1000, 0b1000)]
)
def test_of_a_batch_that_came_late_only_what_is_acknowledged_is_settled(
    held: int | None, first: int, second: int
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_batch(topic, held)
        subscription.acknowledge_cumulative(consumer, positions[1], 0b1110, 4)
        assert subscription.cursor.unacked_indexes(positions[1]) == first
        subscription.acknowledge_cumulative(consumer, positions[1], 0b1100, 4)
        assert subscription.cursor.unacked_indexes(positions[1]) == second
        (last,) = await topic.publish(1)
        subscription.acknowledge_cumulative(consumer, last)
        assert subscription.backlog == 0
        assert not given_back(subscription)

    with_topic(scenario)


def test_in_order_again_too_only_what_is_acknowledged_of_a_batch_is_settled() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_batch(topic, 0b1001)
        subscription.redeliver(consumer, None)
        await topic.settled()
        subscription.acknowledge_cumulative(consumer, positions[1], 0b1000, 4)
        assert subscription.cursor.unacked_indexes(positions[1]) == 0b1000

    with_topic(scenario)


def test_a_transaction_names_no_message_before_which_others_of_its_batch_came_late() -> None:
    """It is unknown whether the acknowledgement includes the late message. If the broker spared
    that message, its effects might be committed and the message delivered again.
    """

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        (batch,) = await topic.publish(1, batch=3)
        acks = [PendingAck(batch, 0b110, 3)]
        await subscription.acknowledge_in_transaction(consumer, T1, acks, cumulative=False)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0, 0]
        up_to_the_second = [PendingAck(batch, 0b100, 3)]
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await subscription.acknowledge_in_transaction(
                consumer, T2, up_to_the_second, cumulative=True
            )
        subscription.redeliver(consumer, None)
        await topic.settled()
        await subscription.acknowledge_in_transaction(
            consumer, T2, up_to_the_second, cumulative=True
        )
        await end(subscription, T2, COMMIT)
        assert subscription.cursor.unacked_indexes(batch) == 0b100

    with_topic(scenario)


def test_of_a_batch_that_came_late_what_is_held_again_is_spared() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_batch(topic, None)
        acks = [PendingAck(positions[1], 0b1110, 4)]
        await subscription.acknowledge_in_transaction(consumer, T2, acks, cumulative=False)
        subscription.acknowledge_cumulative(consumer, positions[1])
        assert subscription.cursor.unacked_indexes(positions[1]) == 0b0001
        await end(subscription, T2, ABORT)
        await topic.settled()
        subscription.acknowledge_cumulative(consumer, positions[1])
        assert subscription.backlog == 0

    with_topic(scenario)


async def late_behind_an_acknowledgement(
    topic: FakeTopic,
) -> tuple[Subscription, Consumer, list[Position]]:
    """T1 held 1 of three messages. All three were acknowledged, then 1 came late, then another
    message came.
    """
    subscription = await topic.subscribe()
    await topic.consumer(subscription, EXCLUSIVE, 100, name="of the transaction")
    positions = await topic.publish(3)
    await acknowledge(subscription, T1, positions[1])
    subscription.remove_consumer(subscription.consumers[0])
    consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
    subscription.acknowledge_cumulative(consumer, positions[2])
    await end(subscription, T1, ABORT)
    await topic.settled()
    positions += await topic.publish(2)
    assert sink.take() == [0, 2, 1, 3, 4]
    return subscription, consumer, positions


def test_what_came_behind_a_clients_own_acknowledgement_is_not_covered_by_its_next_one() -> None:
    """The Java client and others silently drop such messages as long as the consumer lives."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_behind_an_acknowledgement(topic)
        subscription.acknowledge_cumulative(consumer, positions[3])
        assert left(subscription, *positions) == [1, 4]
        subscription.redeliver(consumer, None)
        await topic.settled()
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [1]
        assert subscription.backlog == 1
        subscription.remove_consumer(consumer)  # its connection broke; the client still drops 1
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
        (last,) = await topic.publish(1)
        assert sink.take() == [1, 5]
        subscription.acknowledge_cumulative(consumer, last)
        assert left(subscription, *positions, last) == [1]

    with_topic(scenario)


def test_what_may_have_been_dropped_is_covered_by_a_client_that_was_given_it_first() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_behind_an_acknowledgement(topic)
        subscription.remove_consumer(consumer)
        other, _ = await topic.consumer(subscription, EXCLUSIVE, 100, name="another")
        subscription.acknowledge_cumulative(other, positions[4])
        assert subscription.backlog == 0
        assert not given_back(subscription)

    with_topic(scenario)


def test_a_consumer_that_its_client_closed_comes_back_without_a_memory() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_behind_an_acknowledgement(topic)
        consumer.closed_by_client = True
        subscription.remove_consumer(consumer)
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert subscription.backlog == 0

    with_topic(scenario)


@pytest.mark.parametrize("singly", [True, False])
def test_what_may_have_been_dropped_is_covered_by_name(singly: bool) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_behind_an_acknowledgement(topic)
        if singly:
            subscription.acknowledge(consumer, [positions[1]])
        else:
            subscription.acknowledge_cumulative(consumer, positions[1])
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert subscription.backlog == 0
        assert not given_back(subscription)

    with_topic(scenario)


def test_a_transaction_keeps_a_late_message_that_it_named_when_it_acknowledges_further() -> None:
    """What it acknowledges then was given before the late message."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[1])
        subscription.redeliver(consumer, None)
        await topic.settled()
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take()[-1] == 1
        await acknowledge(subscription, T2, positions[1], cumulative=True)
        await acknowledge(subscription, T2, positions[2], cumulative=True)
        await end(subscription, T2, COMMIT)
        assert left(subscription, *positions) == [3]

    with_topic(scenario)


def test_who_acknowledges_less_far_than_before_has_dropped_nothing() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, consumer, positions = await late_behind_an_acknowledgement(topic)
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [1]
        subscription.acknowledge_cumulative(consumer, positions[3])
        assert subscription.backlog == 0

    with_topic(scenario)


def test_a_transaction_is_told_to_name_what_its_client_may_have_dropped() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _, positions = await late_behind_an_acknowledgement(topic)
        with pytest.raises(TransactionConflict, match="acknowledge it individually"):
            await acknowledge(subscription, T2, positions[4], cumulative=True)
        await acknowledge(subscription, T2, positions[1])
        await acknowledge(subscription, T2, positions[4], cumulative=True)
        await end(subscription, T2, COMMIT)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_after_an_unload_no_client_is_assumed_to_have_forgotten_its_acknowledgements() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _, positions = await late_behind_an_acknowledgement(topic)
        await subscription.close()
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
        assert sink.take() == [1, 3, 4]
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [1]

    with_topic(scenario)


def test_after_an_unload_what_may_have_been_dropped_is_spared_until_it_is_acknowledged() -> None:
    """Its client asks for redelivery, drops it, and acknowledges further than it had dropped."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, _, positions = await late_behind_an_acknowledgement(topic)
        await subscription.close()
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
        subscription.redeliver(consumer, None)
        await topic.settled()
        with pytest.raises(TransactionConflict, match="acknowledge it individually"):
            await acknowledge(subscription, T2, positions[4], cumulative=True)
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [1]
        subscription.acknowledge_cumulative(consumer, positions[1])
        assert subscription.backlog == 0

    with_topic(scenario)


def test_after_an_unload_who_only_transacts_is_not_suspected_of_having_dropped_anything() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[1])
        await acknowledge(subscription, T2, positions[0])
        await end(subscription, T2, COMMIT)
        subscription.acknowledge(consumer, positions[2:4])
        await end(subscription, T1, ABORT)
        await subscription.close()
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100, name="c")
        subscription.redeliver(consumer, None)
        await topic.settled()
        assert sink.take()[-2:] == [1, 4]
        await acknowledge(subscription, T2, positions[4], cumulative=True)
        await end(subscription, T2, COMMIT)
        assert subscription.backlog == 0

    with_topic(scenario)


def test_of_several_clients_without_names_one_that_leaves_takes_no_memory_away() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, FAILOVER, 100, name="")
        other, _ = await topic.consumer(subscription, FAILOVER, 100, name="")
        positions = await topic.publish(3)
        await acknowledge(subscription, T1, positions[1])
        subscription.redeliver(consumer, None)
        await topic.settled()
        subscription.acknowledge_cumulative(consumer, positions[2])
        subscription.acknowledge_cumulative(other, positions[0])
        other.closed_by_client = True
        subscription.remove_consumer(other)
        await end(subscription, T1, ABORT)
        await topic.settled()
        positions += await topic.publish(1)
        assert sink.take()[-2:] == [1, 3]
        subscription.acknowledge_cumulative(consumer, positions[3])
        assert left(subscription, *positions) == [1]  # the client may have dropped 1

    with_topic(scenario)


async def flipped(topic: FakeTopic) -> tuple[Subscription, Consumer, Consumer, RecordingSink]:
    """`first` was given 0, 2 and 3, and acknowledged 2 in a transaction. Then `second` became the
    active consumer, and the transactions that held 1 and 2 were aborted.
    """
    subscription = await topic.subscribe()
    predecessor, _ = await topic.consumer(subscription, FAILOVER, 100, name="z")
    positions = await topic.publish(4)
    await acknowledge(subscription, T1, positions[1])
    subscription.remove_consumer(predecessor)
    first, sink = await topic.consumer(subscription, FAILOVER, 100, name="b")
    assert sink.take() == [0, 2, 3]
    await acknowledge(subscription, T2, positions[2])
    second, _ = await topic.consumer(subscription, FAILOVER, 100, name="a")
    await end(subscription, T1, ABORT)
    await end(subscription, T2, ABORT)
    await topic.settled()
    return subscription, first, second, sink


@pytest.mark.parametrize("active_again", [False, True])
def test_an_earlier_active_consumer_that_names_a_late_message_covers_none_before_it(
    active_again: bool,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, first, second, sink = await flipped(topic)
        if active_again:
            subscription.remove_consumer(second)
            await topic.settled()
            assert sink.take() == [0, 1, 2, 3]
        third = TxnId(0, 3)
        late = Position(first_ledger(topic), 2)
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await subscription.acknowledge_in_transaction(
                first, third, [PendingAck(late)], cumulative=True
            )
        subscription.acknowledge_cumulative(first, late)
        everything = [Position(late.ledger_id, each) for each in range(4)]
        assert left(subscription, *everything) == [1, 3]

    with_topic(scenario)


def first_ledger(topic: FakeTopic) -> int:
    ledger_id: int = topic.ledger.first_position.ledger_id
    return ledger_id


@pytest.mark.slow
def test_what_came_late_and_was_acknowledged_singly_is_forgotten_in_time() -> None:
    """Although an earlier message is never acknowledged."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 10_000)
        _, *positions = await topic.publish(2501)
        for position in positions:
            await acknowledge(subscription, T1, position)
            await end(subscription, T1, ABORT)
            subscription.acknowledge(consumer, [position])
        assert subscription.backlog == 1
        assert given_back(subscription)
        assert len(given_back(subscription)) <= 1001

    with_topic(scenario)


@pytest.mark.parametrize("one_is_acknowledged", [True, False])
@pytest.mark.parametrize("in_a_transaction", [True, False])
def test_an_acknowledgement_from_before_an_unload_covers_nothing_that_was_held(
    one_is_acknowledged: bool, in_a_transaction: bool
) -> None:
    """A client may acknowledge after an unload messages that it received before."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(6)
        await acknowledge(subscription, T1, positions[1], positions[2])
        consumer, sink = await successor(topic, subscription)
        assert sink.take() == [0, 3, 4, 5]
        await end(subscription, T1, ABORT)
        if one_is_acknowledged:
            subscription.acknowledge(consumer, [positions[2]])
        for _ in range(2):  # the second time nothing is new
            await subscription.close()
            subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 1)
        assert sink.take() == [0]
        if in_a_transaction:
            with pytest.raises(TransactionConflict, match="ask for redelivery"):
                await acknowledge(subscription, T2, positions[4], cumulative=True)
            left_over = (each for each in positions if not subscription.cursor.is_deleted(each))
            await acknowledge(subscription, T2, *left_over)
            await end(subscription, T2, COMMIT)
            assert subscription.backlog == 0
            return
        subscription.acknowledge_cumulative(consumer, positions[4])
        late = [1] if one_is_acknowledged else [1, 2]
        assert left(subscription, *positions) == [*late, 5]
        subscription.flow(consumer, 100)
        await topic.settled()
        assert sink.take() == [*late, 5]
        subscription.acknowledge_cumulative(consumer, positions[5])
        assert left(subscription, *positions) == late  # the client may have dropped them
        subscription.acknowledge_cumulative(consumer, positions[late[-1]])
        assert subscription.backlog == 0
        assert not given_back(subscription)

    with_topic(scenario)


def test_an_abort_that_is_written_during_a_checkpoint_is_remembered_after_an_unload() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(4)
        await acknowledge(subscription, T1, positions[1])
        await successor(topic, subscription)
        pending = await subscription.replayed()
        assert pending is not None
        ending = subscription.end_transaction(T1, ABORT)
        assert ending is not None
        await pending.checkpoint()
        await ending
        await subscription.close()
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 1)
        assert sink.take() == [0]
        subscription.acknowledge_cumulative(consumer, positions[3])
        assert left(subscription, *positions) == [1]

    with_topic(scenario)


def test_a_batch_that_came_again_as_a_whole_covers_nothing_that_came_before_it() -> None:
    """Its client may mean the first delivery, before the late message had come."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        (single,) = await topic.publish(1)
        (batch,) = await topic.publish(1, batch=3)
        held = [PendingAck(single), PendingAck(batch, 0b110, 3)]
        await subscription.acknowledge_in_transaction(consumer, T1, held, cumulative=False)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert [each.position for each in sink.received] == [single, batch, single, batch]
        subscription.acknowledge_cumulative(consumer, batch)
        assert not subscription.cursor.is_deleted(single)
        subscription.acknowledge(consumer, [single])
        assert subscription.cursor.is_deleted(single)

    with_topic(scenario)
