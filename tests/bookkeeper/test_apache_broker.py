"""Apache Pulsar's broker and pybroker on the same ZooKeeper and bookies, with an official client.

One broker is killed, and the other serves exactly the messages that are still unacknowledged, even
of partly acknowledged batches.
"""

import pulsar
import pytest
from apache_broker import ApacheBroker
from both_brokers import AnyBroker, ClientOf, Two, admin, both, client_of, take, two  # noqa: F401
from broker_processes import wait_until

from pybroker.base.names import TopicName

pytestmark = [pytest.mark.slow, pytest.mark.java]
BATCHES, BATCH = 4, 10
SINGLES = 20
WAIT_MS = 30_000
NOTHING_MS = 1500


def fill(client: pulsar.Client, topic: str) -> list[tuple[str, bytes]]:
    """Publish batches with keys, then single messages; returns keys and contents."""
    sent = []
    batching = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(BATCHES * BATCH):
        sent.append((f"key-{number % 3}", b"batched %d" % number))
        batching.send_async(sent[-1][1], lambda *_: None, partition_key=sent[-1][0])
    batching.flush()
    batching.close()
    single = client.create_producer(topic, batching_enabled=False)
    for number in range(SINGLES):
        sent.append((f"key-{number % 3}", b"single %d" % number))
        single.send(sent[-1][1], partition_key=sent[-1][0], properties={"number": str(number)})
    single.close()
    return sent


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "half",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )


def received(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def topic_of_its_own(one: AnyBroker, other: AnyBroker, name: str) -> str:
    """A topic in a new namespace, so that no broker serves its bundle yet."""
    namespace = f"public/{name}"
    admin(one, "PUT", f"namespaces/{namespace}", {})
    wait_until(lambda: namespace in admin(other, "GET", "namespaces/public"))
    return f"persistent://{namespace}/orders"


def is_done_with(content: bytes) -> bool:
    """Whether the first consumer acknowledges the message: a part of each batch."""
    return content.endswith((b"1", b"4", b"8"))


def is_batched(content: bytes) -> bool:
    return content.startswith(b"batched")


def hand_over(
    two: Two,  # noqa: F811
    client_of: ClientOf,  # noqa: F811
    first: AnyBroker,
    second: AnyBroker,
    topic: str,
) -> None:
    take(first, topic)
    client = client_of(first)
    consumer = subscribe(client, topic)
    sent = fill(client, topic)
    for message in received(consumer, len(sent)):
        if is_done_with(message.data()):
            consumer.acknowledge(message)
    rest = [each for each in sent if not is_done_with(each[1])]
    left_in_batches = sum(is_batched(content) for _, content in rest)
    name = TopicName.parse(topic)
    if isinstance(first, ApacheBroker):
        # The client delays acknowledgements, and the broker delays writing them: closing the
        # consumer sends all of them, and closing the topic writes them.
        consumer.close()
        admin(first, "PUT", f"{topic.replace('://', '/')}/unload")
    else:
        wait_until(lambda: two.left_in_batches(name, "half") == left_in_batches)
    first.kill()
    consumer = subscribe(client_of(second), topic)
    found = received(consumer, len(rest))
    assert sorted((each.partition_key(), each.data()) for each in found) == sorted(rest)
    for message in found:
        consumer.acknowledge(message)
        if message.data().startswith(b"single"):
            assert message.properties() == {"number": message.data().split()[1].decode()}
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING_MS)


def test_what_apaches_broker_wrote_ours_serves_when_it_is_killed(two, client_of):  # noqa: F811
    topic = topic_of_its_own(two.apache, two.ours, "from-apache")
    hand_over(two, client_of, two.apache, two.ours, topic)


def test_what_ours_wrote_apaches_broker_serves_when_ours_is_killed(two, client_of):  # noqa: F811
    topic = topic_of_its_own(two.ours, two.apache, "from-ours")
    hand_over(two, client_of, two.ours, two.apache, topic)


DIRECTIONS = pytest.mark.parametrize("maker", ["ours", "apache"])


def pair(two: Two, maker: str) -> tuple[AnyBroker, AnyBroker]:  # noqa: F811
    """The broker that makes the topic, and the other one."""
    return (two.ours, two.apache) if maker == "ours" else (two.apache, two.ours)


def test_a_client_of_apaches_broker_is_led_to_ours(two, client_of):  # noqa: F811
    topic = topic_of_its_own(two.ours, two.apache, "led-to-ours")
    take(two.ours, topic)
    producer = client_of(two.apache).create_producer(topic)
    consumer = client_of(two.ours).subscribe(topic, "sub")
    producer.send(b"hello")
    assert consumer.receive(WAIT_MS).data() == b"hello"


# --- metadata


@DIRECTIONS
def test_a_namespace_of_one_is_the_others(two, maker):  # noqa: F811
    one, other = pair(two, maker)
    tenant, namespace = f"tenant-{maker}", f"tenant-{maker}/shop"
    path = f"namespaces/{namespace}"
    info = {"adminRoles": ["joe"], "allowedClusters": ["east"]}
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    rate = {
        "dispatchThrottlingRateInMsg": 70,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }
    admin(one, "PUT", f"tenants/{tenant}", info)
    admin(one, "PUT", path, {})
    admin(one, "POST", f"{path}/retention", retention)
    admin(one, "POST", f"{path}/messageTTL", 77)
    admin(one, "POST", f"{path}/dispatchRate", rate)
    # Without authorization pybroker refuses to grant permissions; Apache Pulsar does not.
    wait_until(lambda: namespace in admin(two.apache, "GET", f"namespaces/{tenant}"))
    admin(two.apache, "POST", f"{path}/permissions/bob", ["produce"])
    wait_until(lambda: namespace in admin(other, "GET", f"namespaces/{tenant}"))
    wait_until(lambda: admin(other, "GET", f"{path}/permissions") == {"bob": ["produce"]})
    assert admin(other, "GET", f"tenants/{tenant}") == info
    assert admin(other, "GET", f"{path}/retention") == retention
    assert admin(other, "GET", f"{path}/messageTTL") == 77
    assert admin(other, "GET", f"{path}/dispatchRate") == rate
    # A change by the other broker keeps the rest.
    admin(other, "POST", f"{path}/messageTTL", 78)
    wait_until(lambda: admin(one, "GET", f"{path}/messageTTL") == 78)
    assert admin(one, "GET", f"{path}/dispatchRate") == rate
    assert admin(one, "GET", f"{path}/permissions") == {"bob": ["produce"]}
    admin(other, "DELETE", path)
    wait_until(lambda: namespace not in admin(one, "GET", f"namespaces/{tenant}"))


@DIRECTIONS
def test_partitioned_topics_have_the_same_partitions_at_both(two, client_of, maker):  # noqa: F811
    one, other = pair(two, maker)
    topic = f"public/default/parts-of-{maker}"
    admin(one, "PUT", f"persistent/{topic}/partitions", 3)
    listed = "persistent/public/default/partitioned"
    wait_until(lambda: f"persistent://{topic}" in admin(other, "GET", listed))
    assert admin(other, "GET", f"persistent/{topic}/partitions")["partitions"] == 3
    client = client_of(other)
    consumer = client.subscribe(f"persistent://{topic}", "s")
    producer = client.create_producer(f"persistent://{topic}")
    sent = [b"%d" % number for number in range(6)]
    for number, content in enumerate(sent):
        producer.send(content, partition_key=str(number))
    assert sorted(each.data() for each in received(consumer, 6)) == sent


def test_apaches_deduplication_goes_on_where_ours_was_killed(two, client_of):  # noqa: F811
    one, other = two.ours, two.apache
    topic = topic_of_its_own(one, other, "dedup-of-ours")
    admin(one, "POST", "namespaces/public/dedup-of-ours/deduplication", True)
    take(one, topic)
    client_of(one).subscribe(topic, "s").close()
    producer = client_of(one).create_producer(topic, producer_name="p", initial_sequence_id=-1)
    for number in range(10):
        producer.send(b"%d" % number)
    one.kill()
    again = client_of(other).create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 9
    for number in range(5, 12):  # five of them exist
        again.send(b"%d" % number, sequence_id=number)
    consumer = client_of(other).subscribe(topic, "s")
    assert [each.data() for each in received(consumer, 12)] == [b"%d" % n for n in range(12)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING_MS)
