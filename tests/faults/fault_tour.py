"""Uses each of a broker's functions once, and so passes every fault point."""

from typing import Any, Final

from raw_client import RawClient

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

_T: Final = pb.BaseCommand
NAMESPACE: Final = "public/default"
TOPIC: Final = f"persistent://{NAMESPACE}/tour"
OTHER: Final = f"persistent://{NAMESPACE}/other"
SUBSCRIPTION: Final = "raw"


def take(service_url: str) -> None:
    """Take the tour. Raises if the broker refuses any of it."""
    with RawClient(service_url) as client:
        _metadata(client)
        _v5(client)
        _messages(client)
        _transactions(client)
        _closing(client)


def _done(answer: Any) -> Any:
    for field in ("error", "error_code"):
        refused = field in answer.DESCRIPTOR.fields_by_name and answer.HasField(field)
        assert not refused, answer
    return answer


def _metadata(client: RawClient) -> None:
    client.send(_T.PING, "ping", pb.CommandPing())
    client.receive(_T.PONG)
    data = pb.AuthData(auth_method_name="token", auth_data=b"nobody asked")
    client.send(_T.AUTH_RESPONSE, "authResponse", pb.CommandAuthResponse(response=data))
    lookup = pb.CommandLookupTopic(topic=TOPIC)
    _done(client.request(_T.LOOKUP, "lookupTopic", lookup))
    partitions = pb.CommandPartitionedTopicMetadata(topic=TOPIC)
    _done(client.request(_T.PARTITIONED_METADATA, "partitionMetadata", partitions))
    client.create_producer(TOPIC)
    client.create_producer(OTHER, producer_id=2)
    schema = pb.Schema(name="tour", schema_data=b"", type=pb.Schema.String)
    add = pb.CommandGetOrCreateSchema(topic=TOPIC, schema=schema)
    _done(client.request(_T.GET_OR_CREATE_SCHEMA, "getOrCreateSchema", add))
    _done(client.request(_T.GET_SCHEMA, "getSchema", pb.CommandGetSchema(topic=TOPIC)))
    listing = pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE)
    _done(client.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", listing))
    watch = pb.CommandWatchTopicList(watcher_id=1, namespace=NAMESPACE, topics_pattern=".*")
    _done(client.request(_T.WATCH_TOPIC_LIST, "watchTopicList", watch))
    unwatch = pb.CommandWatchTopicListClose(watcher_id=1)
    _done(client.request(_T.WATCH_TOPIC_LIST_CLOSE, "watchTopicListClose", unwatch))
    asking = pb.CommandAskTopics()
    asking.question.add(topic=TOPIC)
    _done(client.request(_T.ASK_TOPICS, "askTopics", asking))


def _v5(client: RawClient) -> None:
    """What clients of the V5 SDK ask for before they produce or consume."""
    lookup = pb.CommandScalableTopicLookup(session_id=1, topic=TOPIC)
    client.send(_T.SCALABLE_TOPIC_LOOKUP, "scalableTopicLookup", lookup)
    _done(client.receive(_T.SCALABLE_TOPIC_UPDATE))
    close = pb.CommandScalableTopicClose(session_id=1)
    client.send(_T.SCALABLE_TOPIC_CLOSE, "scalableTopicClose", close)
    join = pb.CommandScalableTopicSubscribe(
        topic=TOPIC, subscription=SUBSCRIPTION, consumer_name="tour", consumer_id=9,
        consumer_type=pb.STREAM,
    )  # fmt: skip
    _done(client.request(_T.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe", join))
    leave = pb.CommandScalableTopicUnsubscribe(consumer_id=9)
    _done(client.request(_T.SCALABLE_TOPIC_UNSUBSCRIBE, "scalableTopicUnsubscribe", leave))
    namespace = pb.CommandWatchScalableTopics(watch_id=1, namespace=NAMESPACE)
    client.send(_T.WATCH_SCALABLE_TOPICS, "watchScalableTopics", namespace)
    _done(client.receive(_T.WATCH_SCALABLE_TOPICS_UPDATE))
    unwatch = pb.CommandWatchScalableTopicsClose(watch_id=1)
    client.send(_T.WATCH_SCALABLE_TOPICS_CLOSE, "watchScalableTopicsClose", unwatch)
    places = pb.CommandWatchTcAssignments(watch_id=1)
    client.send(_T.WATCH_TC_ASSIGNMENTS, "watchTcAssignments", places)
    _done(client.receive(_T.WATCH_TC_ASSIGNMENTS_UPDATE))
    over = pb.CommandWatchTcAssignmentsClose(watch_id=1)
    client.send(_T.WATCH_TC_ASSIGNMENTS_CLOSE, "watchTcAssignmentsClose", over)


def _messages(client: RawClient) -> None:
    assert isinstance(client.publish(b"1", 0), pb.CommandSendReceipt)
    _done(client.subscribe(TOPIC, subType=pb.CommandSubscribe.Shared))
    client.flow(10)
    first = client.receive(_T.MESSAGE).message_id
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    client.send(_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, "redeliverUnacknowledgedMessages", redeliver)
    client.receive(_T.MESSAGE)
    _acknowledge(client, first)
    last = pb.CommandGetLastMessageId(consumer_id=1)
    _done(client.request(_T.GET_LAST_MESSAGE_ID, "getLastMessageId", last))
    stats = pb.CommandConsumerStats(consumer_id=1)
    _done(client.request(_T.CONSUMER_STATS, "consumerStats", stats))


def _acknowledge(client: RawClient, message_id: Any, txn_id: TxnId | None = None) -> None:
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id])
    if txn_id is not None:
        ack.txnid_most_bits, ack.txnid_least_bits = txn_id
    _done(client.request(_T.ACK, "ack", ack))


def _transactions(client: RawClient) -> None:
    connect = pb.CommandTcClientConnectRequest(tc_id=0)
    _done(client.request(_T.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", connect))
    txn_id = client.new_txn()
    _done(client.add_partition(txn_id, TOPIC))
    _done(client.add_subscription(txn_id, TOPIC, SUBSCRIPTION))
    assert isinstance(client.publish(b"2", 1), pb.CommandSendReceipt)
    _acknowledge(client, client.receive(_T.MESSAGE).message_id, txn_id)
    assert isinstance(client.publish(b"3", 2, txn_id), pb.CommandSendReceipt)
    _done(client.end(txn_id, commit=True))
    _ends_of_other_brokers(client, txn_id)
    _prepares(client)
    spanning = client.new_txn(spans_namespace=NAMESPACE, transactional_id="tour")
    _done(client.end(spanning, commit=False))
    leader, member = client.new_txn(tc_id=0), client.new_txn(tc_id=1)
    end = pb.CommandEndTxn(
        txnid_most_bits=leader.most, txnid_least_bits=leader.least, txn_action=pb.COMMIT,
        together_with=[member.least], together_with_most=[member.most],
    )  # fmt: skip
    _done(client.request(_T.END_TXN, "endTxn", end))


def _prepares(client: RawClient) -> None:
    most, least = prepared = client.new_txn()
    prepare = pb.CommandPrepareTxn(txnid_most_bits=most, txnid_least_bits=least, name="tour")
    _done(client.request(_T.PREPARE_TXN, "prepareTxn", prepare))
    listing = pb.CommandListPreparedTxns(tc_id=most)
    _done(client.request(_T.LIST_PREPARED_TXNS, "listPreparedTxns", listing))
    _done(client.end(prepared, commit=True))


def _ends_of_other_brokers(client: RawClient, txn_id: TxnId) -> None:
    """Send requests of other brokers, which may be repeated."""
    most, least = txn_id
    ids: dict[str, Any] = {"txnid_most_bits": most, "txnid_least_bits": least}
    ids["txn_action"] = pb.COMMIT
    partition = pb.CommandEndTxnOnPartition(topic=TOPIC, **ids)
    client.request(_T.END_TXN_ON_PARTITION, "endTxnOnPartition", partition)
    subscription = pb.CommandEndTxnOnSubscription(**ids)
    subscription.subscription.topic = TOPIC
    subscription.subscription.subscription = SUBSCRIPTION
    client.request(_T.END_TXN_ON_SUBSCRIPTION, "endTxnOnSubscription", subscription)


def _closing(client: RawClient) -> None:
    seek = pb.CommandSeek(consumer_id=1, message_publish_time=1)
    _done(client.request(_T.SEEK, "seek", seek))
    _done(client.subscribe(TOPIC, subType=pb.CommandSubscribe.Shared))
    _done(client.close_consumer())
    _done(client.subscribe(TOPIC, subType=pb.CommandSubscribe.Shared))
    unsubscribe = pb.CommandUnsubscribe(consumer_id=1)
    _done(client.request(_T.UNSUBSCRIBE, "unsubscribe", unsubscribe))
    _done(client.close_producer())
