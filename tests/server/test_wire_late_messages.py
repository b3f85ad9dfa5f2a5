"""Late messages, after their client had acknowledged beyond them: it may have dropped them."""

from collections.abc import Callable

import pytest
from raw_client import RawClient
from wire_consuming import ack, entry_ids, fill

from pybroker.wire import pulsar_api_pb2 as pb

FAILOVER, CUMULATIVE = pb.CommandSubscribe.Failover, pb.CommandAck.Cumulative


@pytest.mark.parametrize("was_told", [False, True])
def test_a_client_that_was_not_told_that_it_subscribed_has_not_forgotten_when_it_closes(
    connect: Callable[..., RawClient], topic: str, was_told: bool
) -> None:
    """When a SUBSCRIBE times out, clients close that consumer and ask for the same one again.
    Clients that got an answer request messages before anything else.
    """
    first, second, third = connect(), connect(), connect()
    ids = fill(first, topic, 4)
    first.subscribe(topic, subType=FAILOVER, consumer_name="processor")
    first.flow(4)
    assert entry_ids(first, 4) == [0, 1, 2, 3]
    txn_id = first.new_txn()
    first.add_subscription(txn_id, topic, "raw")
    body = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[ids[1]],
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    assert not first.request(pb.BaseCommand.ACK, "ack", body).HasField("error")
    first.close_consumer()
    second.subscribe(topic, subType=FAILOVER, consumer_name="c")
    second.flow(4)
    assert entry_ids(second, 3) == [0, 2, 3]
    ack(second, ids[2], kind=CUMULATIVE)
    assert not first.end(txn_id, commit=False).HasField("error")
    assert entry_ids(second, 1) == [1]
    second.close()

    third.subscribe(topic, subType=FAILOVER, consumer_name="c")
    while not third.receive(pb.BaseCommand.ACTIVE_CONSUMER_CHANGE).is_active:
        pass  # until the broker has removed the second one
    if was_told:
        third.flow(1)
        assert entry_ids(third, 1) == [1]
    third.close_consumer()
    third.subscribe(topic, subType=FAILOVER, consumer_name="c")
    third.flow(4)
    assert entry_ids(third, 2) == [1, 3]
    ack(third, ids[3], kind=CUMULATIVE)
    third.close_consumer()
    first.subscribe(topic, subType=FAILOVER, consumer_name="another")
    first.flow(4)
    if was_told:
        assert first.waiting_messages() == 0
    else:
        assert entry_ids(first, 1) == [1]
