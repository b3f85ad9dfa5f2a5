"""Commit order beside other features: after the commit, messages kept aside are like any other."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from scenario import SOON_MS, assert_nothing_more, drain, subscribe

from pybroker.base.names import TopicName
from pybroker.broker.persistent.truncation import truncate
from pybroker.client import (
    Client,
    ConsumerType,
    CryptoKeyReader,
    MessageId,
    SchemaType,
    TopicSchema,
    encode_batch,
)
from pybroker.client.aio import Client as AioClient
from pybroker.wire.message_metadata import last_batch_index

pytestmark = pytest.mark.parametrize(
    "transaction_buffer", ["commitOrder"], indirect=True, scope="session"
)


def on_topic(broker: Any, topic: str, work: Callable[[Any], Any]) -> Any:
    async def run(running: Any) -> Any:
        return await work(await running.topics.get(topic))

    return broker.call(run)


def unload(broker: Any, topic: str) -> None:
    broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))


def test_compaction_keeps_what_committed_last_of_a_key(
    client: Client, shared_broker: Any, topic: str
) -> None:
    producer = client.create_producer(topic)
    first, second, left_open = (client.new_transaction() for _ in range(3))
    producer.send(b"first", partition_key="k", txn=first)
    producer.send(b"second", partition_key="k", txn=second)
    producer.send(b"open", partition_key="k", txn=left_open)
    second.commit()
    first.commit()

    async def compact(found: Any) -> None:
        found.compaction.start()

    on_topic(shared_broker, topic, compact)
    shared_broker.wait_until(lambda: on_topic(shared_broker, topic, _is_compacted))
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(timeout_millis=SOON_MS).data() == b"first"
    assert not reader.has_message_available()
    left_open.commit()
    assert reader.read_next(timeout_millis=SOON_MS).data() == b"open"


async def _is_compacted(found: Any) -> bool:
    horizon = found.compaction.horizon
    return horizon is not None and horizon >= await _end(found)


async def _end(found: Any) -> Any:
    return found.buffer.last_visible_position()


def test_a_delayed_message_waits_for_its_commit_and_for_its_time(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"in an hour", deliver_after=timedelta(hours=1), txn=txn)
    producer.send(b"due", deliver_after=timedelta(milliseconds=1), txn=txn)
    assert_nothing_more(consumer)
    txn.commit()
    assert drain(consumer, 1) == [b"due"]
    assert_nothing_more(consumer)


def test_chunks_come_together_behind_what_was_sent_between_them(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    chunked = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    plain, txn = client.create_producer(topic), client.new_transaction()
    large = bytes(6 * 1024 * 1024)
    chunked.send(large, txn=txn)
    plain.send(b"plain")
    chunked.send(b"behind it", txn=txn)
    assert drain(consumer, 1) == [b"plain"]
    txn.commit()
    assert drain(consumer, 2) == [large, b"behind it"]


@pytest.fixture(scope="module")
def key_reader(tmp_path_factory: pytest.TempPathFactory) -> CryptoKeyReader:
    folder: Path = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "private.pem").write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / "public.pem").write_bytes(
        private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return CryptoKeyReader(str(folder / "public.pem"), str(folder / "private.pem"))


def test_an_encrypted_message_is_copied_as_it_is(
    client: Client, topic: str, key_reader: CryptoKeyReader
) -> None:
    consumer = subscribe(client, topic, crypto_key_reader=key_reader)
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=key_reader)
    txn = client.new_transaction()
    producer.send(b"secret", txn=txn)
    txn.commit()
    assert drain(consumer, 1) == [b"secret"]


def test_what_is_posted_over_http_passes_what_waits(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer, txn = client.create_producer(topic), client.new_transaction()
    producer.send(b"in", txn=txn)
    url = f"{shared_broker.admin_url}/topics/{topic.replace('://', '/')}"
    body = {"messages": [{"payload": "posted"}]}
    assert httpx.post(url, json=body).status_code == 200
    assert drain(consumer, 1) == [b"posted"]
    txn.commit()
    assert drain(consumer, 1) == [b"in"]


def test_stored_entries_are_read_as_they_were_sent(
    client: Client, shared_broker: Any, topic: str
) -> None:
    """They are read as PySpark reads them: batches stay batches."""
    producer, txn = client.create_producer(topic), client.new_transaction()
    producer.send_batch(encode_batch([b"in"] * 3), txn=txn)
    producer.send(b"plain")
    txn.commit()
    producer.send(b"last")

    last = on_topic(shared_broker, topic, _end)

    async def read() -> list[Any]:
        async with AioClient(shared_broker.service_url) as aio:
            reader = await aio.create_entry_reader(topic, MessageId.earliest)
            found: list[Any] = await reader.take(1 << 30, tuple(last), 3)
            return found

    entries = asyncio.run(read())
    assert [last_batch_index(each.data) for each in entries] == [-1, 2, -1]


def test_a_subscription_that_is_reset_sees_the_same_order_again(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    first, second = client.new_transaction(), client.new_transaction()
    producer.send(b"a", txn=first)
    producer.send(b"plain")
    producer.send(b"b", txn=second)
    second.commit()
    first.commit()
    assert drain(consumer, 3) == [b"plain", b"b", b"a"]
    consumer.seek(MessageId.earliest)
    assert drain(consumer, 3) == [b"plain", b"b", b"a"]


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_what_waits_outlives_a_truncation_and_unloads(
    client: Client, shared_broker: Any, topic: str, ends: str
) -> None:
    consumer = subscribe(client, topic)
    producer, txn = client.create_producer(topic), client.new_transaction()
    producer.send(b"gone")
    producer.send(b"in", txn=txn)
    on_topic(shared_broker, topic, truncate)
    unload(shared_broker, topic)
    getattr(txn, ends)()
    unload(shared_broker, topic)
    producer.send(b"plain")
    expected = [b"in", b"plain"] if ends == "commit" else [b"plain"]
    assert drain(consumer, len(expected)) == expected
    assert_nothing_more(consumer)


def test_each_message_keeps_the_schema_version_it_was_sent_with(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    old = client.create_producer(topic, schema=_record("a"))
    new = client.create_producer(topic, schema=_record("a", "b"))
    first, second = client.new_transaction(), client.new_transaction()
    old.send(b'{"a": "1"}', txn=first)
    new.send(b'{"a": "2", "b": "2"}', txn=second)
    second.commit()
    first.commit()
    messages = [consumer.receive(timeout_millis=SOON_MS) for _ in range(2)]
    assert [message.data() for message in messages] == [b'{"a": "2", "b": "2"}', b'{"a": "1"}']
    versions = [int.from_bytes(message.schema_version(), "big") for message in messages]
    assert versions == [1, 0]


def _record(*names: str) -> TopicSchema:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    return TopicSchema(SchemaType.JSON, definition)


def test_an_official_table_view_holds_what_committed_last_of_a_key(
    client: Client, shared_broker: Any, topic: str
) -> None:
    producer = client.create_producer(topic)
    first, second = client.new_transaction(), client.new_transaction()
    producer.send(b"first", partition_key="k", txn=first)
    producer.send(b"second", partition_key="k", txn=second)
    official = pulsar.Client(shared_broker.service_url)
    try:
        view = official.create_table_view(topic)
        assert view.get("k") is None
        second.commit()
        shared_broker.wait_until(lambda: view.get("k") == b"second")
        first.commit()
        shared_broker.wait_until(lambda: view.get("k") == b"first")
    finally:
        official.close()
