"""Non-persistent topics on the wire: only connected consumers ever receive a message."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient

from pybroker.base.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
_Types = pb.CommandSubscribe
_numbers = itertools.count(1)
Connect = Callable[..., RawClient]


@pytest.fixture
def fleeting() -> str:
    return f"non-persistent://public/default/fleeting-{next(_numbers)}"


def on_topic(broker: Any, topic: str, action: Callable[[Any, TopicName], Any]) -> None:
    broker.call(lambda running: action(running.topics, TopicName.parse(topic)))


@pytest.mark.parametrize(
    "kind", [_Types.Exclusive, _Types.Failover, _Types.Shared, _Types.Key_Shared]
)
def test_who_has_permits_gets_the_messages_in_order(raw: RawClient, fleeting: str, kind: int):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting, subType=kind)
    raw.flow(10)
    for number in range(3):
        receipt = raw.publish(b"%d" % number, number)
        assert isinstance(receipt, pb.CommandSendReceipt)
    entries = []
    for _ in range(3):
        raw.receive(_T.MESSAGE)
        entries.append(raw.entry[-1:])
    assert entries == [b"0", b"1", b"2"]


def test_without_permits_a_message_is_dropped_and_never_comes(raw: RawClient, fleeting: str):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting)
    raw.publish(b"missed", 0)
    raw.flow(1)
    raw.publish(b"seen", 1)
    raw.publish(b"missed too", 2)
    raw.flow(10)
    raw.receive(_T.MESSAGE)
    assert raw.entry.endswith(b"seen")
    assert raw.waiting_messages() == 0


def test_a_batch_may_overdraw_the_permits(raw: RawClient, fleeting: str):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting)
    raw.flow(1)
    many = {"num_messages": 5}
    for number in range(2):
        raw.publish(b"batch", number, send_fields=many, num_messages_in_batch=5)
    assert raw.waiting_messages() == 1


def test_acknowledging_redelivery_and_seek_are_accepted_and_change_nothing(
    raw: RawClient, fleeting: str
):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting, subType=_Types.Shared)
    raw.flow(10)
    raw.publish(b"m", 0)
    got = raw.receive(_T.MESSAGE)
    for kind in (pb.CommandAck.Individual, pb.CommandAck.Cumulative):
        ack = pb.CommandAck(consumer_id=1, ack_type=kind, message_id=[got.message_id])
        answer = raw.request(_T.ACK, "ack", ack)
        assert isinstance(answer, pb.CommandAckResponse) and not answer.HasField("error")
    again = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[got.message_id])
    raw.send(_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, "redeliverUnacknowledgedMessages", again)
    seek = pb.CommandSeek(consumer_id=1, message_id=got.message_id)
    assert isinstance(raw.request(_T.SEEK, "seek", seek), pb.CommandSuccess)
    assert raw.waiting_messages() == 0


def test_the_last_message_id_is_that_of_an_empty_topic(raw: RawClient, fleeting: str):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting)
    raw.publish(b"m", 0)
    asked = pb.CommandGetLastMessageId(consumer_id=1)
    answer = raw.request(_T.GET_LAST_MESSAGE_ID, "getLastMessageId", asked)
    assert answer.last_message_id.entryId == 2**64 - 1


def test_transactions_are_refused_with_apaches_errors(raw: RawClient, fleeting: str):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting)
    raw.flow(1)
    txn_id = raw.new_txn()
    assert raw.add_partition(txn_id, fleeting).error == pb.NotAllowedError
    refused = raw.publish(b"m", 0, txn_id)
    assert refused.error == pb.NotAllowedError
    assert refused.message == "PublishTxnMessage is not supported by non-persistent topic"
    raw.publish(b"plain", 1)
    got = raw.receive(_T.MESSAGE)
    ack = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[got.message_id],
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    assert raw.request(_T.ACK, "ack", ack).error == pb.TransactionConflict


def test_a_readers_subscription_goes_with_it(raw: RawClient, wire_broker: Any, fleeting: str):
    raw.subscribe(fleeting, durable=False, subscription="reader")
    raw.subscribe(fleeting, consumer_id=2, subscription="stays")
    raw.close_consumer(1)
    raw.close_consumer(2)

    async def subscriptions(running: Any) -> list[str]:
        return list((await running.topics.served(fleeting)).subscriptions)

    assert wire_broker.call(subscriptions) == ["stays"]


def test_unsubscribing_ends_the_subscription(raw: RawClient, fleeting: str):
    raw.subscribe(fleeting)
    asked = pb.CommandUnsubscribe(consumer_id=1)
    assert isinstance(raw.request(_T.UNSUBSCRIBE, "unsubscribe", asked), pb.CommandSuccess)
    raw.subscribe(fleeting, subType=_Types.Shared)


def test_unloading_disconnects_everybody_and_the_next_use_loads_it(
    raw: RawClient, wire_broker: Any, fleeting: str
):
    raw.create_producer(fleeting)
    raw.subscribe(fleeting)
    on_topic(wire_broker, fleeting, lambda topics, name: topics.unload(name))
    raw.receive(_T.CLOSE_PRODUCER)
    raw.receive(_T.CLOSE_CONSUMER)
    raw.create_producer(fleeting, producer_id=2)
    raw.subscribe(fleeting, consumer_id=2)
    raw.flow(1, consumer_id=2)
    raw.publish(b"again", 0, producer_id=2)
    raw.receive(_T.MESSAGE)


def test_deleting_it_leaves_nothing(raw: RawClient, wire_broker: Any, fleeting: str):
    raw.create_producer(fleeting)
    on_topic(wire_broker, fleeting, lambda topics, name: topics.delete(name, force=True))
    raw.receive(_T.CLOSE_PRODUCER)
    answer = raw.subscribe(fleeting, force_topic_creation=False)
    assert answer.error == pb.TopicNotFound


def test_partitions_are_topics_by_themselves(raw: RawClient, wire_broker: Any, fleeting: str):
    on_topic(wire_broker, fleeting, lambda topics, name: topics.create_partitioned(name, 2))
    asked = pb.CommandPartitionedTopicMetadata(topic=fleeting)
    assert raw.request(_T.PARTITIONED_METADATA, "partitionMetadata", asked).partitions == 2
    raw.subscribe(f"{fleeting}-partition-1")
    raw.flow(1)
    raw.create_producer(f"{fleeting}-partition-1")
    raw.publish(b"m", 0)
    assert raw.receive(_T.MESSAGE).message_id.partition == 1
    assert raw.ask_for_producer(fleeting, producer_id=2).error == pb.NotAllowedError


def test_a_list_has_what_its_mode_asks_for(raw: RawClient, topic: str, fleeting: str):
    raw.create_producer(topic)
    raw.create_producer(fleeting, producer_id=2)
    mode = pb.CommandGetTopicsOfNamespace

    def listed(wanted: int) -> set[str]:
        asked = mode(namespace="public/default", mode=wanted)
        return set(raw.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", asked).topics)

    both = {topic, fleeting}
    assert listed(mode.ALL) & both == both
    assert listed(mode.PERSISTENT) & both == {topic}
    assert listed(mode.NON_PERSISTENT) & both == {fleeting}


def test_a_second_exclusive_consumer_is_refused(raw: RawClient, connect: Connect, fleeting: str):
    raw.subscribe(fleeting)
    assert connect().subscribe(fleeting).error == pb.ConsumerBusy


def test_failover_serves_the_first_by_name_and_then_the_next(
    raw: RawClient, connect: Connect, fleeting: str
):
    other = connect()
    raw.create_producer(fleeting)
    raw.subscribe(fleeting, subType=_Types.Failover, consumer_name="a")
    other.subscribe(fleeting, subType=_Types.Failover, consumer_name="b")
    raw.flow(10)
    other.flow(10)
    assert other.kinds_before_pong() == [_T.ACTIVE_CONSUMER_CHANGE]
    raw.publish(b"m", 0)
    raw.receive(_T.MESSAGE)
    raw.close_consumer()
    assert other.receive(_T.ACTIVE_CONSUMER_CHANGE).is_active
    raw.publish(b"n", 1)
    other.receive(_T.MESSAGE)


def test_an_exclusive_producer_keeps_others_out(raw: RawClient, fleeting: str):
    raw.create_producer(fleeting, producer_access_mode=pb.Exclusive)
    assert raw.ask_for_producer(fleeting, producer_id=2).error == pb.ProducerBusy
