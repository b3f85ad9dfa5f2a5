"""What clients were given, and other clients' transactions have acknowledged."""

from unittest.mock import patch

import pytest
from dispatch_fakes import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, FakeTopic, with_topic
from test_dispatch_cumulative import left
from test_dispatch_transactions import ABORT, COMMIT, T1, T2, acknowledge, end

from managed_ledger.errors import StorageFull
from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import ConsumerAssignError, PersistenceError, TransactionConflict
from pybroker.base.names import TxnId
from pybroker.broker.dispatch import lives
from pybroker.broker.dispatch.lives import Lives
from pybroker.broker.subscriptions.consumer import Consumer, KeySharedMode, KeySharedPolicy
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.snapshot_log import Done


async def _acknowledge_up_to(
    subscription: Subscription, consumer: Consumer, txn_id: TxnId, position: Position
) -> None:
    acks = [PendingAck(position)]
    await subscription.acknowledge_in_transaction(consumer, txn_id, acks, cumulative=True)


async def _is_refused(subscription: Subscription, consumer: Consumer, up_to: Position) -> None:
    with pytest.raises(TransactionConflict, match="ask for redelivery"):
        await _acknowledge_up_to(subscription, consumer, T2, up_to)


async def _take(
    subscription: Subscription, consumer: Consumer, txn_id: TxnId, position: Position
) -> None:
    acks = [PendingAck(position)]
    await subscription.acknowledge_in_transaction(consumer, txn_id, acks, cumulative=False)


async def _one_after_the_other(
    topic: FakeTopic,
) -> tuple[Subscription, Consumer, Consumer, list[Position]]:
    """Five entries, given to a first consumer and then to the active one, which precedes it."""
    subscription = await topic.subscribe()
    first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
    positions = await topic.publish(5)
    active, _ = await topic.consumer(subscription, FAILOVER, 100, name="a")
    return subscription, first, active, positions


@pytest.mark.parametrize("cumulative", [True, False])
@pytest.mark.parametrize("name", ["c", ""])  # a client need not name its consumer
def test_a_client_that_returns_is_refused_what_was_consumed_meanwhile(
    cumulative: bool, name: str
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, FAILOVER, 100, name=name)
        positions = await topic.publish(5)
        subscription.remove_consumer(consumer)
        await topic.consumer(subscription, FAILOVER, 100, name="other")
        await acknowledge(subscription, T1, positions[2], cumulative=cumulative)
        await end(subscription, T1, COMMIT)
        consumer, _ = await topic.consumer(subscription, FAILOVER, 100, name=name)
        await _is_refused(subscription, consumer, positions[4])
        subscription.redeliver(consumer, None)
        await _acknowledge_up_to(subscription, consumer, T2, positions[4])

    with_topic(scenario)


def test_a_client_that_has_closed_its_consumer_is_forgotten() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, FAILOVER, 100)
        positions = await topic.publish(5)
        consumer.closed_by_client = True
        subscription.remove_consumer(consumer)
        await topic.consumer(subscription, FAILOVER, 100, name="other")
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        await end(subscription, T1, COMMIT)
        consumer, _ = await topic.consumer(subscription, FAILOVER, 100)
        await _acknowledge_up_to(subscription, consumer, T2, positions[4])

    with_topic(scenario)


def test_what_a_client_holds_itself_does_not_hinder_it_after_it_has_returned() -> None:
    """It was given nothing again before its transaction committed."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        subscription.remove_consumer(consumer)
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE)
        await end(subscription, T1, COMMIT)
        subscription.flow(consumer, 100)
        await topic.settled()
        await _acknowledge_up_to(subscription, consumer, T2, positions[4])

    with_topic(scenario)


def test_a_client_that_was_given_nothing_yet_is_not_refused() -> None:
    """Hidden entries, which reading passes over, are nothing that it was given."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2], cumulative=True)
        await topic.hide(positions[:1])
        subscription.remove_consumer(consumer)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, name="other")
        await end(subscription, T1, COMMIT)
        assert sink.take() == []
        await _acknowledge_up_to(subscription, consumer, T2, positions[4])

    with_topic(scenario)


def test_an_aborted_transaction_has_consumed_nothing() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, first, active, positions = await _one_after_the_other(topic)
        acks = [PendingAck(positions[2])]
        await subscription.acknowledge_in_transaction(first, T1, acks, cumulative=False)
        await _is_refused(subscription, active, positions[4])
        await end(subscription, T1, ABORT)
        assert active.life is not None and not active.life.taints

    with_topic(scenario)


def test_a_transaction_consumes_nothing_that_was_acknowledged_before_its_commit() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, first, active, positions = await _one_after_the_other(topic)
        await _acknowledge_up_to(subscription, first, T1, positions[1])
        subscription.acknowledge_cumulative(active, positions[2])
        await end(subscription, T1, COMMIT)
        await _acknowledge_up_to(subscription, active, T2, positions[4])

    with_topic(scenario)


def test_two_clients_may_act_in_one_transaction() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, first, active, positions = await _one_after_the_other(topic)
        acks = [PendingAck(positions[2])]
        await subscription.acknowledge_in_transaction(first, T1, acks, cumulative=False)
        await _acknowledge_up_to(subscription, active, T1, positions[4])
        await end(subscription, T1, COMMIT)
        assert active.life is not None and not active.life.taints

    with_topic(scenario)


def test_a_batch_that_others_consumed_in_part_is_not_acknowledged_as_a_whole() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
        (batch,) = await topic.publish(1, batch=4)
        active, _ = await topic.consumer(subscription, FAILOVER, 100, name="a")
        acks = [PendingAck(batch, 0b1110, 4)]
        await subscription.acknowledge_in_transaction(first, T1, acks, cumulative=False)
        await end(subscription, T1, COMMIT)
        whole, rest = [PendingAck(batch)], [PendingAck(batch, 0b0001, 4)]
        with pytest.raises(TransactionConflict, match="ask for redelivery"):
            await subscription.acknowledge_in_transaction(active, T2, whole, cumulative=False)
        await subscription.acknowledge_in_transaction(active, T2, rest, cumulative=False)

    with_topic(scenario)


def test_an_acknowledgement_of_nothing_takes_nothing() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
        await topic.publish(5)
        active, _ = await topic.consumer(subscription, FAILOVER, 100, name="a")
        await subscription.acknowledge_in_transaction(first, T1, [], cumulative=False)
        assert active.life is not None and not active.life.taints

    with_topic(scenario)


def test_a_seek_forgets_who_was_given_what() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await subscription.seek(positions[0])
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert consumer.life is not None
        assert consumer.life.before == EARLIEST

    with_topic(scenario)


def test_few_clients_are_remembered_and_none_whose_messages_are_all_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lives, "MOST_GONE", 2)
    first, end = Position(0, 0), Position(0, 5)
    now = [first]
    known = Lives(lambda: end, lambda: now[0])
    for name in ("a", "b", "c"):
        life = known.arrive(name, 1, 0, None)
        known.begin(life)
        known.begin(None)
        known.leave(life, closed=False)
    returned = [known.arrive(name, 1, 1, None) for name in ("a", "b")]
    assert [each.before for each in returned] == [EARLIEST, end]
    now[0] = end
    known.arrive("d", 1, 0, None)
    assert known.arrive("c", 1, 1, None).before == EARLIEST


@pytest.mark.parametrize("in_a_transaction", [True, False])
def test_what_came_late_while_a_client_was_away_is_not_covered_by_what_it_had_before(
    in_a_transaction: bool,
) -> None:
    """It acknowledges what it was given before its connection broke."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2])
        subscription.remove_consumer(consumer)
        await end(subscription, T1, ABORT)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, 100)
        assert sink.take() == [0, 1, 2, 3, 4]
        if not in_a_transaction:
            subscription.acknowledge_cumulative(consumer, positions[4])
            assert left(subscription, *positions) == [2]
            return
        await _is_refused(subscription, consumer, positions[4])
        subscription.redeliver(consumer, None)
        await topic.settled()
        await _acknowledge_up_to(subscription, consumer, T2, positions[4])
        await end(subscription, T2, COMMIT)
        assert left(subscription, *positions) == []

    with_topic(scenario)


def test_what_came_late_to_a_consumer_that_is_not_active_any_more_is_not_spared_silently() -> None:
    """It may have processed the late message, too, which would be delivered again."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, sink = await topic.consumer(subscription, FAILOVER, 100, name="b")
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2])
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take()[-1] == 2
        await topic.consumer(subscription, FAILOVER, name="a")
        await _is_refused(subscription, first, positions[4])
        subscription.redeliver(first, None)
        await _acknowledge_up_to(subscription, first, T2, positions[4])

    with_topic(scenario)


def test_what_a_consumer_was_given_before_another_one_held_it_is_not_spared_after_an_abort() -> (
    None
):
    """It has processed the message, which would be delivered again."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        first, _ = await topic.consumer(subscription, FAILOVER, 100, name="b")
        positions = await topic.publish(5)
        active, sink = await topic.consumer(subscription, FAILOVER, 100, name="a")
        acks = [PendingAck(positions[2])]
        await subscription.acknowledge_in_transaction(first, T1, acks, cumulative=False)
        positions += await topic.publish(1)
        await end(subscription, T1, ABORT)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3, 4, 5, 2]
        await _is_refused(subscription, active, positions[4])
        await _is_refused(subscription, active, positions[5])
        subscription.redeliver(active, None)
        await topic.settled()
        await _acknowledge_up_to(subscription, active, T2, positions[5])

    with_topic(scenario)


@pytest.mark.parametrize("permits", [0, 2])
def test_what_a_client_holds_before_it_is_given_it_again_is_not_consumed_twice(
    permits: int,
) -> None:
    """It reconnects, and acknowledges at once what it had received before."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        subscription.remove_consumer(consumer)
        consumer, sink = await topic.consumer(subscription, EXCLUSIVE, permits)
        await _acknowledge_up_to(subscription, consumer, T1, positions[2])
        subscription.flow(consumer, 100)
        await topic.settled()
        assert sink.take() == [0, 1, 2, 3, 4]
        await end(subscription, T1, COMMIT)
        await _is_refused(subscription, consumer, positions[4])

    with_topic(scenario)


def test_a_client_may_return_before_its_connection_is_known_to_be_dead() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, _, active, positions = await _one_after_the_other(topic)
        again, _ = await topic.consumer(subscription, FAILOVER, 100, name="b", request_id=1)
        await _acknowledge_up_to(subscription, active, T1, positions[2])
        await end(subscription, T1, COMMIT)
        await _is_refused(subscription, again, positions[4])

    with_topic(scenario)


def test_a_client_that_left_a_dead_connection_behind_returns_once() -> None:
    """What it was given over both connections is remembered together, and then forgotten."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        dead, _ = await topic.consumer(subscription, FAILOVER, 100)
        again, _ = await topic.consumer(subscription, FAILOVER, 100, request_id=1)
        positions = await topic.publish(5)
        subscription.remove_consumer(dead)
        await topic.settled()
        await _acknowledge_up_to(subscription, again, T1, positions[2])
        subscription.remove_consumer(again)
        again, _ = await topic.consumer(subscription, FAILOVER, request_id=2)
        await end(subscription, T1, COMMIT)
        await _is_refused(subscription, again, positions[4])  # it was given them over both
        subscription.redeliver(again, None)
        await _acknowledge_up_to(subscription, again, T2, positions[4])

    with_topic(scenario)


@pytest.mark.parametrize("cumulative", [True, False])
def test_what_others_take_further_in_a_clients_own_transaction_is_consumed(
    cumulative: bool,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, first, active, positions = await _one_after_the_other(topic)
        await _acknowledge_up_to(subscription, first, T1, positions[1])
        further = _acknowledge_up_to if cumulative else _take
        await further(subscription, active, T1, positions[3])
        await end(subscription, T1, COMMIT)
        await _is_refused(subscription, first, positions[4])

    with_topic(scenario)


def test_what_consumers_of_another_type_consume_meanwhile_is_consumed_once() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        subscription.remove_consumer(consumer)
        other, _ = await topic.consumer(subscription, SHARED, 100, name="other")
        await _take(subscription, other, T1, positions[2])
        await end(subscription, T1, COMMIT)
        subscription.remove_consumer(other)
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        await _is_refused(subscription, consumer, positions[4])

    with_topic(scenario)


def test_a_consumer_of_another_type_that_is_not_admitted_changes_nothing() -> None:
    """The abort's message came late, and the client acknowledges what it had before."""

    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2])
        subscription.remove_consumer(consumer)
        await end(subscription, T1, ABORT)
        unusable = KeySharedPolicy(KeySharedMode.STICKY, ((5, 3),))
        with pytest.raises(ConsumerAssignError):
            await topic.consumer(subscription, KEY_SHARED, name="other", key_shared=unusable)
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [2]

    with_topic(scenario)


def test_what_a_consumer_was_given_twice_is_acknowledged_by_what_it_was_given_once() -> None:
    """Before another one took it, and again after the abort."""

    async def scenario(topic: FakeTopic) -> None:
        subscription, first, active, positions = await _one_after_the_other(topic)
        await _take(subscription, first, T1, positions[2])
        await end(subscription, T1, ABORT)
        await topic.settled()
        positions += await topic.publish(1)
        await _is_refused(subscription, active, positions[4])  # before or after the late message
        await _acknowledge_up_to(subscription, active, T2, positions[5])

    with_topic(scenario)


def test_what_could_not_be_written_hinders_no_other_client() -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription, first, active, positions = await _one_after_the_other(topic)
        pending = await subscription._transactional.open()
        written: list[Done] = []
        with patch.object(pending._store, "append", lambda record, done: written.append(done)):
            acks = [PendingAck(positions[2])]
            taking = subscription.acknowledge_in_transaction(first, T1, acks, cumulative=False)
        for done in written:
            done(StorageFull("no space left"))
        with pytest.raises(PersistenceError):
            await taking
        assert active.life is not None and not active.life.taints

    with_topic(scenario)


@pytest.mark.parametrize("aborted", ["before", "beside"])  # consumers of another type
def test_what_consumers_of_another_type_are_given_late_is_not_covered_by_a_client_that_returns(
    aborted: str,
) -> None:
    async def scenario(topic: FakeTopic) -> None:
        subscription = await topic.subscribe()
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        positions = await topic.publish(5)
        await acknowledge(subscription, T1, positions[2])
        subscription.remove_consumer(consumer)
        if aborted == "before":
            await end(subscription, T1, ABORT)
        other, _ = await topic.consumer(subscription, SHARED, 100, name="other")
        if aborted == "beside":
            await end(subscription, T1, ABORT)
        subscription.remove_consumer(other)
        consumer, _ = await topic.consumer(subscription, EXCLUSIVE, 100)
        subscription.acknowledge_cumulative(consumer, positions[4])
        assert left(subscription, *positions) == [2]

    with_topic(scenario)
