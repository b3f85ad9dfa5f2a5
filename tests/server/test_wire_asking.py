"""CONNECT, LOOKUP, PARTITIONED_METADATA, topic lists and schemas, field by field."""

from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from raw_client import RawClient

import pybroker.testing
from pybroker.base.listeners import Listeners
from pybroker.base.names import TopicName
from pybroker.base.server_counts import ServerCounts
from pybroker.broker.brokers.ownership import ALONE, BrokerAddress, OtherOwner
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]


def lookup(raw: RawClient, topic: str, **fields: Any) -> Any:
    body = pb.CommandLookupTopic(topic=topic, **fields)
    return raw.request(_T.LOOKUP, "lookupTopic", body)


def partitions(raw: RawClient, topic: str, **fields: Any) -> Any:
    body = pb.CommandPartitionedTopicMetadata(topic=topic, **fields)
    return raw.request(_T.PARTITIONED_METADATA, "partitionMetadata", body)


def topics_of(raw: RawClient, namespace: str = "public/default", **fields: Any) -> Any:
    body = pb.CommandGetTopicsOfNamespace(namespace=namespace, **fields)
    return raw.request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", body)


def get_schema(raw: RawClient, topic: str, **fields: Any) -> Any:
    body = pb.CommandGetSchema(topic=topic, **fields)
    return raw.request(_T.GET_SCHEMA, "getSchema", body)


def create_schema(raw: RawClient, topic: str, schema: pb.Schema) -> Any:
    body = pb.CommandGetOrCreateSchema(topic=topic)
    body.schema.CopyFrom(schema)
    return raw.request(_T.GET_OR_CREATE_SCHEMA, "getOrCreateSchema", body)


def create_partitioned(broker: Any, topic: str, count: int) -> None:
    name = TopicName.parse(topic)
    broker.call(lambda running: running.topics.create_partitioned(name, count))


@pytest.mark.parametrize("local", ["t", "t-partition-0"])
def test_an_absent_namespace_is_not_found_for_every_role(raw: RawClient, local: str) -> None:
    name = f"persistent://public/absent/{local}"
    answers = [
        lookup(raw, name),
        partitions(raw, name),
        raw.ask_for_producer(name),
        raw.subscribe(name),
    ]
    assert {answer.error for answer in answers} == {pb.TopicNotFound}


# -- CONNECT


@pytest.mark.parametrize(("theirs", "answered"), [(0, 0), (12, 12), (21, 21), (99, 21)])
def test_the_lower_protocol_version_is_spoken(connect: Connect, theirs: int, answered: int) -> None:
    assert connect(protocol_version=theirs).connected.protocol_version == answered


def test_connected_tells_how_large_a_message_may_be() -> None:
    with (
        pybroker.testing.broker(max_message_size=123_456) as broker,
        RawClient(broker.service_url) as raw,
    ):
        assert raw.connected.max_message_size == 123_456


def test_what_is_not_served_is_not_advertised(raw: RawClient) -> None:
    flags = raw.connected.feature_flags
    assert not flags.supports_auth_refresh
    assert not flags.supports_broker_entry_metadata


# -- LOOKUP


def test_a_lookup_names_this_broker_and_says_so_explicitly(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    answer = lookup(raw, topic)
    assert answer.brokerServiceUrl == wire_broker.service_url
    assert answer.brokerServiceUrl.startswith("pulsar://localhost:")  # or clients connect twice
    assert answer.response == pb.CommandLookupTopicResponse.Connect
    assert answer.authoritative
    for field in ("response", "authoritative", "proxy_through_service_url"):
        assert answer.HasField(field), field


def test_a_lookup_names_no_address_that_the_broker_does_not_have(
    raw: RawClient, topic: str
) -> None:
    """The client in Rust takes an empty string for an address, and cannot connect."""
    assert not lookup(raw, topic).HasField("brokerServiceUrlTls")


async def _counts(running: Any) -> ServerCounts:
    counts: ServerCounts = running._services.counts
    return counts


def test_a_lookup_that_another_broker_should_serve_is_counted_as_a_redirect(
    raw: RawClient, wire_broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = BrokerAddress("pulsar://other:6650")
    counts = wire_broker.call(_counts)
    pending = []

    async def elsewhere(name: TopicName, authoritative: bool) -> OtherOwner:
        pending.append(counts.lookups_pending)
        return OtherOwner(other, Listeners(), False)

    before = counts.lookups_redirected
    monkeypatch.setattr(type(ALONE), "lookup", staticmethod(elsewhere))
    answer = lookup(raw, topic)
    assert answer.response == pb.CommandLookupTopicResponse.Redirect
    assert answer.brokerServiceUrl == other.broker_url
    assert (pending, counts.lookups_pending) == ([1], 0)
    assert counts.lookups_redirected == before + 1


def test_an_unknown_listener_is_named_as_clients_expect(raw: RawClient, topic: str) -> None:
    answer = lookup(raw, topic, advertised_listener_name="internal")
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    assert answer.error == pb.ServiceNotReady
    assert "the broker do not have internal listener" in answer.message


@pytest.mark.parametrize("topic", ["persistent://nobody/there/t", "persistent://public/t"])
def test_a_lookup_of_what_cannot_be_fails_in_its_response(raw: RawClient, topic: str) -> None:
    answer = lookup(raw, topic)
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    assert answer.error in (pb.TopicNotFound, pb.InvalidTopicName)


# -- PARTITIONED_METADATA


def test_a_partitioned_topic_tells_its_partitions(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    create_partitioned(wire_broker, topic, 3)
    answer = partitions(raw, topic)
    assert answer.HasField("response")
    assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
    assert answer.partitions == 3
    assert partitions(raw, f"{topic}-partition-1").partitions == 0


def test_a_topic_that_is_not_there_has_no_partitions_but_may_be_made(
    raw: RawClient, topic: str
) -> None:
    answer = partitions(raw, topic)
    assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
    assert answer.HasField("partitions")
    assert answer.partitions == 0


def test_asking_without_auto_creation_finds_nothing(raw: RawClient, topic: str) -> None:
    answer = partitions(raw, topic, metadata_auto_creation_enabled=False)
    assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert answer.error == pb.TopicNotFound


def test_a_name_and_its_partitions_agree(raw: RawClient, wire_broker: Any, topic: str) -> None:
    """Java consumers retry after NotAllowed, so they survive the topic's recreation."""
    create_partitioned(wire_broker, topic, 1)
    for name in (topic, f"{topic}-partition-1", f"{topic}-none-partition-0"):
        assert raw.subscribe(name).error == pb.NotAllowedError
        assert raw.ask_for_producer(name).error == pb.NotAllowedError
    missing = raw.subscribe(f"{topic}-none-partition-0", force_topic_creation=False)
    assert missing.error == pb.TopicNotFound


def test_topics_come_with_partitions_where_that_is_configured(topic: str) -> None:
    settings = {"allow_auto_topic_creation_type": "partitioned", "default_num_partitions": 4}
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as raw:
        assert partitions(raw, topic).partitions == 4
        assert partitions(raw, topic).partitions == 4


def test_nothing_is_created_by_its_use_where_that_is_off(topic: str) -> None:
    with (
        pybroker.testing.broker(allow_auto_topic_creation=False) as broker,
        RawClient(broker.service_url) as raw,
    ):
        assert partitions(raw, topic).error == pb.TopicNotFound
        assert raw.ask_for_producer(topic).error == pb.TopicNotFound
        assert raw.subscribe(topic).error == pb.TopicNotFound


# -- GET_TOPICS_OF_NAMESPACE


def names_hash(names: list[str]) -> str:
    """In the notation of Java's clients: byte by byte, the lowest first."""
    return crc32c(",".join(names).encode()).to_bytes(4, "little").hex()


def test_topics_are_listed_in_order_with_their_hash(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.create_producer(topic)
    create_partitioned(wire_broker, f"{topic}-p", 2)
    answer = topics_of(raw)
    names = list(answer.topics)
    assert names == sorted(names)
    assert {topic, f"{topic}-p-partition-0", f"{topic}-p-partition-1"} <= set(names)
    assert answer.topics_hash == names_hash(names)
    assert (answer.changed, answer.filtered) == (True, False)


def test_a_list_that_the_client_has_is_not_sent_again(raw: RawClient) -> None:
    known = topics_of(raw).topics_hash
    answer = topics_of(raw, topics_hash=known)
    assert answer.HasField("changed")
    assert not answer.changed
    assert not answer.topics


def test_an_unknown_namespace_is_empty(raw: RawClient) -> None:
    assert not topics_of(raw, "nobody/there").topics


# -- schemas


WITH_DEFAULT = '{"name": "a", "type": "int", "default": 0}'
WITHOUT_DEFAULT = '{"name": "a", "type": "int"}'
PLAIN = pb.Schema(name="bytes", type=getattr(pb.Schema, "None"), schema_data=b"")


def json_schema(fields: str = "") -> pb.Schema:
    data = b'{"type": "record", "name": "R", "fields": [%s]}' % fields.encode()
    return pb.Schema(name="r", type=pb.Schema.Json, schema_data=data)


def test_a_topic_without_a_schema_is_not_found(raw: RawClient, topic: str) -> None:
    assert get_schema(raw, topic).error_code == pb.TopicNotFound


def test_schema_versions_are_eight_bytes_from_zero(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    first, second = json_schema(), json_schema(WITH_DEFAULT)
    assert create_schema(raw, topic, first).schema_version == bytes(8)
    assert create_schema(raw, topic, second).schema_version == bytes(7) + b"\x01"
    assert create_schema(raw, topic, first).schema_version == bytes(8)
    latest = get_schema(raw, topic)
    assert latest.schema_version == bytes(7) + b"\x01"
    assert latest.schema.schema_data == second.schema_data
    oldest = get_schema(raw, topic, schema_version=bytes(8))
    assert oldest.schema.schema_data == first.schema_data
    missing = get_schema(raw, topic, schema_version=bytes(7) + b"\x09")
    assert missing.error_code == pb.TopicNotFound


def test_a_schema_version_of_more_than_eight_bytes_is_refused(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic, schema=json_schema())
    assert get_schema(raw, topic, schema_version=b"").schema_version == bytes(8)
    refused = get_schema(raw, topic, schema_version=bytes(9))
    assert refused.error_code == pb.NotAllowedError
    assert "can have at most 8 bytes, not 9" in refused.error_message


def test_a_schema_of_another_type_is_incompatible(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic, schema=json_schema())
    text = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    assert create_schema(raw, topic, text).error_code == pb.IncompatibleSchema
    assert raw.ask_for_producer(topic, 2, schema=text).error == pb.IncompatibleSchema
    assert raw.subscribe(topic, schema=text).error == pb.IncompatibleSchema


def test_a_producer_learns_the_version_of_its_schema(raw: RawClient, topic: str) -> None:
    answer = raw.ask_for_producer(topic, schema=json_schema())
    assert answer.schema_version == bytes(8)


def test_a_consumer_of_any_schema_leaves_none_behind(raw: RawClient, topic: str) -> None:
    any_schema = pb.Schema(name="any", type=pb.Schema.AutoConsume, schema_data=b"")
    assert isinstance(raw.subscribe(topic, schema=any_schema), pb.CommandSuccess)
    assert get_schema(raw, topic).error_code == pb.TopicNotFound
    described = raw.subscribe(topic, 2, subscription="described", schema=json_schema())
    assert isinstance(described, pb.CommandSuccess)
    assert get_schema(raw, topic).schema_version == bytes(8)


def test_bytes_are_a_schema_too(raw: RawClient, topic: str) -> None:
    assert raw.ask_for_producer(topic, schema=PLAIN).schema_version == bytes(8)
    assert get_schema(raw, topic).schema.type == PLAIN.type


def test_a_field_without_a_default_cannot_be_added(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic, schema=json_schema())
    answer = raw.ask_for_producer(topic, 2, schema=json_schema(WITHOUT_DEFAULT))
    assert answer.error == pb.IncompatibleSchema
    assert "R.a is new and has no default" in answer.message


def test_a_consumer_s_schema_is_no_new_version(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic, schema=json_schema())
    consumed = raw.subscribe(topic, schema=json_schema(WITH_DEFAULT))
    assert isinstance(consumed, pb.CommandSuccess)
    assert get_schema(raw, topic).schema_version == bytes(8)
    refused = raw.subscribe(topic, 2, subscription="other", schema=json_schema(WITHOUT_DEFAULT))
    assert refused.error == pb.IncompatibleSchema


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("used", ["a producer", "a message", "a consumer"])
def test_a_consumer_gives_a_topic_in_use_no_schema(
    connect: Connect, topic: str, domain: str, used: str
) -> None:
    topic = topic.replace("persistent", domain)
    raw, other = connect(), connect()
    if used == "a consumer":
        other.subscribe(topic, subscription="other")
    else:
        other.create_producer(topic)
    if used == "a message":
        other.publish(b"x", 0)
        other.close_producer()
    assert raw.subscribe(topic, schema=json_schema()).error == pb.IncompatibleSchema
    assert get_schema(raw, topic).error_code == pb.TopicNotFound


def test_no_schema_is_stored_for_a_missing_topic(raw: RawClient, topic: str) -> None:
    assert create_schema(raw, topic, json_schema()).error_code == pb.TopicNotFound


def test_a_partition_shares_the_schemas_of_its_topic(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    create_partitioned(wire_broker, topic, 1)
    create_schema(raw, topic, json_schema())
    assert get_schema(raw, f"{topic}-partition-0").schema_version == bytes(8)


# -- transactions


def test_the_first_transaction_s_zeros_are_written_out() -> None:
    """The Go client dereferences both fields."""
    with pybroker.testing.broker() as broker, RawClient(broker.service_url) as raw:
        response = raw.try_new_txn()
        assert (response.txnid_most_bits, response.txnid_least_bits) == (0, 0)
        assert response.HasField("txnid_most_bits")
        assert response.HasField("txnid_least_bits")
