"""If any operation of a transaction fails, the others are not committed without it."""

from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, Sent

from pybroker.client import (
    AlreadyClosed,
    Outgoing,
    ProducerQueueIsFull,
    TransactionAborted,
    TxnState,
)
from pybroker.wire import pulsar_api_pb2 as pb


def ends(broker: ScriptedBroker) -> list[int]:
    return [end.txn_action for end in broker.asked_for(pb.CommandEndTxn)]


def refused(peer: Peer, sent: Sent) -> Any:
    return pb.CommandSendError(
        producer_id=sent.producer_id,
        sequence_id=sent.sequence_id,
        error=pb.NotAllowedError,
        message="not here",
    )


def test_a_commit_that_has_to_abort_says_so_also_when_nobody_answers(
    broker: ScriptedBroker, client: Any
):
    broker.on_send = refused
    broker.never_answers("EndTxn")

    async def work() -> Any:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        producer.send_async(b"x", txn=txn)
        with pytest.raises(TransactionAborted, match="not here") as raised:
            await txn.commit()
        assert "times out" in raised.value.__notes__[0]
        return txn.state

    assert broker.run(work()) is TxnState.UNKNOWN
    assert set(ends(broker)) == {pb.ABORT}


def test_a_message_that_a_full_queue_refused_fails_the_commit(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t", max_pending_messages=1)
        txn = await client.new_transaction()
        producer.send_async(b"a", txn=txn)
        producer.send_async(b"b", txn=txn)
        with pytest.raises(TransactionAborted) as raised:
            await txn.commit()
        assert isinstance(raised.value.__cause__, ProducerQueueIsFull)

    broker.run(work())
    assert ends(broker) == [pb.ABORT]


def test_a_message_that_a_closed_producer_refused_fails_the_commit(
    broker: ScriptedBroker, client: Any
):
    async def work() -> None:
        producer = await client.create_producer("t")
        txn = await client.new_transaction()
        await producer.send(b"a", txn=txn)
        await producer.close()
        producer.send_async(b"b", txn=txn)
        with pytest.raises(TransactionAborted) as raised:
            await txn.commit()
        assert isinstance(raised.value.__cause__, AlreadyClosed)

    broker.run(work())


@pytest.mark.parametrize("has_joined", [False, True])
@pytest.mark.parametrize("batching_enabled", [False, True])
def test_a_message_that_cannot_be_encoded_fails_the_commit_and_delays_no_other(
    broker: ScriptedBroker, client: Any, batching_enabled: bool, has_joined: bool
):
    async def work() -> None:
        producer = await client.create_producer("t", batching_enabled=batching_enabled)
        txn = await client.new_transaction()
        if has_joined:
            await producer.send(b"a", txn=txn)
        answers: list[Any] = []
        for properties in ({"count": 1}, {"count": "1"}):
            producer.send_async(
                b"b", lambda result, _: answers.append(result), txn=txn, properties=properties
            )
        with pytest.raises(TransactionAborted) as raised:
            await txn.commit()
        assert raised.value.__cause__ is answers[0]
        assert isinstance(answers[0], TypeError)
        assert len(answers) == 2

    broker.run(work())
    assert ends(broker) == [pb.ABORT]


def test_a_message_that_no_partition_takes_fails_the_commit(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("parts")
        txn = await client.new_transaction()
        producer.submit(Outgoing(b"x", partition_key=5), txn, lambda *_: None)
        with pytest.raises(TransactionAborted):
            await txn.commit()

    broker.run(work())
