"""SUBSCRIBE, FLOW, ACK, redelivery, GET_LAST_MESSAGE_ID, UNSUBSCRIBE, CLOSE_CONSUMER."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from crc32c import crc32c
from raw_client import RawClient
from wire_consuming import ack, consumer_stats, entry_ids, fill, fill_batches, reader, seek

import pybroker.testing
from managed_ledger.errors import StorageFull
from pybroker.base.errors import SubscriptionNotFound
from pybroker.base.names import TopicName
from pybroker.broker.persistent.topic import Topic
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import parse_metadata

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
NO_ENTRY = 2**64 - 1
SHARED, FAILOVER = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Failover


def last_message_id(raw: RawClient, consumer_id: int = 1) -> Any:
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id)
    return raw.request(_T.GET_LAST_MESSAGE_ID, "getLastMessageId", body)


def unsubscribe(raw: RawClient, **fields: Any) -> Any:
    body = pb.CommandUnsubscribe(consumer_id=1, **fields)
    return raw.request(_T.UNSUBSCRIBE, "unsubscribe", body)


# -- the start of a subscription


def test_a_reader_gets_its_start_message_too(raw: RawClient, topic: str) -> None:
    ids = fill(raw, topic, 5)
    reader(raw, topic, ids[2])
    raw.flow(10)
    assert entry_ids(raw, 3) == [2, 3, 4]


def ranges(*given: tuple[int, int]) -> pb.KeySharedMeta:
    meta = pb.KeySharedMeta(keySharedMode=pb.STICKY)
    for start, end in given:
        meta.hashRanges.add(start=start, end=end)
    return meta


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize(
    "fields",
    [
        {"keySharedMeta": ranges((0, 10), (5, 20))},
        {"keySharedMeta": ranges(*[(n, n) for n in range(1025)])},
        {"consumer_name": "x" * 2000},
        {"start_message_rollback_duration_sec": 1, "keySharedMeta": ranges((9, 1))},
    ],
    ids=["overlapping", "too many ranges", "long name", "rolled back"],
)
def test_a_reader_that_is_not_let_in_leaves_no_subscription(
    raw: RawClient, wire_broker: Any, topic: str, domain: str, fields: dict[str, Any]
) -> None:
    topic = topic.replace("persistent", domain)
    raw.subscribe(topic, 1, subscription="stays")
    key_shared = pb.CommandSubscribe.Key_Shared
    refused = raw.subscribe(
        topic, 2, durable=False, subscription="reader", subType=key_shared, **fields
    )
    assert isinstance(refused, pb.CommandError)

    async def subscriptions(running: Any) -> list[str]:
        return list((await running.topics.served(topic)).subscriptions)

    assert wire_broker.call(subscriptions) == ["stays"]


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_reader_gets_the_keys_of_its_hash_ranges(raw: RawClient, topic: str, domain: str) -> None:
    """Key 5 has slot 13,796, key 0 has slot 49,279."""
    topic = topic.replace("persistent", domain)
    raw.create_producer(topic)
    for consumer_id, ends in ((1, (0, 32_767)), (2, (32_768, 65_535))):
        fields = {"subscription": f"reader {consumer_id}", "keySharedMeta": ranges(ends)}
        assert isinstance(reader(raw, topic, None, consumer_id, **fields), pb.CommandSuccess)
        raw.flow(10, consumer_id)
    for number, key in enumerate("5005"):
        raw.start_publish(b"x", number, partition_key=key)
    received: dict[int, list[str]] = {1: [], 2: []}
    for _ in range(4):
        (message,) = raw.messages(1)
        received[message.consumer_id].append(parse_metadata(raw.entry).partition_key)
    assert received == {1: ["5", "5"], 2: ["0", "0"]}


def test_a_reader_in_the_middle_of_a_batch_gets_the_whole_batch(raw: RawClient, topic: str) -> None:
    """The client drops the messages before the index."""
    ids = fill_batches(raw, topic, 2, size=4)
    start = pb.MessageIdData(ledgerId=ids[1].ledgerId, entryId=1, batch_index=2)
    reader(raw, topic, start)
    raw.flow(10)
    assert entry_ids(raw, 1) == [1]


def test_a_reader_at_the_earliest_message_gets_everything(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 3)
    reader(raw, topic, pb.MessageIdData(ledgerId=NO_ENTRY, entryId=NO_ENTRY))
    raw.flow(10)
    assert entry_ids(raw, 3) == [0, 1, 2]


def test_a_reader_at_the_latest_message_gets_what_comes(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 3)
    reader(raw, topic, pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1))
    raw.flow(10)
    raw.publish(b"x", 3)
    assert entry_ids(raw, 1) == [3]


def test_a_durable_subscription_begins_where_it_was_told_once(raw: RawClient, topic: str) -> None:
    ids = fill(raw, topic, 3)
    latest = {"initialPosition": pb.CommandSubscribe.Latest}
    raw.subscribe(topic, **latest)
    raw.publish(b"x", 3)
    raw.close_consumer()
    raw.subscribe(topic)
    raw.flow(10)
    assert entry_ids(raw, 1) == [ids[-1].entryId + 1]


def test_a_rollback_begins_with_what_was_published_since(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 3)
    raw.subscribe(topic, start_message_rollback_duration_sec=3600, initialPosition=0)
    raw.publish(b"recent", 3, publish_time=2**50)
    raw.flow(10)
    assert entry_ids(raw, 1) == [3]


def test_a_subscription_is_not_created_where_that_is_off(topic: str) -> None:
    """A non-persistent subscription and a reader's are created nevertheless."""
    settings = {"allow_auto_subscription_creation": False}
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as raw:
        fleeting = raw.subscribe(f"non-{topic}", 9)
        assert isinstance(fleeting, pb.CommandSuccess)
        fill(raw, topic, 1)
        assert raw.subscribe(topic).error == pb.SubscriptionNotFound
        start = pb.MessageIdData(ledgerId=NO_ENTRY, entryId=NO_ENTRY)
        assert isinstance(reader(raw, topic, start), pb.CommandSuccess)


def test_a_topic_is_not_created_by_a_client_that_forbids_it(raw: RawClient, topic: str) -> None:
    assert raw.subscribe(topic, force_topic_creation=False).error == pb.TopicNotFound


# -- which consumers may join


def test_a_second_exclusive_consumer_is_busy(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.subscribe(topic)
    assert second.subscribe(topic).error == pb.ConsumerBusy
    assert second.subscribe(topic, subType=SHARED).error == pb.ConsumerBusy


def test_consumers_of_one_name_may_share(connect: Connect, topic: str) -> None:
    for raw in (connect(), connect()):
        joined = raw.subscribe(topic, consumer_name="same", subType=SHARED)
        assert isinstance(joined, pb.CommandSuccess)


def test_the_active_consumer_is_told_from_protocol_version_12(connect: Connect, topic: str) -> None:
    old, new = connect(protocol_version=11), connect(protocol_version=12)
    new.subscribe(topic, subType=FAILOVER, consumer_name="a")
    assert new.receive(_T.ACTIVE_CONSUMER_CHANGE).is_active
    old.subscribe(topic, subType=FAILOVER, consumer_name="b")
    assert old.kinds_before_pong() == []


def test_readers_and_durable_subscriptions_do_not_share_a_name(
    connect: Connect, topic: str
) -> None:
    raw, other = connect(), connect()
    (message_id,) = fill(raw, topic, 1)
    raw.subscribe(topic, subscription="durable")
    refused = reader(other, topic, message_id, subscription="durable")
    assert refused.error == pb.NotAllowedError
    reader(other, topic, message_id, consumer_id=2, subscription="reader")
    assert raw.subscribe(topic, 3, subscription="reader").error == pb.NotAllowedError


# -- FLOW


def test_permits_count_messages_not_entries(raw: RawClient, topic: str) -> None:
    fill_batches(raw, topic, 4, size=5)
    raw.subscribe(topic)
    raw.flow(10)
    assert entry_ids(raw, 2) == [0, 1]
    assert raw.kinds_before_pong() == []
    raw.flow(1)
    assert entry_ids(raw, 1) == [2]


# -- ACK


def test_an_acknowledgement_with_a_request_id_is_answered(raw: RawClient, topic: str) -> None:
    (message_id,) = fill(raw, topic, 1)
    raw.subscribe(topic)
    answer = ack(raw, message_id)
    assert isinstance(answer, pb.CommandAckResponse)
    assert (answer.consumer_id, answer.HasField("error")) == (1, False)


def test_an_acknowledgement_without_one_is_not(raw: RawClient, topic: str) -> None:
    (message_id,) = fill(raw, topic, 1)
    raw.subscribe(topic)
    body = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id])
    raw.send(_T.ACK, "ack", body)
    assert raw.kinds_before_pong() == []


def test_a_cumulative_acknowledgement_of_a_shared_subscription_is_refused(
    raw: RawClient, topic: str
) -> None:
    (message_id,) = fill(raw, topic, 1)
    raw.subscribe(topic, subType=SHARED)
    answer = ack(raw, message_id, kind=pb.CommandAck.Cumulative)
    assert answer.error == pb.NotAllowedError


@pytest.mark.parametrize(("size", "unacked"), [(3, 0b101), (64, 1 << 63), (100, 1 << 99 | 1)])
def test_what_remains_of_a_batch_comes_with_its_ack_set(
    raw: RawClient, topic: str, size: int, unacked: int
) -> None:
    """A set bit means unacknowledged. The words are little-endian and signed."""
    (message_id,) = fill_batches(raw, topic, 1, size)
    raw.subscribe(topic)
    words = [
        int.from_bytes((unacked >> shift & 2**64 - 1).to_bytes(8, "big"), "big", signed=False)
        for shift in range(0, size, 64)
    ]
    signed = [word - 2**64 if word >= 2**63 else word for word in words]
    partly = pb.MessageIdData(
        ledgerId=message_id.ledgerId, entryId=0, ack_set=signed, batch_size=size
    )
    ack(raw, partly)
    raw.close_consumer()
    raw.subscribe(topic)
    raw.flow(size)
    assert list(raw.receive(_T.MESSAGE).ack_set) == signed


def test_redelivery_counts_are_told_on_shared(raw: RawClient, topic: str) -> None:
    (message_id,) = fill(raw, topic, 1)
    raw.subscribe(topic, subType=SHARED)
    raw.flow(10)
    assert raw.receive(_T.MESSAGE).redelivery_count == 0
    again = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[message_id])
    raw.send(_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, "redeliverUnacknowledgedMessages", again)
    assert raw.receive(_T.MESSAGE).redelivery_count == 1


# -- GET_LAST_MESSAGE_ID


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("name", ["", "  "])
def test_a_subscription_without_a_name_is_refused(
    raw: RawClient, topic: str, name: str, durable: bool
) -> None:
    answer = raw.subscribe(topic, subscription=name, durable=durable)
    assert answer.error == pb.ProducerBusy  # Apache Pulsar's code for a bad name
    assert raw.subscribe(topic).request_id


def test_consumers_without_names_have_the_same_keys_on_every_topic(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    """Like those of a pattern or of partitions, which arrive in varying order."""
    names = {connect(): "first", connect(): "second"}
    for number, order in enumerate((list(names), list(reversed(names)))):
        for raw in order:
            raw.subscribe(f"{topic}-{number}", number, subType=pb.CommandSubscribe.Key_Shared)
            raw.flow(1000, number)
    with_keys = connect()
    for number in range(2):
        with_keys.create_producer(f"{topic}-{number}", number)
        for key in range(40):
            with_keys.start_publish(b"x", key, producer_id=number, partition_key=f"{key}")
        for _ in range(40):
            with_keys.receive(_T.SEND_RECEIPT)
        name = f"{topic}-{number}"
        wire_broker.wait_until(lambda n=name: wire_broker.unacked_messages(n, "raw") == 40)
    owners: dict[tuple[int, int], str] = {}
    for raw, name in names.items():
        for _ in range(raw.waiting_messages()):
            message = raw.receive(_T.MESSAGE)
            owners[message.consumer_id, message.message_id.entryId] = name
    assert {owners[0, key] == owners[1, key] for key in range(40)} == {True}
    assert set(owners.values()) == {"first", "second"}


def test_the_last_message_of_an_empty_topic_is_minus_one(raw: RawClient, topic: str) -> None:
    raw.subscribe(topic)
    answer = last_message_id(raw)
    last = answer.last_message_id
    assert (last.ledgerId, last.entryId, last.batch_index) == (NO_ENTRY, NO_ENTRY, -1)
    assert answer.HasField("consumer_mark_delete_position")
    assert answer.consumer_mark_delete_position.entryId == NO_ENTRY


def test_the_last_message_comes_with_the_mark_delete_position(raw: RawClient, topic: str) -> None:
    ids = fill(raw, topic, 3)
    raw.subscribe(topic)
    ack(raw, ids[0])
    answer = last_message_id(raw)
    assert answer.last_message_id.entryId == 2
    assert answer.last_message_id.batch_index == -1
    assert answer.consumer_mark_delete_position.entryId == 0


def test_the_last_message_of_a_batch_is_its_last_index(raw: RawClient, topic: str) -> None:
    fill_batches(raw, topic, 2, size=4)
    raw.subscribe(topic)
    answer = last_message_id(raw).last_message_id
    assert (answer.entryId, answer.batch_index) == (1, 3)


def test_ids_of_a_partition_name_it(raw: RawClient, wire_broker: Any, topic: str) -> None:
    name = TopicName.parse(topic)
    wire_broker.call(lambda running: running.topics.create_partitioned(name, 3))
    fill(raw, f"{topic}-partition-2", 1)
    raw.subscribe(f"{topic}-partition-2")
    raw.flow(1)
    assert raw.receive(_T.MESSAGE).message_id.partition == 2
    assert last_message_id(raw).last_message_id.partition == 2


# -- SEEK


def test_unsubscribing_forgets_the_position(raw: RawClient, topic: str) -> None:
    ids = fill(raw, topic, 2)
    raw.subscribe(topic)
    ack(raw, *ids)
    assert isinstance(unsubscribe(raw), pb.CommandSuccess)
    raw.subscribe(topic)
    raw.flow(10)
    assert entry_ids(raw, 2) == [0, 1]


def test_unsubscribing_with_others_there_is_refused_unless_forced(
    connect: Connect, topic: str
) -> None:
    first, second = connect(), connect()
    for raw in (first, second):
        raw.subscribe(topic, subType=SHARED)
    assert unsubscribe(first).error == pb.MetadataError
    assert isinstance(unsubscribe(first, force=True), pb.CommandSuccess)
    assert second.receive(_T.CLOSE_CONSUMER).consumer_id == 1


def test_what_a_consumer_asks_that_is_not_there_is_refused(raw: RawClient) -> None:
    nowhere = pb.MessageIdData(ledgerId=0, entryId=0)
    for refused in (unsubscribe(raw), seek(raw, message_id=nowhere), last_message_id(raw)):
        assert refused.error == pb.MetadataError


@pytest.mark.parametrize("gone", [False, True], ids=["it stays", "another one deleted it"])
def test_a_consumer_whose_subscription_could_not_be_deleted_hears_that_it_is_closed(
    raw: RawClient, wire_broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """Otherwise it would wait for messages, although the broker has removed it."""
    why = SubscriptionNotFound("gone") if gone else StorageFull("full")

    async def not_deleted(*_: Any) -> None:
        raise why

    fill(raw, topic, 1)
    raw.subscribe(topic)
    with monkeypatch.context() as patch:
        patch.setattr(Topic, "delete_subscription", not_deleted)
        assert isinstance(unsubscribe(raw), pb.CommandError)
    assert raw.kinds_before_pong() == ([] if gone else [_T.CLOSE_CONSUMER])
    raw.subscribe(topic)
    raw.flow(1)
    assert entry_ids(raw, 1) == [0]


def test_a_reader_may_unsubscribe(raw: RawClient, topic: str) -> None:
    (message_id,) = fill(raw, topic, 1)
    reader(raw, topic, message_id)
    assert isinstance(unsubscribe(raw), pb.CommandSuccess)


def test_what_a_closed_consumer_had_goes_to_the_others(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    fill(first, topic, 2)
    for raw in (first, second):
        raw.subscribe(topic, subType=SHARED)
    first.flow(10)
    assert entry_ids(first, 2) == [0, 1]
    assert isinstance(first.close_consumer(), pb.CommandSuccess)
    second.flow(10)
    assert entry_ids(second, 2) == [0, 1]


def test_a_deleted_subscription_closes_its_consumers(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.subscribe(topic)

    async def delete(running: Any) -> None:
        await (await running.topics.get(topic)).delete_subscription("raw")

    wire_broker.call(delete)
    closed = raw.receive(_T.CLOSE_CONSUMER)
    assert (closed.consumer_id, closed.request_id) == (1, 2**64 - 1)


def test_consumer_stats_tell_what_the_consumer_has(raw: RawClient, topic: str) -> None:
    fill(raw, topic, 3)
    raw.subscribe(topic, subType=SHARED, consumer_name="c")
    raw.flow(2)
    raw.messages(2)
    stats = consumer_stats(raw)
    assert (stats.consumerName, stats.type) == ("c", "Shared")
    assert (stats.unackedMessages, stats.availablePermits, stats.msgBacklog) == (2, 0, 3)
    assert not stats.blockedConsumerOnUnackedMsgs
    assert datetime.fromisoformat(stats.connectedSince).tzinfo is UTC


def test_stats_of_no_consumer_are_refused_in_their_own_answer(raw: RawClient) -> None:
    """The C++ client looks for the error nowhere else."""
    answer = consumer_stats(raw)
    assert isinstance(answer, pb.CommandConsumerStatsResponse)
    assert answer.error_code == pb.ConsumerNotFound


# -- unreadable entries


def test_metadata_that_does_not_parse_harms_no_other_message(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    fill(raw, topic, 2)
    body = b"\x00\x00\x00\x04\xff\xff\xff\xff"
    entry = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    raw.send(_T.SEND, "send", pb.CommandSend(producer_id=1, sequence_id=2), entry)
    raw.receive(_T.SEND_RECEIPT)
    wire_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    raw.subscribe(topic, subType=pb.CommandSubscribe.Key_Shared)
    assert last_message_id(raw).last_message_id.entryId == 2
    seek(raw, message_publish_time=1002)
    raw.subscribe(topic, subType=pb.CommandSubscribe.Key_Shared)
    raw.flow(10)
    assert entry_ids(raw, 1) == [2]
