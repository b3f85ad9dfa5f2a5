"""Subscriptions and readers with read_uncommitted: what they see, and what does not persist."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from scenario import (
    IN_LOG_ORDER,
    SOON_MS,
    assert_nothing_more,
    drain,
    is_consumed_to_the_end,
    subscribe,
)

import pybroker.testing
from pybroker.client import (
    Client,
    ConsumerType,
    IsolationLevel,
    MessageId,
    NotAllowed,
    TransactionConflict,
    aio,
)

UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED
COMMITTED = IsolationLevel.READ_COMMITTED
pytestmark = IN_LOG_ORDER
KINDS = pytest.mark.parametrize("kind", ConsumerType)


def uncommitted(client: Client, topic: str, name: str = "sub", **options: Any) -> Any:
    return subscribe(client, topic, name, isolation_level=UNCOMMITTED, **options)


def ask(broker: Any, verb: str, topic: str, path: str, body: Any = None) -> httpx.Response:
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/{path}"
    return httpx.request(verb, url, json=body)


@KINDS
def test_what_is_open_comes_at_once_and_once(
    client: Client, shared_broker: Any, topic: str, kind: ConsumerType
) -> None:
    consumer = uncommitted(client, topic, consumer_type=kind)
    committed = subscribe(client, topic, "committed")
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"in", txn=txn)
    producer.send(b"plain")
    assert drain(consumer, 2) == [b"in", b"plain"]
    assert_nothing_more(committed)
    txn.commit()
    producer.send(b"behind")
    assert drain(consumer, 1) == [b"behind"]
    assert drain(committed, 3) == [b"in", b"plain", b"behind"]
    shared_broker.wait_until(lambda: is_consumed_to_the_end(shared_broker, topic, "sub"))


@KINDS
def test_what_was_aborted_does_not_come_again_and_leaves_no_backlog(
    client: Client, shared_broker: Any, topic: str, kind: ConsumerType
) -> None:
    consumer = uncommitted(client, topic, consumer_type=kind)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    for _ in range(3):
        producer.send(b"aborted", txn=txn)
    producer.send(b"plain")
    assert drain(consumer, 4, acknowledge=False) == [b"aborted"] * 3 + [b"plain"]
    txn.abort()
    consumer.redeliver_unacknowledged_messages()
    assert drain(consumer, 1) == [b"plain"]
    assert_nothing_more(consumer)
    shared_broker.wait_until(lambda: is_consumed_to_the_end(shared_broker, topic, "sub"))


def test_what_was_aborted_before_it_was_sent_does_not_come(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"aborted", txn=txn)
    txn.abort()
    producer.send(b"plain")
    assert drain(uncommitted(client, topic), 1) == [b"plain"]
    reader = client.create_reader(topic, MessageId.earliest, isolation_level=UNCOMMITTED)
    assert reader.read_next(SOON_MS).data() == b"plain"
    assert not reader.has_message_available()


def test_a_reader_sees_the_last_message_of_an_open_transaction(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"plain")
    reader = client.create_reader(topic, MessageId.earliest, isolation_level=UNCOMMITTED)
    careful = client.create_reader(topic, MessageId.earliest)
    txn = client.new_transaction()
    last = producer.send(b"open", txn=txn)
    assert reader.get_last_message_id() == last
    assert careful.get_last_message_id() != last
    assert reader.get_backlog() == 2
    assert [reader.read_next(SOON_MS).data() for _ in range(2)] == [b"plain", b"open"]
    assert not reader.has_message_available()
    txn.abort()
    assert not reader.has_message_available()
    assert careful.read_next(SOON_MS).data() == b"plain"
    assert not careful.has_message_available()


def test_the_client_of_asyncio_says_it_too(shared_broker: Any, topic: str) -> None:
    async def scenario() -> list[bytes]:
        async with aio.Client(shared_broker.service_url) as client:
            consumer = await client.subscribe(topic, "sub", isolation_level=UNCOMMITTED)
            reader = await client.create_reader(
                topic, MessageId.earliest, isolation_level=aio.IsolationLevel.READ_UNCOMMITTED
            )
            producer = await client.create_producer(topic)
            txn = await client.new_transaction()
            await producer.send(b"open", txn=txn)
            received = [await consumer.receive(SOON_MS), await reader.read_next(SOON_MS)]
            await txn.abort()
            return [message.data() for message in received]

    assert asyncio.run(scenario()) == [b"open"] * 2


@pytest.mark.parametrize("where", ("properties", "subscription_properties"))
def test_the_properties_of_official_clients_say_it(client: Client, topic: str, where: str) -> None:
    said: dict[str, Any] = {where: {"isolation.level": "read_uncommitted"}}
    consumer = subscribe(client, topic, **said)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"open", txn=txn)
    assert drain(consumer, 1) == [b"open"]
    consumer.close()
    joined = subscribe(client, topic)  # keeps the subscription's isolation
    producer.send(b"more", txn=txn)
    assert drain(joined, 1) == [b"more"]
    txn.abort()


class TestFixedWhenItIsMade:
    def test_another_level_later_is_refused(self, client: Client, topic: str) -> None:
        uncommitted(client, topic).close()
        with pytest.raises(NotAllowed, match="is read_uncommitted, which was fixed when"):
            subscribe(client, topic, isolation_level=COMMITTED)
        subscribe(client, topic, "plain").close()
        with pytest.raises(NotAllowed, match="is read_committed, which was fixed when"):
            uncommitted(client, topic, "plain")
        subscribe(client, topic, "plain", isolation_level=COMMITTED).close()

    @pytest.mark.parametrize("where", ("properties", "subscription_properties"))
    def test_an_unknown_level_is_refused(self, client: Client, topic: str, where: str) -> None:
        said: dict[str, Any] = {where: {"isolation.level": "serializable"}}
        with pytest.raises(NotAllowed, match="'serializable': must be read_committed"):
            subscribe(client, topic, **said)

    def test_two_levels_at_once_are_refused(self, client: Client, topic: str) -> None:
        with pytest.raises(NotAllowed, match="set it once"):
            uncommitted(client, topic, properties={"isolation.level": "read_committed"})

    def test_reading_compacted_is_refused(self, client: Client, topic: str) -> None:
        with pytest.raises(NotAllowed, match="readCompacted shows"):
            uncommitted(client, topic, "new", is_read_compacted=True)
        uncommitted(client, topic).close()
        with pytest.raises(NotAllowed, match="readCompacted shows"):
            subscribe(client, topic, is_read_compacted=True)
        with pytest.raises(NotAllowed, match="readCompacted shows"):
            client.create_reader(
                topic, MessageId.earliest, is_read_compacted=True, isolation_level=UNCOMMITTED
            )

    def test_it_outlives_restarts(self, tmp_path: Path) -> None:
        with (
            pybroker.testing.broker(data_dir=tmp_path) as broker,
            Client(broker.service_url) as client,
        ):
            uncommitted(client, "t").close()
            txn = client.new_transaction()
            client.create_producer("t").send(b"open", txn=txn)
            broker.kill_and_restart()
            consumer = subscribe(client, "t")
            assert drain(consumer, 1) == [b"open"]
            txn.commit()

    def test_an_administrator_makes_one_and_does_not_change_it(
        self, client: Client, shared_broker: Any, topic: str
    ) -> None:
        body = {"properties": {"isolation.level": "read_uncommitted", "a": "b"}}
        made = ask(shared_broker, "PUT", topic, "subscription/sub", body | LATEST)
        assert made.status_code == 204, made.text
        cleared = ask(shared_broker, "PUT", topic, "subscription/sub/properties", {"c": "d"})
        assert cleared.status_code < 300, cleared.text
        kept = ask(shared_broker, "GET", topic, "subscription/sub/properties").json()
        assert kept == {"isolation.level": "read_uncommitted", "c": "d"}
        other = {"isolation.level": "read_committed"}
        refused = ask(shared_broker, "PUT", topic, "subscription/sub/properties", other)
        assert refused.status_code == 405
        assert "fixed when it was created" in refused.json()["reason"]
        body = {"properties": {"isolation.level": "none"}}
        unknown = ask(shared_broker, "PUT", topic, "subscription/other", body | LATEST)
        assert (unknown.status_code, "read_committed" in unknown.text) == (405, True)


LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


class TestAcknowledgements:
    def test_what_was_acknowledged_before_the_commit_does_not_come_again(
        self, tmp_path: Path
    ) -> None:
        with (
            pybroker.testing.broker(data_dir=tmp_path) as broker,
            Client(broker.service_url) as client,
        ):
            consumer = uncommitted(client, "t")
            producer = client.create_producer("t")
            txn = client.new_transaction()
            for number in range(4):
                producer.send(b"%d" % number, txn=txn)
            messages = [consumer.receive(SOON_MS) for _ in range(4)]
            consumer.acknowledge(messages[2])
            consumer.acknowledge_cumulative(messages[0])
            broker.wait_until(lambda: broker.backlog("t", "sub") == 2)
            broker.restart()
            assert drain(consumer, 2) == [b"1", b"3"]
            txn.commit()
            producer.send(b"behind")
            assert drain(consumer, 1) == [b"behind"]
            broker.wait_until(lambda: is_consumed_to_the_end(broker, "t", "sub"))

    @pytest.mark.parametrize("cumulative", (False, True))
    @pytest.mark.parametrize("ends", ("commit", "abort"))
    def test_a_transaction_acknowledges_what_another_one_has_not_committed(
        self, client: Client, shared_broker: Any, topic: str, cumulative: bool, ends: str
    ) -> None:
        consumer = uncommitted(client, topic)
        producer = client.create_producer(topic)
        writing, reading = client.new_transaction(), client.new_transaction()
        producer.send(b"first", txn=writing)
        producer.send(b"second")
        first, second = consumer.receive(SOON_MS), consumer.receive(SOON_MS)
        if cumulative:
            consumer.acknowledge_cumulative(second, txn=reading)
        else:
            consumer.acknowledge(first, txn=reading)
            consumer.acknowledge(second, txn=reading)
        getattr(writing, ends)()
        reading.abort()
        consumer.redeliver_unacknowledged_messages()
        expected = [b"first", b"second"] if ends == "commit" else [b"second"]
        assert drain(consumer, len(expected)) == expected
        assert_nothing_more(consumer)
        shared_broker.wait_until(lambda: is_consumed_to_the_end(shared_broker, topic, "sub"))

    def test_a_transaction_cannot_acknowledge_what_is_known_to_be_aborted(
        self, client: Client, shared_broker: Any, topic: str
    ) -> None:
        consumer = uncommitted(client, topic)
        producer = client.create_producer(topic)
        writing = client.new_transaction()
        producer.send(b"never", txn=writing)
        never = consumer.receive(SOON_MS)
        writing.abort()
        shared_broker.wait_until(lambda: is_consumed_to_the_end(shared_broker, topic, "sub"))
        reading = client.new_transaction()
        with pytest.raises(TransactionConflict):
            consumer.acknowledge(never, txn=reading)
        reading.abort()

    def test_a_transaction_may_acknowledge_what_it_wrote(
        self, client: Client, shared_broker: Any, topic: str
    ) -> None:
        consumer = uncommitted(client, topic, consumer_type=ConsumerType.Shared)
        producer = client.create_producer(topic)
        for ends in ("abort", "commit"):
            txn = client.new_transaction()
            producer.send(b"mine", txn=txn)
            consumer.acknowledge(consumer.receive(SOON_MS), txn=txn)
            getattr(txn, ends)()
            shared_broker.wait_until(lambda: is_consumed_to_the_end(shared_broker, topic, "sub"))
        assert_nothing_more(consumer)


def test_seeking_back_shows_what_is_open_and_not_what_was_aborted(
    client: Client, topic: str
) -> None:
    consumer = uncommitted(client, topic)
    producer = client.create_producer(topic)
    aborted, still_open = client.new_transaction(), client.new_transaction()
    producer.send(b"aborted", txn=aborted)
    producer.send(b"open", txn=still_open)
    assert drain(consumer, 2) == [b"aborted", b"open"]
    aborted.abort()
    consumer.seek(MessageId.earliest)
    assert drain(consumer, 1) == [b"open"]
    still_open.abort()


def test_clearing_the_backlog_reaches_what_is_open(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumers = [uncommitted(client, topic), subscribe(client, topic, "committed")]
    for consumer in consumers:
        consumer.close()
    txn = client.new_transaction()
    client.create_producer(topic).send(b"open", txn=txn)
    for name in ("sub", "committed"):
        assert ask(shared_broker, "POST", topic, f"subscription/{name}/skip_all").status_code < 300
    assert shared_broker.backlog(topic, "sub") == 0
    assert shared_broker.backlog(topic, "committed") == 1
    txn.commit()


def test_truncating_leaves_what_is_open(client: Client, shared_broker: Any, topic: str) -> None:
    uncommitted(client, topic).close()
    producer = client.create_producer(topic)
    producer.send(b"gone")
    txn = client.new_transaction()
    producer.send(b"open", txn=txn)
    url = f"{shared_broker.admin_url}/admin/v2/{topic.replace('://', '/')}/truncate"
    assert httpx.delete(url).status_code == 204
    assert drain(subscribe(client, topic), 1) == [b"open"]
    txn.commit()
