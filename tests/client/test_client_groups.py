"""Groups of transactions with a broker that answers late, never, or lacks the feature."""

import asyncio
from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker

from pybroker.client import NotAllowed, ServiceNotReady, TransactionOutcomeUnknown, TxnState, aio
from pybroker.wire import pulsar_api_pb2 as pb


@pytest.fixture
def able(broker: ScriptedBroker) -> ScriptedBroker:
    """A broker that commits several transactions by one decision."""
    connect = broker.answers["Connect"]

    def connected(peer: Peer, body: Any) -> Any:
        answer = connect(peer, body)
        answer.feature_flags.supports_committing_together = True
        return answer

    broker.answers["Connect"] = connected
    return broker


def ends(broker: ScriptedBroker) -> list[int]:
    return [end.txn_action for end in broker.asked_for(pb.CommandEndTxn)]


def test_a_broker_that_cannot_commit_together_is_named_before_anything_begins(
    broker: ScriptedBroker, client: aio.Client
) -> None:
    with pytest.raises(NotAllowed, match="several transactions atomically"):
        broker.run(client.new_transactions(2))
    assert not broker.asked_for(pb.CommandNewTxn)


def test_one_alone_needs_nothing_of_the_broker(broker: ScriptedBroker, client: aio.Client) -> None:
    async def work() -> None:
        async with await client.new_transactions(1):
            pass

    broker.run(work())
    assert ends(broker) == [pb.COMMIT]


def test_a_group_is_ended_by_one_request(able: ScriptedBroker, client: aio.Client) -> None:
    async def work() -> Any:
        async with await client.new_transactions(3) as group:
            return [txn.txn_id for txn in group]

    leader, *others = able.run(work())
    (end,) = able.asked_for(pb.CommandEndTxn)
    assert (end.txnid_most_bits, end.txnid_least_bits) == leader
    assert list(end.together_with) == [other.least for other in others]


def test_those_that_had_begun_are_aborted_when_one_cannot(
    able: ScriptedBroker, client: aio.Client
) -> None:
    begin = able.answers["NewTxn"]

    def third_fails(peer: Peer, body: Any) -> Any:
        if len(able.asked_for(pb.CommandNewTxn)) == 3:
            return pb.CommandNewTxnResponse(
                request_id=0, error=pb.NotAllowedError, message="no more"
            )
        return begin(peer, body)

    able.answers["NewTxn"] = third_fails
    with pytest.raises(NotAllowed, match="no more"):
        able.run(client.new_transactions(3))
    assert ends(able) == [pb.ABORT] * 2


def test_a_lost_answer_leaves_all_of_them_unknown_until_asked_again(
    able: ScriptedBroker, client: aio.Client
) -> None:
    finds_out = able.answers["EndTxn"]

    def lose(peer: Peer, body: Any) -> None:
        peer.drop()

    able.answers["EndTxn"] = lose

    async def work() -> None:
        group = await client.new_transactions(2)
        with pytest.raises(TransactionOutcomeUnknown):
            await group.commit()
        assert [txn.state for txn in group] == [TxnState.UNKNOWN] * 2
        assert all(txn.may_have_committed for txn in group)
        able.answers["EndTxn"] = finds_out
        await group.commit()
        assert [txn.state for txn in group] == [TxnState.COMMITTED] * 2

    able.run(work())


def test_a_commit_that_is_cancelled_while_messages_are_on_their_way_may_be_asked_again(
    able: ScriptedBroker, client: aio.Client
) -> None:
    able.on_send = lambda peer, sent: None  # no answer

    async def work() -> None:
        producer = await client.create_producer("t")
        group = await client.new_transactions(2)
        producer.send_async(b"a", txn=group[1])
        committing = asyncio.create_task(group.commit())
        await asyncio.sleep(0.01)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        assert [txn.state for txn in group] == [TxnState.UNKNOWN] * 2
        assert not ends(able)
        assert not any(txn.may_have_committed for txn in group)

    able.run(work())


def test_an_abort_that_fails_tells_so_after_all_were_asked(
    able: ScriptedBroker, client: aio.Client
) -> None:
    able.answers["EndTxn"] = lambda *_: pb.CommandEndTxnResponse(
        request_id=0, error=pb.NotAllowedError, message="not yours"
    )

    async def work() -> None:
        group = await client.new_transactions(2)
        with pytest.raises(NotAllowed, match="not yours"):
            await group.abort()
        with pytest.raises(ServiceNotReady, match="mine") as raised:
            async with await client.new_transactions(2):
                raise ServiceNotReady("mine")
        assert len(raised.value.__notes__) == 2

    able.run(work())
    assert ends(able) == [pb.ABORT] * 4
