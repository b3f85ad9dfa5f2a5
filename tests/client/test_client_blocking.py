"""The blocking client, against a broker in this process."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import pybroker.testing
from pybroker.client import (
    AlreadyClosed,
    Client,
    ClientError,
    ConnectError,
    InitialPosition,
    InvalidConfiguration,
    MessageId,
    Result,
    Timeout,
    TransactionConflict,
    TxnState,
    encode_batch,
)


@pytest.fixture(scope="module")
def service() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(service: Any) -> Iterator[Client]:
    with Client(service.service_url) as client:
        yield client


def earliest(client: Client, topic: str, **options: Any) -> Any:
    return client.subscribe(topic, "s", initial_position=InitialPosition.Earliest, **options)


def test_what_is_sent_is_received(client: Client):
    producer = client.create_producer("plain")
    consumer = earliest(client, "plain")
    sent = producer.send(b"x", properties={"a": "b"})
    message = consumer.receive(timeout_millis=30_000)
    assert (message.data(), message.properties()) == (b"x", {"a": "b"})
    assert message.message_id() == sent
    consumer.acknowledge(message)
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=1)


def test_a_transaction_moves_a_message(client: Client):
    source, target = client.create_producer("source"), client.create_producer("target")
    consumer, observer = earliest(client, "source"), earliest(client, "target")
    source.send(b"x")
    message = consumer.receive(30_000)
    with client.new_transaction() as txn:
        consumer.acknowledge(message, txn=txn)
        target.send(message.data().upper(), txn=txn)
        with client.new_transaction() as other:
            with pytest.raises(TransactionConflict):
                consumer.acknowledge(message, txn=other)
            other.abort()
    assert txn.state is TxnState.COMMITTED
    assert observer.receive(30_000).data() == b"X"


def test_another_client_may_publish_in_a_transaction(service: Any, client: Client):
    consumer = earliest(client, "attached")
    txn = client.new_transaction()
    with Client(service.service_url) as other:
        attached = other.attach_transaction(pickle.loads(pickle.dumps(txn.txn_id)))
        other.create_producer("attached").send(b"x", txn=attached)
    txn.commit()
    assert consumer.receive(30_000).data() == b"x"


def test_callbacks_tell_the_outcome_of_each_message(client: Client):
    producer = client.create_producer("callbacks", batching_enabled=True)
    answers: list[tuple[Any, Any]] = []
    for _ in range(10):
        producer.send_async(b"x", lambda result, message_id: answers.append((result, message_id)))
    producer.flush()
    assert [result for result, _ in answers] == [Result.Ok] * 10
    assert [message_id.batch_index() for _, message_id in answers] == list(range(10))


def test_a_full_queue_makes_threads_wait_their_turn(client: Client):
    producer = client.create_producer(
        "crowded", batching_enabled=True, max_pending_messages=8, block_if_queue_full=True
    )
    consumer = earliest(client, "crowded")

    def publish(name: int) -> None:
        for number in range(100):
            producer.send_async(b"%d %d" % (name, number))
        producer.send_batch_async(encode_batch([b"%d %d" % (name, i) for i in range(100, 110)]))
        producer.send(b"%d 110" % name)

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = [consumer.receive(30_000).data().split() for _ in range(333)]
    for name in range(3):
        numbers = [int(number) for who, number in received if int(who) == name]
        assert numbers == list(range(111))


def test_a_reader_reads_in_batches_up_to_the_end(client: Client):
    client.create_producer("read").send_batch(encode_batch([b"%d" % i for i in range(50)]))
    reader = client.create_reader("read", MessageId.earliest)
    contents: list[bytes] = []
    while reader.has_message_available():
        contents += [message.data() for message in reader.batch_read(20, 5000)]
    assert contents == [b"%d" % i for i in range(50)]
    assert reader.batch_read(20, 1) == []


def test_seeking_back_delivers_again(client: Client):
    producer, consumer = client.create_producer("sought"), earliest(client, "sought")
    ids = [producer.send(b"%d" % i) for i in range(3)]
    for _ in range(3):
        consumer.acknowledge_cumulative(consumer.receive(30_000))
    consumer.seek(ids[0])
    assert consumer.receive(30_000).data() == b"1"
    consumer.seek(MessageId.earliest)
    assert consumer.receive(30_000).data() == b"0"
    assert consumer.get_last_message_id() == ids[2]


@pytest.mark.slow
@pytest.mark.parametrize("queue_size", [1, 2, 3, 1000])
def test_permits_come_back_however_small_the_queue(client: Client, queue_size: int):
    topic = f"queue-{queue_size}"
    producer = client.create_producer(topic, max_pending_messages=2000)
    consumer = earliest(client, topic, receiver_queue_size=queue_size)
    for number in range(1500):
        producer.send_async(b"%d" % number)
    received = [consumer.receive(30_000).data() for _ in range(1500)]
    assert received == [b"%d" % number for number in range(1500)]


def test_threads_share_a_small_queue(client: Client):
    producer = client.create_producer("shared-queue", max_pending_messages=2000)
    consumer = earliest(client, "shared-queue", receiver_queue_size=4)
    received: list[bytes] = []

    def receive() -> None:
        for _ in range(200):
            message = consumer.receive(20_000)
            received.append(message.data())
            consumer.acknowledge(message)

    threads = [threading.Thread(target=receive) for _ in range(5)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        producer.send_async(b"%d" % number)
    for thread in threads:
        thread.join()
    assert sorted(received, key=int) == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("end", ["client", "consumer"])
def test_what_was_acknowledged_leaves_before_the_end(service: Any, client: Client, end: str):
    topic = f"acknowledged-{end}"
    client.create_producer(topic).send_batch(encode_batch([b"%d" % i for i in range(100)]))
    other = Client(service.service_url)
    consumer = earliest(other, topic)
    for _ in range(99):
        consumer.acknowledge(consumer.receive(30_000))
    (consumer if end == "consumer" else other).close()
    assert earliest(client, topic).receive(30_000).data() == b"99"
    other.close()


def test_acknowledgements_come_before_what_is_asked_next(client: Client):
    ids = [client.create_producer("ordered").send(b"%d" % i) for i in range(3)]
    consumer = earliest(client, "ordered")
    for _ in range(3):
        consumer.acknowledge(consumer.receive(30_000))
    assert consumer.get_mark_delete_position() == ids[2]
    consumer.seek(MessageId.earliest)
    assert consumer.receive(30_000).data() == b"0"


def test_many_messages_are_acknowledged_in_one_call(client: Client):
    ids = [client.create_producer("listed").send(b"%d" % i) for i in range(3)]
    consumer = earliest(client, "listed")
    consumer.acknowledge([consumer.receive(30_000), *ids[1:]])
    assert consumer.get_mark_delete_position() == ids[2]


def test_an_id_of_no_known_topic_is_refused_where_it_is_acknowledged(client: Client):
    consumer = client.subscribe(["known-1", "known-2"], "s")
    with pytest.raises(InvalidConfiguration, match="pass the Message"):
        consumer.acknowledge(MessageId(-1, 1, 5))


def test_not_acknowledged_in_time_is_delivered_again(client: Client):
    client.create_producer("late").send(b"x")
    consumer = earliest(client, "late", unacked_messages_timeout_ms=200)
    assert consumer.receive(30_000).message_id() == consumer.receive(5000).message_id()


def test_calls_on_a_closed_client_are_refused(service: Any):
    client = Client(service.service_url)
    producer, consumer = client.create_producer("closed"), client.subscribe("closed", "s")
    client.close()
    client.close()
    for refused in (
        lambda: client.create_producer("closed"),
        lambda: producer.send(b"x"),
        lambda: producer.send_async(b"x"),
        lambda: consumer.receive(1000),
        client.new_transaction,
    ):
        with pytest.raises(AlreadyClosed):
            refused()


def test_a_client_is_not_pickled_and_says_what_to_do(client: Client):
    with pytest.raises(TypeError, match="pass a service URL"):
        pickle.dumps(client)


def test_waiting_inside_a_callback_is_refused(client: Client):
    producer = client.create_producer("inside")
    refusals: list[Exception] = []

    def callback(*_: Any) -> None:
        try:
            producer.send(b"y")
        except ClientError as error:
            refusals.append(error)

    producer.send_async(b"x", callback)
    producer.flush()
    assert "send_async" in str(refusals[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_client_refuses_to_work_in_a_forked_process(client: Client):
    producer = client.create_producer("forked")
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work() -> None:
        try:
            producer.send_async(b"x")
        except ClientError as error:
            answers.put(str(error))

    process = context.Process(target=work)
    process.start()
    process.join(60)
    process.kill()
    assert not answers.empty()
    assert "does not survive a fork" in answers.get()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_waits_for_its_process_is_not_received_in_a_forked_one(client: Client):
    producer = client.create_producer("forked-queue", block_if_queue_full=True)
    consumer = earliest(client, "forked-queue")
    producer.send(b"a")
    producer.send(b"b")
    message = consumer.receive(30_000)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work() -> None:
        for call in (
            lambda: consumer.receive(100),
            lambda: consumer.acknowledge(message),
            lambda: producer.send_async(b"x"),
        ):
            try:
                call()
            except ClientError as error:
                answers.put(str(error))

    with consumer._queue._lock, producer._space._changed:  # type: ignore[union-attr]
        process = context.Process(target=work)
        process.start()
    process.join(60)
    process.kill()
    said = []
    while not answers.empty():
        said.append(answers.get())
    assert ["does not survive a fork" in each for each in said] == [True] * 3
    assert consumer.receive(30_000).data() == b"b"


def test_an_address_without_a_broker_is_named():
    with (
        Client("pulsar://127.0.0.1:1", operation_timeout_seconds=1) as client,
        pytest.raises(ConnectError, match=r"Cannot connect to pulsar://127\.0\.0\.1:1"),
    ):
        client.create_producer("t")
