"""`client.new_transaction(namespace=…)`: the broker adds what is touched in that namespace."""

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from scenario import assert_nothing_more, delete_topic, drain, subscribe

from pybroker.base import errors
from pybroker.base.names import TxnId
from pybroker.client import Client, InvalidTxnStatus, NotAllowed, TransactionConflict
from pybroker.testing import broker as running_broker
from pybroker.wire import pulsar_api_pb2 as pb

HERE = "public/default"


def participants(broker: Any, txn_id: TxnId) -> tuple[list[str], list[tuple[str, str]]]:
    async def look(running: Any) -> tuple[list[str], list[tuple[str, str]]]:
        found = running.coordinators.begun(txn_id)
        return list(found.partitions), list(found.subscriptions)

    return broker.call(look)  # type: ignore[no-any-return]


def test_what_it_touches_commits_as_one(
    client: Client, shared_broker: Any, topics: Callable[[int], list[str]]
) -> None:
    source, *targets = topics(4)
    client.create_producer(source).send(b"in")
    inputs, outputs = subscribe(client, source), [subscribe(client, each) for each in targets]
    message = inputs.receive()
    with client.new_transaction(namespace=HERE) as txn:
        for each in targets:
            client.create_producer(each).send(b"out", txn=txn)
        inputs.acknowledge(message, txn=txn)
        joined = participants(shared_broker, txn.txn_id)
        for output in outputs:
            assert_nothing_more(output)
    assert joined == (targets, [(source, "sub")])
    assert [drain(output, 1) for output in outputs] == [[b"out"]] * 3
    assert shared_broker.backlog(source, "sub") == 0


def test_an_exception_undoes_all_that_it_touched(
    client: Client, topics: Callable[[int], list[str]]
) -> None:
    source, target = topics(2)
    client.create_producer(source).send(b"in")
    inputs, output = subscribe(client, source), subscribe(client, target)
    message = inputs.receive()
    producer = client.create_producer(target)
    with pytest.raises(ZeroDivisionError), client.new_transaction(namespace=HERE) as txn:
        producer.send(b"never", txn=txn)
        inputs.acknowledge(message, txn=txn)
        raise ZeroDivisionError
    producer.send(b"plain")
    assert drain(output, 1) == [b"plain"]
    inputs.close()
    assert drain(subscribe(client, source), 1) == [b"in"]


def test_topics_of_another_namespace_are_added_as_ever(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    with client.new_transaction(namespace="public/another") as txn:
        client.create_producer(topic).send(b"a", txn=txn)
    assert drain(consumer, 1) == [b"a"]


def test_messages_of_many_producers_come_in_their_order(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producers = [client.create_producer(topic, batching_enabled=False) for _ in range(3)]
    with client.new_transaction(namespace=HERE) as txn:
        for number in range(30):
            producers[number % 3].send_async(b"%d" % number, txn=txn)
    got = [int(payload) for payload in drain(consumer, 30)]
    assert [[n for n in got if n % 3 == k] for k in range(3)] == [
        list(range(k, 30, 3)) for k in range(3)
    ]


def test_groups_span_a_namespace_too(client: Client, topic: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with client.new_transactions(2, namespace=HERE) as group:
        for txn in group:
            producer.send(b"a", txn=txn)
    assert drain(consumer, 2) == [b"a", b"a"]


def test_conflicts_are_told_as_ever(client: Client, topic: str) -> None:
    client.create_producer(topic).send(b"in")
    consumer = subscribe(client, topic)
    message = consumer.receive()
    with client.new_transaction(namespace=HERE) as txn:
        consumer.acknowledge(message, txn=txn)
        other = client.new_transaction(namespace=HERE)
        with pytest.raises(TransactionConflict):
            consumer.acknowledge(message, txn=other)
        other.abort()


def test_after_a_restart_it_still_takes_in_what_is_touched(topic: str) -> None:
    with running_broker() as broker, Client(broker.service_url) as client:
        consumer, producer = subscribe(client, topic), client.create_producer(topic)
        txn = client.new_transaction(namespace=HERE)
        producer.send(b"before", txn=txn)
        broker.kill_and_restart()
        other = client.create_producer(f"{topic}-other")
        other.send(b"after", txn=txn)
        txn.commit()
        assert drain(consumer, 1) == [b"before"]
        assert drain(subscribe(client, f"{topic}-other"), 1) == [b"after"]


def test_the_end_comes_behind_what_is_on_its_way(raw: RawClient, topic: str) -> None:
    """For a client that does not wait for receipts, each message is stored whole or refused."""
    raw.create_producer(topic)
    txn_id = raw.new_txn(spans_namespace=HERE)
    with raw.in_one_piece():
        raw.start_publish(b"a", 0, txn_id)
        raw.send_end(txn_id, commit=True)
    refused = raw.receive(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR)
    assert refused.error == errors.InvalidTxnStatus.code
    assert not raw.receive(pb.BaseCommand.END_TXN_RESPONSE).HasField("error")


def test_a_close_behind_messages_waits_for_them(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    txn_id = raw.new_txn(spans_namespace=HERE)
    with raw.in_one_piece():
        for number in range(3):
            raw.start_publish(b"a", number, txn_id)
        body = pb.CommandCloseProducer(producer_id=1)
        raw.start_request(pb.BaseCommand.CLOSE_PRODUCER, "close_producer", body)
    for _ in range(3):
        raw.receive(pb.BaseCommand.SEND_RECEIPT)
    raw.receive(pb.BaseCommand.SUCCESS)
    assert not raw.end(txn_id, commit=True).HasField("error")


def test_cumulative_acknowledgements_that_come_at_once_keep_their_order(
    raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic)
    for number in range(3):
        raw.publish(b"a", number)
    raw.subscribe(topic)
    raw.flow(3)
    messages = raw.messages(3)
    txn_id = raw.new_txn(spans_namespace=HERE)
    with raw.in_one_piece():
        for request_id, message in enumerate(messages, 100):
            body = pb.CommandAck(
                consumer_id=1,
                ack_type=pb.CommandAck.Cumulative,
                message_id=[message.message_id],
                txnid_most_bits=txn_id.most,
                txnid_least_bits=txn_id.least,
                request_id=request_id,
            )
            raw.send(pb.BaseCommand.ACK, "ack", body)
    for request_id in (100, 101, 102):
        assert not raw.answer_to(request_id).HasField("error")
    assert not raw.end(txn_id, commit=True).HasField("error")


@pytest.mark.parametrize("namespace", ["", "public", "public/default/x", "a/b c", "a" * 400 + "/b"])
def test_what_is_no_namespace_is_refused(raw: RawClient, namespace: str) -> None:
    answer = raw.try_new_txn(spans_namespace=namespace)
    assert answer.error == errors.NotAllowed.code
    assert "tenant/namespace" in answer.message


def test_the_python_client_hears_the_sentence(client: Client) -> None:
    with pytest.raises(NotAllowed, match="tenant/namespace"):
        client.new_transaction(namespace="public")


def test_without_it_what_was_not_added_is_refused(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    answer = raw.publish(b"a", 0, raw.new_txn())
    assert answer.error == errors.InvalidTxnStatus.code


def test_what_is_over_takes_nothing_in(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction(namespace=HERE)
    client.attach_transaction(txn.txn_id).abort()
    with pytest.raises(InvalidTxnStatus, match="ABORTED"):
        producer.send(b"late", txn=txn)


def test_a_topic_that_is_deleted_meanwhile_keeps_no_client(
    client: Client, shared_broker: Any, topic: str
) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction(namespace=HERE)
    producer.send(b"a", txn=txn)
    delete_topic(shared_broker, topic)
    txn.commit()


def test_all_that_it_touched_is_aborted_as_one_when_its_session_dies(
    client: Client, shared_broker: Any, topics: Callable[[int], list[str]]
) -> None:
    """Messages after it become readable at once, long before the timeout."""
    names = topics(2)
    consumers = [subscribe(client, name) for name in names]
    with Client(shared_broker.service_url) as dying:
        txn = dying.new_transaction(3_600_000, namespace=HERE, abort_on_disconnect=True)
        for name in names:
            dying.create_producer(name).send(b"never", txn=txn)
    for name, consumer in zip(names, consumers, strict=True):
        client.create_producer(name).send(b"plain")
        assert drain(consumer, 1) == [b"plain"]
