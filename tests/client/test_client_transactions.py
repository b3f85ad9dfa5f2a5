import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, Sent, receipt, refusal

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.client import (
    ConnectError,
    InvalidConfiguration,
    InvalidTxnStatus,
    MessageId,
    Result,
    TransactionAborted,
    TransactionConflict,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    TransactionOutcomeUnknown,
    TxnState,
    aio,
)
from pybroker.client.transactions.transaction import TXN_STATES
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata, transaction_of


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def ends(broker: ScriptedBroker) -> list[int]:
    return [end.txn_action for end in broker.asked_for(pb.CommandEndTxn)]


def test_every_state_of_a_transaction_has_its_followers():
    assert set(TXN_STATES) == set(TxnState)


def test_a_topic_joins_once_and_before_its_first_message(broker: ScriptedBroker, client: Any):
    async def work() -> Any:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        await asyncio.gather(producer.send(b"a", txn=txn), producer.send(b"b", txn=txn))
        await txn.commit()
        return txn

    txn = broker.run(work())
    assert txn.state is TxnState.COMMITTED
    (added,) = broker.asked_for(pb.CommandAddPartitionToTxn)
    assert list(added.partitions) == ["persistent://public/default/t"]
    assert [sent.txn_id for sent in broker.sent] == [txn.txn_id] * 2
    assert transaction_of(parse_metadata(broker.sent[0].entry)) == txn.txn_id
    assert ends(broker) == [pb.COMMIT]


def test_coordinators_take_turns(broker: ScriptedBroker, client: Any):
    async def work() -> list[int]:
        return [(await client.new_transaction()).txn_id.most for _ in range(4)]

    chosen = broker.run(work())
    assert sorted(chosen) == [0, 0, 1, 1]
    assert chosen[0] != chosen[1]


def test_a_broker_without_coordinators_is_named(broker: ScriptedBroker, client: Any):
    broker.answers["PartitionedTopicMetadata"] = lambda *_: (
        pb.CommandPartitionedTopicMetadataResponse(request_id=0, partitions=0)
    )
    with pytest.raises(TransactionCoordinatorNotFound, match="transactionCoordinatorEnabled"):
        broker.run(client.new_transaction())


def test_transactions_can_be_switched_off(broker: ScriptedBroker):
    async def work() -> None:
        client = aio.Client("pulsar://one:6650", enable_transaction=False)
        await client.new_transaction()

    with pytest.raises(InvalidConfiguration):
        broker.run(work())


def test_a_coordinator_that_moves_is_asked_again(broker: ScriptedBroker, client: Any):
    begin = broker.answers["NewTxn"]

    def recovering(peer: Peer, body: Any) -> Any:
        if len(broker.asked_for(pb.CommandNewTxn)) == 1:
            return pb.CommandNewTxnResponse(
                request_id=0, error=pb.TransactionCoordinatorNotFound, message="recovering"
            )
        return begin(peer, body)

    broker.answers["NewTxn"] = recovering
    broker.run(client.new_transaction())
    assert len(broker.asked_for(pb.CommandTcClientConnectRequest)) == 2


def test_messages_of_a_transaction_are_batched_apart_and_leave_before_its_end(
    broker: ScriptedBroker, client: Any
):
    async def work() -> Any:
        producer = await client.create_producer(
            "t", batching_enabled=True, batching_max_publish_delay_ms=50_000
        )
        txn = await client.new_transaction()
        for content in (b"a", b"b"):
            producer.send_async(content, txn=txn)
        producer.send_async(b"plain")
        await txn.commit()
        await producer.flush()
        assert asyncio.get_running_loop().time() < 1
        return txn.txn_id

    txn_id = broker.run(work())
    assert [sent.txn_id for sent in broker.sent] == [None, txn_id]
    assert parse_metadata(broker.sent[1].entry).num_messages_in_batch == 2


def test_a_failed_message_fails_the_commit(broker: ScriptedBroker, client: Any):
    broker.on_send = lambda peer, sent: pb.CommandSendError(
        producer_id=sent.producer_id,
        sequence_id=sent.sequence_id,
        error=pb.PersistenceError,
        message="disk full",
    )

    async def work() -> Any:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        producer.send_async(b"x", txn=txn)
        with pytest.raises(TransactionAborted, match="disk full"):
            await txn.commit()
        return txn.state

    assert broker.run(work()) is TxnState.ABORTED
    assert ends(broker) == [pb.ABORT]


def test_a_message_on_its_way_when_the_connection_breaks_fails_the_transaction(
    broker: ScriptedBroker, client: Any
):
    def silent(peer: Peer, sent: Sent) -> None:
        return None

    broker.on_send = silent

    async def work() -> None:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        sending = asyncio.create_task(producer.send(b"x", txn=txn))
        await turns(40)
        assert len(broker.sent) == 1
        broker.on_send = lambda peer, sent: receipt(sent)
        broker.peer.drop()
        with pytest.raises(ConnectError):
            await sending
        with pytest.raises(TransactionAborted):
            await txn.commit()

    broker.run(work())
    assert len(broker.sent) == 1


def test_a_topic_that_may_not_join_fails_its_messages(broker: ScriptedBroker, client: Any):
    broker.answers["AddPartitionToTxn"] = lambda *_: pb.CommandAddPartitionToTxnResponse(
        request_id=0, error=pb.TransactionNotFound, message="gone"
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        with pytest.raises(TransactionNotFound, match="gone"):
            await producer.send(b"x", txn=txn)

    broker.run(work())
    assert not broker.sent


def test_flush_waits_for_messages_whose_topic_is_joining(broker: ScriptedBroker, client: Any):
    async def work() -> list[Any]:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        answers: list[Any] = []
        for _ in range(3):
            producer.send_async(b"x", lambda result, _: answers.append(result), txn=txn)
        await producer.flush()
        return answers

    assert broker.run(work()) == [Result.Ok] * 3


def test_close_sends_messages_whose_topic_is_joining(broker: ScriptedBroker, client: Any):
    async def work() -> Any:
        txn = await client.new_transaction()
        async with await client.create_producer("t") as producer:
            producer.send_async(b"x", txn=txn)
        await txn.commit()
        return txn.state

    assert broker.run(work()) is TxnState.COMMITTED
    assert len(broker.sent) == 1


def test_flush_says_that_a_topic_could_not_join(broker: ScriptedBroker, client: Any):
    broker.answers["AddPartitionToTxn"] = lambda *_: pb.CommandAddPartitionToTxnResponse(
        request_id=0, error=pb.TransactionNotFound, message="no such transaction"
    )

    async def work() -> None:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        producer.send_async(b"x", txn=txn)
        with pytest.raises(TransactionNotFound):
            await producer.flush()

    broker.run(work())


class TestAcknowledgements:
    def test_the_subscription_joins_first(self, broker: ScriptedBroker, client: Any):
        async def work() -> Any:
            consumer = await client.subscribe("t", "s")
            txn = await client.new_transaction()
            ids = [MessageId(-1, 1, 3), MessageId(-1, 1, 4, 1, batch_size=3)]
            await consumer.acknowledge(ids, txn=txn)
            await consumer.acknowledge_cumulative(MessageId(-1, 1, 9), txn=txn)
            return txn.txn_id

        txn_id = broker.run(work())
        (added,) = broker.asked_for(pb.CommandAddSubscriptionToTxn)
        assert added.subscription[0].subscription == "s"
        individual, cumulative = broker.asked_for(pb.CommandAck)
        assert TxnId(individual.txnid_most_bits, individual.txnid_least_bits) == txn_id
        assert [list(each.ack_set) for each in individual.message_id] == [[], [0b101]]
        assert individual.message_id[1].batch_size == 3
        assert cumulative.ack_type == pb.CommandAck.Cumulative

    def test_a_conflict_is_raised_and_fails_the_commit(self, broker: ScriptedBroker, client: Any):
        broker.answers["Ack"] = lambda _, body: pb.CommandAckResponse(
            consumer_id=body.consumer_id, error=pb.TransactionConflict, message="taken"
        )

        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            txn = await client.new_transaction()
            with pytest.raises(TransactionConflict, match="taken"):
                await consumer.acknowledge(MessageId(-1, 1, 3), txn=txn)
            with pytest.raises(TransactionAborted) as raised:
                await txn.commit()
            assert isinstance(raised.value.__cause__, TransactionConflict)

        broker.run(work())

    def test_commit_waits_for_those_under_way(self, broker: ScriptedBroker, client: Any):
        broker.never_answers("Ack")

        async def work() -> None:
            consumer = await client.subscribe("t", "s")
            txn = await client.new_transaction()
            acknowledging = asyncio.create_task(consumer.acknowledge(MessageId(-1, 1, 3), txn=txn))
            await turns(40)
            committing = asyncio.create_task(txn.commit())
            await turns(40)
            assert ends(broker) == []
            (ack,) = broker.asked_for(pb.CommandAck)
            broker.peer.say(
                pb.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
            )
            await asyncio.gather(acknowledging, committing)

        broker.run(work())
        assert ends(broker) == [pb.COMMIT]


class TestEnding:
    def test_the_block_commits_or_aborts(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            async with await client.new_transaction() as txn:
                pass
            assert txn.state is TxnState.COMMITTED
            with pytest.raises(KeyError):
                async with await client.new_transaction() as txn:
                    raise KeyError("the application's own")
            assert txn.state is TxnState.ABORTED
            async with await client.new_transaction() as txn:
                await txn.abort()

        broker.run(work())
        assert ends(broker) == [pb.COMMIT, pb.ABORT, pb.ABORT]

    def test_an_ended_one_takes_nothing_more(self, broker: ScriptedBroker, client: Any):
        async def work() -> None:
            producer = await client.create_producer("t")
            txn = await client.new_transaction()
            await txn.commit()
            with pytest.raises(InvalidTxnStatus, match="is committed"):
                await txn.abort()
            with pytest.raises(InvalidTxnStatus, match="begin a new one"):
                await producer.send(b"x", txn=txn)

        broker.run(work())

    def test_the_broker_may_have_aborted_it(self, broker: ScriptedBroker, client: Any):
        broker.answers["EndTxn"] = lambda *_: pb.CommandEndTxnResponse(
            request_id=0, error=pb.InvalidTxnStatus, message="timed out"
        )

        async def work() -> Any:
            txn = await client.new_transaction()
            with pytest.raises(InvalidTxnStatus, match="timed out"):
                await txn.commit()
            return txn.state

        assert broker.run(work()) is TxnState.ABORTED

    def test_an_end_whose_answer_was_lost_is_asked_for_again(
        self, broker: ScriptedBroker, client: Any
    ):
        end = broker.answers["EndTxn"]

        def drops_the_first(peer: Peer, body: Any) -> Any:
            if len(ends(broker)) == 1:
                peer.drop()
                return None
            return end(peer, body)

        broker.answers["EndTxn"] = drops_the_first

        async def work() -> Any:
            txn = await client.new_transaction()
            await txn.commit()
            return txn.state

        assert broker.run(work()) is TxnState.COMMITTED
        assert ends(broker) == [pb.COMMIT, pb.COMMIT]

    @pytest.mark.parametrize("answer", ["none", "not found after a lost answer"])
    def test_an_end_that_cannot_be_confirmed_is_unknown(
        self, broker: ScriptedBroker, client: Any, answer: str
    ):
        def lose(peer: Peer, body: Any) -> Any:
            if answer != "none" and len(ends(broker)) > 1:
                return pb.CommandEndTxnResponse(request_id=0, error=pb.TransactionNotFound)
            peer.drop()
            return None

        finds_out = broker.answers["EndTxn"]
        broker.answers["EndTxn"] = lose

        async def work() -> None:
            txn = await client.new_transaction()
            with pytest.raises(TransactionOutcomeUnknown) as raised:
                await txn.commit()
            assert raised.value.txn_id == txn.txn_id
            assert txn.state is TxnState.UNKNOWN
            broker.answers["EndTxn"] = finds_out
            again = client.attach_transaction(txn.txn_id)
            await again.commit()
            assert again.state is TxnState.COMMITTED

        broker.run(work())

    @pytest.mark.parametrize("ended_by", ["the client's close", "a refusal"])
    def test_a_later_attempt_that_is_not_even_heard_leaves_the_first_unknown(
        self, broker: ScriptedBroker, client: Any, ended_by: str
    ):
        def lose(peer: Peer, body: Any) -> Any:
            if len(ends(broker)) > 1:
                return pb.CommandEndTxnResponse(request_id=0, error=pb.AuthorizationError)
            peer.drop()
            return None

        broker.answers["EndTxn"] = lose

        async def work() -> None:
            txn = await client.new_transaction()
            committing = asyncio.create_task(txn.commit())
            while not ends(broker):
                await turns()
            if ended_by == "the client's close":
                await client.close()
            with pytest.raises(TransactionOutcomeUnknown):
                await committing
            assert txn.state is TxnState.UNKNOWN

        broker.run(work())

    def test_an_end_that_never_reached_the_coordinator_is_not_unknown(
        self, broker: ScriptedBroker, client: Any
    ):
        async def work() -> None:
            txn = await client.new_transaction()
            broker.answers["LookupTopic"] = lambda *_: refusal(pb.ServiceNotReady, "not yet")
            broker.answers["EndTxn"] = lambda *_: pb.CommandEndTxnResponse(
                request_id=0, error=pb.TransactionCoordinatorNotFound, message="moved"
            )
            with pytest.raises(Exception, match="not yet"):
                await txn.commit()

        broker.run(work())


def test_an_abort_on_disconnect_is_asked_only_of_a_broker_that_knows_it(
    broker: ScriptedBroker, client: Any
):
    """Other brokers would ignore the field, and leave the transaction open."""

    async def work() -> None:
        with pytest.raises(NotAllowed, match="does not abort transactions of disconnected clients"):
            await client.new_transaction(abort_on_disconnect=True)

    broker.run(work())
    assert broker.asked_for(pb.CommandNewTxn) == []
