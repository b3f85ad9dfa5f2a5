"""Policies set through the admin API affect clients at once, without a restart."""

import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from raw_client import RawClient

from pybroker.base.configuration.config import BrokerConfig
from pybroker.client import Client, NotAllowed
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

N, P = "/admin/v2/namespaces", "/admin/v2/persistent"
SUB = pb.CommandSubscribe


@pytest.fixture
def raw(admin_broker: RunningBroker) -> Iterator[RawClient]:
    with RawClient(admin_broker.service_url) as client:
        yield client


class Policies:
    """Policies of one topic and its namespace; answers of the admin API are checked."""

    def __init__(self, admin: httpx.Client, topic: str) -> None:
        self._admin = admin
        self.name = topic
        self.namespace = topic.rpartition("/")[0]
        self.topic = f"persistent://{topic}"

    def set(self, path: str, value: Any, verb: str = "POST", **params: Any) -> None:
        answer = self._admin.request(verb, f"{P}/{self.name}/{path}", json=value, params=params)
        assert answer.status_code == 204, answer.text

    def set_all(self, path: str, value: Any, verb: str = "POST") -> None:
        answer = self._admin.request(verb, f"{N}/{self.namespace}/{path}", json=value)
        assert answer.status_code == 204, answer.text

    def reset(self, path: str) -> None:
        assert self._admin.delete(f"{P}/{self.name}/{path}").status_code == 204


@pytest.fixture
def policies(admin: httpx.Client, topic: str) -> Policies:
    return Policies(admin, topic)


def refused(answer: Any, error: Any, text: str) -> None:
    assert isinstance(answer, pb.CommandError), answer
    assert (answer.error, text in answer.message) == (error, True), answer


def test_a_topic_takes_a_limited_number_of_producers(raw: RawClient, policies: Policies) -> None:
    policies.set("maxProducers", 1)
    raw.create_producer(policies.topic, 1)
    answer = raw.ask_for_producer(policies.topic, 2)
    refused(answer, pb.ProducerBusy, "reached max producers limit")
    policies.set("maxProducers", 2)
    raw.create_producer(policies.topic, 2)
    policies.reset("maxProducers")
    raw.create_producer(policies.topic, 3)


def test_a_topic_takes_a_limited_number_of_consumers(raw: RawClient, policies: Policies) -> None:
    policies.set_all("maxConsumersPerTopic", 2)
    shared: dict[str, Any] = {"subType": SUB.Shared}
    for consumer_id, name in ((1, "a"), (2, "b")):
        raw.subscribe(policies.topic, consumer_id, subscription=name, **shared)
    answer = raw.subscribe(policies.topic, 3, subscription="a", **shared)
    refused(answer, pb.ConsumerBusy, "Topic reached max consumers limit")
    raw.close_consumer(2)
    answer = raw.subscribe(policies.topic, 3, subscription="a", **shared)
    assert isinstance(answer, pb.CommandSuccess)


def test_a_subscription_takes_a_limited_number_of_consumers(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("maxConsumersPerSubscription", 1)
    shared: dict[str, Any] = {"subType": SUB.Shared}
    raw.subscribe(policies.topic, 1, subscription="a", **shared)
    answer = raw.subscribe(policies.topic, 2, subscription="a", **shared)
    refused(answer, pb.ConsumerBusy, "Subscription reached max consumers limit")
    answer = raw.subscribe(policies.topic, 2, subscription="b", **shared)
    assert isinstance(answer, pb.CommandSuccess)


def test_a_topic_takes_a_limited_number_of_subscriptions(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("maxSubscriptionsPerTopic", 1)
    raw.subscribe(policies.topic, 1, subscription="a")
    for durable in (True, False):
        answer = raw.subscribe(policies.topic, 2, subscription="b", durable=durable)
        refused(answer, pb.NotAllowedError, "Exceed the maximum number of subscriptions")
    raw.close_consumer(1)
    assert isinstance(raw.subscribe(policies.topic, 2, subscription="a"), pb.CommandSuccess)


def test_a_namespace_takes_a_limited_number_of_topics(
    raw: RawClient, admin: httpx.Client, policies: Policies
) -> None:
    policies.set_all("maxTopicsPerNamespace", 2)
    base = f"{policies.namespace}"
    raw.create_producer(f"persistent://{base}/second", 1)
    answer = raw.ask_for_producer(f"persistent://{base}/third", 2)
    refused(answer, pb.NotAllowedError, "Exceed maximum number of topics in namespace.")
    assert admin.put(f"{P}/{base}/third").status_code == 412
    assert admin.put(f"{P}/{base}/parts/partitions", json=2).status_code == 412
    policies.set_all("maxTopicsPerNamespace", 4)
    assert admin.put(f"{P}/{base}/parts/partitions", json=2).status_code == 204


def test_only_enabled_types_of_subscriptions_are_taken(raw: RawClient, policies: Policies) -> None:
    policies.set("subscriptionTypesEnabled", ["Shared", "Key_Shared"])
    answer = raw.subscribe(policies.topic, 1, subType=SUB.Failover)
    refused(answer, pb.NotAllowedError, "doesn't support Failover sub type!")
    assert isinstance(raw.subscribe(policies.topic, 1, subType=SUB.Shared), pb.CommandSuccess)


def test_producers_have_to_encrypt_where_that_is_required(
    raw: RawClient, policies: Policies
) -> None:
    policies.set_all("encryptionRequired", True)
    answer = raw.ask_for_producer(policies.topic, 1)
    refused(answer, pb.MetadataError, "Encryption is required in")
    raw.create_producer(policies.topic, 1, encrypted=True)


def test_subscriptions_come_into_being_where_that_is_allowed(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    answer = raw.subscribe(policies.topic, 1)
    refused(answer, pb.SubscriptionNotFound, "auto-creation is off")
    policies.reset("autoSubscriptionCreation")
    assert isinstance(raw.subscribe(policies.topic, 1), pb.CommandSuccess)


def test_a_consumers_subscribe_rate_is_limited(raw: RawClient, policies: Policies) -> None:
    rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 3600}
    policies.set("subscribeRate", rate)
    for _ in range(2):
        answer = raw.subscribe(policies.topic, 1, consumer_name="me")
        assert isinstance(answer, pb.CommandSuccess)
        raw.close_consumer(1)
    answer = raw.subscribe(policies.topic, 1, consumer_name="me")
    refused(answer, pb.NotAllowedError, "limited by subscribe rate limit per consumer")
    answer = raw.subscribe(policies.topic, 1, consumer_name="other")
    assert isinstance(answer, pb.CommandSuccess)


def test_a_message_larger_than_the_topic_takes_is_refused_alone(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("maxMessageSize", 100)
    raw.create_producer(policies.topic, 1)
    with raw.in_one_piece():
        for number, size in enumerate((10, 200, 20, 300)):
            raw.start_publish(b"x" * size, number)
    kinds = (pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR)
    answers = [raw.receive(*kinds) for _ in range(4)]
    stored = [isinstance(answer, pb.CommandSendReceipt) for answer in answers]
    assert sorted(zip((a.sequence_id for a in answers), stored, strict=True)) == [
        (0, True),
        (1, False),
        (2, True),
        (3, False),
    ]
    refusal = next(answer for answer in answers if isinstance(answer, pb.CommandSendError))
    assert refusal.error == pb.NotAllowedError
    assert refusal.message.startswith("Exceed maximum message size: the topic's policy")


def test_the_chunks_of_a_message_may_be_larger_than_the_topic_takes(
    client: Client, policies: Policies
) -> None:
    """As with Apache Pulsar: clients cut by the broker's limit, because they know no other."""
    policies.set("maxMessageSize", 1000)
    consumer = client.subscribe(policies.topic, "s")
    producer = client.create_producer(policies.topic, chunking_enabled=True)
    content = random.Random(1).randbytes(6_000_000)
    producer.send(content)
    assert consumer.receive(timeout_millis=30_000).data() == content
    with pytest.raises(NotAllowed, match="allows 1000 bytes in an entry"):
        producer.send(bytes(2000))


def test_a_topic_that_takes_what_the_broker_takes_counts_as_the_broker_does(
    client: Client, policies: Policies
) -> None:
    """The limit then excludes the metadata."""
    most = BrokerConfig().max_message_size
    policies.set("maxMessageSize", most)
    client.create_producer(policies.topic).send(bytes(most))


def test_a_consumer_holds_at_most_its_limit_of_messages_until_it_may_hold_more(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("maxUnackedMessagesOnConsumer", 2)
    raw.create_producer(policies.topic, 1)
    raw.subscribe(policies.topic, 1, subType=SUB.Shared)
    raw.flow(100)
    for number in range(6):
        raw.publish(b"x", number)
    raw.messages(2)
    assert raw.waiting_messages() == 0
    policies.set("maxUnackedMessagesOnConsumer", 5)
    raw.messages(3)
    assert raw.waiting_messages() == 0
    policies.set("maxUnackedMessagesOnConsumer", 0)
    raw.messages(1)


def test_a_subscription_holds_a_limited_number_of_messages(
    raw: RawClient, policies: Policies
) -> None:
    policies.set_all("maxUnackedMessagesPerSubscription", 3)
    raw.create_producer(policies.topic, 1)
    for consumer_id in (1, 2):
        raw.subscribe(policies.topic, consumer_id, subType=SUB.Shared)
        raw.flow(100, consumer_id)
    for number in range(6):
        raw.publish(b"x", number)
    raw.messages(3)
    assert raw.waiting_messages() == 0


def test_too_long_delays_are_refused_as_soon_as_the_policy_says_so(
    raw: RawClient, policies: Policies
) -> None:
    raw.create_producer(policies.topic, 1)
    far = 4_000_000_000_000
    assert isinstance(raw.publish(b"x", 0, deliver_at_time=far), pb.CommandSendReceipt)
    policies.set("delayedDelivery", {"active": True, "maxDeliveryDelayInMillis": 1000})
    assert isinstance(raw.publish(b"x", 1, deliver_at_time=far), pb.CommandSendError)
    policies.reset("delayedDelivery")
    assert isinstance(raw.publish(b"x", 2, deliver_at_time=far), pb.CommandSendReceipt)


def test_delayed_messages_come_at_once_when_delayed_delivery_is_switched_off(
    raw: RawClient, policies: Policies
) -> None:
    raw.subscribe(policies.topic, subType=SUB.Shared)
    raw.flow(100)
    raw.create_producer(policies.topic, 1)
    for number in range(3):
        raw.publish(b"x", number, deliver_at_time=4_000_000_000_000)
    assert raw.waiting_messages() == 0
    policies.set("delayedDelivery", {"active": False})
    assert [message.message_id.entryId for message in raw.messages(3)] == [0, 1, 2]


def test_messages_go_out_no_faster_than_the_dispatch_rate(
    raw: RawClient, policies: Policies
) -> None:
    rate = {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 3600}
    raw.create_producer(policies.topic, 1)
    for number in range(6):
        raw.publish(b"x", number)
    policies.set("subscriptionDispatchRate", rate)
    for consumer_id, name in ((1, "a"), (2, "b")):
        raw.subscribe(policies.topic, consumer_id, subscription=name)
        raw.flow(100, consumer_id)
    raw.messages(4)  # each subscription has its own rate
    assert raw.waiting_messages() == 0
    policies.reset("subscriptionDispatchRate")
    raw.messages(8)
    policies.set("dispatchRate", rate)
    for number in range(6, 12):
        raw.publish(b"x", number)
    raw.messages(2)  # both share one rate
    assert raw.waiting_messages() == 0


def test_one_subscription_has_a_dispatch_rate_of_its_own(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("slow/dispatchRate", {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 99})
    raw.create_producer(policies.topic, 1)
    for number in range(5):
        raw.publish(b"x", number)
    for consumer_id, name in ((1, "slow"), (2, "fast")):
        raw.subscribe(policies.topic, consumer_id, subscription=name)
        raw.flow(100, consumer_id)
    got = [message.consumer_id for message in raw.messages(6)]
    assert sorted(got) == [1, 2, 2, 2, 2, 2]
    assert raw.waiting_messages() == 0


def test_messages_come_in_no_faster_than_the_publish_rate(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("publishRate", {"publishThrottlingRateInMsg": 2})
    raw.create_producer(policies.topic, 1)
    with raw.in_one_piece():
        for number in range(5):
            raw.start_publish(b"x", number)
    receipts = [raw.receive(pb.BaseCommand.SEND_RECEIPT) for _ in range(2)]
    raw.send(pb.BaseCommand.PING, "ping", pb.CommandPing())
    raw.receive(pb.BaseCommand.PONG)  # a delayed message blocks nothing else
    receipts += [raw.receive(pb.BaseCommand.SEND_RECEIPT) for _ in range(3)]
    assert [receipt.sequence_id for receipt in receipts] == [0, 1, 2, 3, 4]


def test_what_waits_for_the_publish_rate_is_stored_before_its_producer_is_closed(
    raw: RawClient, policies: Policies
) -> None:
    policies.set("publishRate", {"publishThrottlingRateInMsg": 2})
    raw.create_producer(policies.topic, 1)
    with raw.in_one_piece():
        for number in range(5):
            raw.start_publish(b"x", number)
        body = pb.CommandCloseProducer(producer_id=1)
        raw.start_request(pb.BaseCommand.CLOSE_PRODUCER, "close_producer", body)
    answers = [raw.receive(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SUCCESS) for _ in range(6)]
    assert [type(answer) for answer in answers] == [pb.CommandSendReceipt] * 5 + [pb.CommandSuccess]


# -- schemas


def a_schema(data: bytes = b"{}") -> pb.Schema:
    return pb.Schema(name="s", type=pb.Schema.Type.Value("Json"), schema_data=data)


def record(*fields: str) -> pb.Schema:
    parts = ",".join(f'{{"name":"{name}","type":"int"}}' for name in fields)
    return a_schema(f'{{"type":"record","name":"r","fields":[{parts}]}}'.encode())


def test_which_schema_may_follow_is_a_policy(raw: RawClient, policies: Policies) -> None:
    raw.create_producer(policies.topic, 1, schema=record("a"))
    answer = raw.ask_for_producer(policies.topic, 2, schema=record("a", "b"))
    refused(answer, pb.IncompatibleSchema, "incompatible")
    policies.set("schemaCompatibilityStrategy", "FORWARD", verb="PUT")
    raw.create_producer(policies.topic, 2, schema=record("a", "b"))
    policies.set_all("schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE", verb="PUT")
    answer = raw.ask_for_producer(policies.topic, 3, schema=record("c"))
    refused(answer, pb.IncompatibleSchema, "incompatible")  # the topic's own strategy applies
    policies.reset("schemaCompatibilityStrategy")
    raw.create_producer(policies.topic, 3, schema=record("c"))


def test_clients_add_schemas_where_that_is_allowed(
    raw: RawClient, admin: httpx.Client, policies: Policies
) -> None:
    policies.set_all("isAllowAutoUpdateSchema", False)
    answer = raw.ask_for_producer(policies.topic, 1, schema=record("a"))
    refused(answer, pb.IncompatibleSchema, "auto updating is disabled")
    schema = record("a").schema_data.decode()
    added = admin.post(
        f"/admin/v2/schemas/{policies.name}/schema", json={"type": "JSON", "schema": schema}
    )
    assert added.status_code == 200
    raw.create_producer(policies.topic, 1, schema=record("a"))


def test_producers_come_with_a_schema_where_that_is_enforced(
    raw: RawClient, policies: Policies
) -> None:
    raw.create_producer(policies.topic, 1, schema=record("a"))
    raw.create_producer(policies.topic, 2)
    policies.set("schemaValidationEnforced", True)
    answer = raw.ask_for_producer(policies.topic, 3)
    refused(answer, pb.IncompatibleSchema, "without a schema")


# -- backlogs


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", pb.ProducerBlockedQuotaExceededError),
        ("producer_exception", pb.ProducerBlockedQuotaExceededException),
    ],
)
def test_a_topic_over_its_quota_takes_no_producer(
    raw: RawClient, admin: httpx.Client, policies: Policies, policy: str, error: Any
) -> None:
    policies.set("backlogQuota", {"limitSize": 100, "policy": policy})
    raw.subscribe(policies.topic, 1)
    raw.create_producer(policies.topic, 1)
    raw.publish(b"x" * 200, 0)
    answer = raw.ask_for_producer(policies.topic, 2)
    refused(answer, error, "Cannot create producer on topic with backlog quota exceeded")
    stats = admin.get(f"{P}/{policies.name}/stats").json()
    assert stats["backlogQuotaLimitSize"] == 100
    assert admin.post(f"{P}/{policies.name}/subscription/raw/skip_all").status_code == 204
    raw.create_producer(policies.topic, 2)
