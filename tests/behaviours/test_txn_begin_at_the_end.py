"""Who begins at the end while a transaction is open gets all of that transaction, or nothing."""

from typing import Any

import httpx
import pulsar
import pytest
from raw_client import RawClient
from scenario import (
    IN_LOG_ORDER,
    assert_nothing_more,
    create_partitioned_topic,
    drain,
    subscribe,
)

from managed_ledger.position import LATEST
from pybroker.base.names import TopicName
from pybroker.client import Client, ConsumerType, InitialPosition, IsolationLevel, MessageId
from pybroker.wire import pulsar_api_pb2 as pb

AT_LATEST: dict[str, Any] = {"initial_position": InitialPosition.Latest}
YEAR_9999_MS = 253_370_764_800_000  # a time in the future


def ask(broker: Any, verb: str, topic: str, path: str, body: Any = None) -> None:
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/subscription/sub{path}"
    assert httpx.request(verb, url, json=body).is_success


class Ways:
    """All ways to get to the end. Each makes the consumer that reads from there."""

    def __init__(self, client: Client, broker: Any, topic: str) -> None:
        self.client, self.broker, self.topic = client, broker, topic

    def existing(self) -> Any:
        return subscribe(self.client, self.topic)

    def by_initial_position(self) -> Any:
        return self.client.subscribe(self.topic, "sub", **AT_LATEST)

    def by_sharing(self) -> Any:
        return self.client.subscribe(self.topic, "sub", ConsumerType.Shared, **AT_LATEST)

    def by_seek(self) -> Any:
        consumer = self.existing()
        consumer.seek(MessageId.latest)
        return consumer

    def by_seek_to_time(self) -> Any:
        consumer = self.existing()
        consumer.seek(YEAR_9999_MS)
        return consumer

    def by_admin(self) -> Any:
        ask(self.broker, "PUT", self.topic, "", "latest")
        return self.existing()

    def by_reset(self) -> Any:
        self.existing().close()
        ask(self.broker, "POST", self.topic, "/resetcursor", "latest")
        return self.existing()

    def by_reset_to_time(self) -> Any:
        self.existing().close()
        ask(self.broker, "POST", self.topic, f"/resetcursor/{YEAR_9999_MS}")
        return self.existing()

    def by_skipping(self) -> Any:
        self.existing().close()
        ask(self.broker, "POST", self.topic, "/skip_all")
        return self.existing()


EACH_WAY = pytest.mark.parametrize("way", [name for name in vars(Ways) if name.startswith("by")])


@EACH_WAY
@pytest.mark.parametrize("partitions", [0, 1])
def test_all_of_a_transaction_comes_that_is_open_at_the_beginning(
    client: Client, shared_broker: Any, topic: str, way: str, partitions: int
) -> None:
    if partitions:
        create_partitioned_topic(shared_broker, topic, partitions)
    producer = client.create_producer(topic)
    producer.send(b"before")
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    consumer = getattr(Ways(client, shared_broker, topic), way)()
    producer.send(b"2", txn=txn)
    txn.commit()
    assert drain(consumer, 2) == [b"1", b"2"]
    assert_nothing_more(consumer)


@EACH_WAY
def test_nothing_comes_of_an_aborted_transaction(
    client: Client, shared_broker: Any, topic: str, way: str
) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    consumer = getattr(Ways(client, shared_broker, topic), way)()
    producer.send(b"2", txn=txn)
    txn.abort()
    producer.send(b"behind")
    assert drain(consumer, 1) == [b"behind"]


@EACH_WAY
def test_without_open_transactions_the_end_is_the_end(
    client: Client, shared_broker: Any, topic: str, way: str
) -> None:
    producer = client.create_producer(topic)
    for commit in True, False:
        txn = client.new_transaction()
        producer.send(b"ended", txn=txn)
        txn.commit() if commit else txn.abort()
    producer.send(b"before")
    consumer = getattr(Ways(client, shared_broker, topic), way)()
    producer.send(b"after")
    assert drain(consumer, 1) == [b"after"]


def test_a_reader_gets_all_of_a_transaction_that_is_open_at_its_beginning(
    client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    reader = client.create_reader(topic, MessageId.latest)
    producer.send(b"2", txn=txn)
    txn.commit()
    assert [reader.read_next(30_000).data() for _ in range(2)] == [b"1", b"2"]


def test_official_clients_get_it_whole(client: Client, shared_broker: Any, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    official = pulsar.Client(shared_broker.service_url)
    try:
        late = official.subscribe(topic, "late")  # at Latest
        moved = official.subscribe(topic, "moved")
        moved.seek(pulsar.MessageId.latest)
        reader = official.create_reader(topic, pulsar.MessageId.latest)
        producer.send(b"2", txn=txn)
        txn.commit()
        for each in late, moved:
            assert [each.receive(30_000).data() for _ in range(2)] == [b"1", b"2"]
        assert [reader.read_next(30_000).data() for _ in range(2)] == [b"1", b"2"]
    finally:
        official.close()


@IN_LOG_ORDER
def test_what_others_may_not_read_yet_comes_too(client: Client, topic: str) -> None:
    """It waits behind the open transaction, so nobody has read it."""
    producer = client.create_producer(topic)
    first, second = client.new_transaction(), client.new_transaction()
    producer.send(b"first", txn=first)
    producer.send(b"plain")
    producer.send(b"second", txn=second)
    second.commit()
    consumer = client.subscribe(topic, "sub", **AT_LATEST)
    first.commit()
    assert drain(consumer, 3) == [b"first", b"plain", b"second"]


@IN_LOG_ORDER
def test_a_time_in_an_open_transaction_goes_to_its_first_message(
    raw: RawClient, client: Client, topic: str
) -> None:
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    raw.publish(b"before", 0, publish_time=1000)
    for number in 1, 2, 3:
        raw.publish(b"%d" % number, number, txn_id, publish_time=1000 + number)
    consumer = subscribe(client, topic)
    consumer.seek(1003)
    raw.end(txn_id, commit=True)
    assert drain(consumer, 3) == [b"1", b"2", b"3"]


@IN_LOG_ORDER
def test_behind_a_message_that_is_named_comes_the_next(client: Client, topic: str) -> None:
    """Also in an open transaction: whoever knows it has sent it, or reads what is uncommitted."""
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    second = producer.send(b"2", txn=txn)
    producer.send(b"3", txn=txn)
    consumer = subscribe(client, topic)
    consumer.seek(second)
    txn.commit()
    assert drain(consumer, 1) == [b"3"]
    assert_nothing_more(consumer)


@IN_LOG_ORDER
@EACH_WAY
def test_read_uncommitted_begins_at_the_end_of_the_log(
    client: Client, shared_broker: Any, topic: str, way: str
) -> None:
    """It would have received what is before, had it come earlier."""
    ways, level = Ways(client, shared_broker, topic), IsolationLevel.READ_UNCOMMITTED
    if way in ("by_initial_position", "by_sharing", "by_admin"):
        options = AT_LATEST
    else:
        options = {"initial_position": InitialPosition.Earliest}
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    consumer = client.subscribe(topic, "sub", isolation_level=level, **options)
    if options is not AT_LATEST:
        consumer.close()
        consumer = getattr(ways, way)()
    producer.send(b"2", txn=txn)
    assert drain(consumer, 1) == [b"2"]


@IN_LOG_ORDER
def test_it_begins_there_also_where_the_transaction_goes_over_ledgers(
    client: Client, shared_broker: Any, topic: str
) -> None:
    """Nothing keeps the ledgers but the transaction."""

    async def roll_over(running: Any) -> None:
        found = await running.topics.get(topic)
        await found.ledger.roll_over()
        found.ledger.touch()

    producer = client.create_producer(topic)
    producer.send(b"before")
    shared_broker.call(roll_over)
    txn = client.new_transaction()
    for number in range(3):
        producer.send(b"%d" % number, txn=txn)
        shared_broker.call(roll_over)
    new = client.subscribe(topic, "new", **AT_LATEST)
    moved = Ways(client, shared_broker, topic).by_seek()
    producer.send(b"3", txn=txn)
    txn.commit()
    for consumer in new, moved:
        assert drain(consumer, 4) == [b"0", b"1", b"2", b"3"]


@IN_LOG_ORDER
def test_it_begins_there_also_after_the_topic_was_unloaded(
    client: Client, shared_broker: Any, topic: str
) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"1", txn=txn)
    consumer = client.subscribe(topic, "sub", **AT_LATEST)
    shared_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
    other = client.subscribe(topic, "other", **AT_LATEST)
    producer.send(b"2", txn=txn)
    txn.commit()
    assert drain(consumer, 2) == drain(other, 2) == [b"1", b"2"]


@IN_LOG_ORDER
def test_a_raw_reader_at_the_end_gets_it_whole(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    raw.publish(b"1", 0, txn_id)
    latest = pb.MessageIdData(ledgerId=LATEST.ledger_id, entryId=LATEST.entry_id)
    raw.subscribe(topic, durable=False, start_message_id=latest)
    raw.flow(10)
    raw.publish(b"2", 1, txn_id)
    raw.end(txn_id, commit=True)
    assert [each.message_id.entryId for each in raw.messages(2)] == [0, 1]
