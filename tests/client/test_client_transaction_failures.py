"""Whatever goes wrong with one operation of a transaction, the rest is not committed without it."""

from typing import Any

import pytest
from scripted_broker import Peer, ScriptedBroker, Sent

from pybroker.client import (
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
