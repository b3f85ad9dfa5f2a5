"""The effect of each action at a step, as a client sees it."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from raw_client import RawClient, Refused

import pybroker.testing
from pybroker.client import Client, InitialPosition, Timeout
from pybroker.testing import RunningBroker
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb

LONG_MS = 30_000
_T = pb.BaseCommand


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(faults=True) as running:
        yield running


@pytest.fixture(autouse=True)
def no_rules(broker: RunningBroker) -> Iterator[None]:
    yield
    broker.faults.clear()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"persistent://public/default/{request.node.name}"


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as connected:
        yield connected


@pytest.fixture
def raw(broker: RunningBroker) -> Iterator[RawClient]:
    with RawClient(broker.service_url) as connected:
        yield connected


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def subscribed(client: Client, topic: str) -> Any:
    return client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)


def receipts_before_pong(raw: RawClient) -> int:
    return raw.kinds_before_pong().count(_T.SEND_RECEIPT)


def test_a_dropped_send_is_not_stored_and_its_connection_stays(
    broker: RunningBroker, raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic)
    broker.faults.inject("publish.before_append", "drop", topic=topic, once=True)
    raw.start_publish(b"lost", 0)
    raw.publish(b"stored", 1)
    assert raw.receive_entry(topic).endswith(b"stored")


def test_a_dropped_receipt_is_that_of_a_stored_message(
    broker: RunningBroker, raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic)
    dropped = broker.faults.inject("publish.before_receipt", "drop", topic=topic, once=True)
    raw.start_publish(b"stored", 0)
    dropped.wait_for_hit()
    assert raw.publish(b"next", 1).sequence_id == 1
    assert raw.receive_entry(topic).endswith(b"stored")


@pytest.mark.parametrize("point", ["publish.before_append", "publish.before_receipt"])
def test_a_failed_send_is_answered_with_the_error_in_order(
    broker: RunningBroker, raw: RawClient, topic: str, point: str
) -> None:
    raw.create_producer(topic)
    broker.faults.inject(
        point, "fail", topic=topic, after=1, once=True, error="TopicTerminatedError", message="so"
    )
    for sequence_id in range(3):
        raw.start_publish(b"%d" % sequence_id, sequence_id)
    answers = [raw.receive(_T.SEND_RECEIPT, _T.SEND_ERROR) for _ in range(3)]
    assert [answer.sequence_id for answer in answers] == [0, 1, 2]
    assert (answers[1].error, answers[1].message) == (pb.TopicTerminatedError, "so")


def test_receipts_wait_behind_one_that_is_held(
    broker: RunningBroker, raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic)
    hold = broker.faults.inject("publish.after_append", "hold", topic=topic, once=True)
    for sequence_id in range(3):
        raw.start_publish(b"%d" % sequence_id, sequence_id)
    hold.wait_for_hit()
    assert receipts_before_pong(raw) == 0
    hold.release()
    found = [raw.receive(_T.SEND_RECEIPT).sequence_id for _ in range(3)]
    assert found == [0, 1, 2]


@pytest.mark.parametrize("point", ["publish.before_append", "lookup.after", "subscribe.before"])
def test_a_cut_closes_the_connection(
    broker: RunningBroker, raw: RawClient, topic: str, point: str
) -> None:
    raw.create_producer(topic)
    cut = broker.faults.inject(point, "cut", topic=topic, once=True)
    if point.startswith("publish"):
        raw.start_publish(b"lost", 0)
    elif point.startswith("lookup"):
        lookup = pb.CommandLookupTopic(topic=topic)
        raw.start_request(_T.LOOKUP, "lookupTopic", lookup)
    else:
        raw.start_subscribe(topic)
    raw.wait_closed()
    assert cut.hits == 1


def test_a_client_comes_back_from_a_cut_at_any_of_its_first_steps(
    broker: RunningBroker, topic: str
) -> None:
    steps = ("connect", "lookup", "lookup.partitions", "producer.open", "subscribe")
    cuts = [
        broker.faults.inject(f"{step}.{side}", "cut", once=True)
        for step in steps
        for side in ("before", "after")
    ]
    with Client(broker.service_url) as client:
        consumer = subscribed(client, topic)
        client.create_producer(topic).send(b"there")
        assert consumer.receive(LONG_MS).data() == b"there"
    assert [cut.hits for cut in cuts] == [1] * len(cuts)


def test_a_refused_connect_says_why(broker: RunningBroker) -> None:
    broker.faults.inject("connect.before", "fail", error="AuthenticationError", message="closed")
    with pytest.raises(Refused, match="closed"):
        RawClient(broker.service_url)


def test_a_delay_passes_with_the_brokers_clock(
    broker: RunningBroker, client: Client, threads: ThreadPoolExecutor, topic: str
) -> None:
    delay = broker.faults.inject("subscribe.before", "delay", topic=topic, seconds=3600, once=True)
    subscribing = threads.submit(subscribed, client, topic)
    delay.wait_for_hit()
    assert not subscribing.done()
    broker.clock.advance("1h")
    subscribing.result(30)


def test_a_hold_lasts_though_the_clock_moves(
    broker: RunningBroker, client: Client, threads: ThreadPoolExecutor, topic: str
) -> None:
    hold = broker.faults.inject("subscribe.before", "hold", topic=topic, once=True)
    subscribing = threads.submit(subscribed, client, topic)
    hold.wait_for_hit()
    broker.clock.advance("10m")
    assert hold.holding == 1 and not subscribing.done()
    hold.release()
    subscribing.result(30)


def test_a_hold_ends_at_its_limit(broker: RunningBroker, client: Client, topic: str) -> None:
    hold = broker.faults.inject("subscribe.before", "hold", topic=topic, seconds=0.05)
    subscribed(client, topic)
    assert (hold.hits, hold.holding) == (1, 0)


def test_a_message_dropped_on_delivery_comes_again_after_a_reconnect(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    broker.faults.inject("deliver.before", "drop", topic=topic, once=True)
    consumer, producer = subscribed(client, topic), client.create_producer(topic)
    producer.send(b"1")
    producer.send(b"2")
    assert consumer.receive(LONG_MS).data() == b"2"
    consumer.close()
    assert subscribed(client, topic).receive(LONG_MS).data() == b"1"


def test_deliveries_wait_behind_one_that_is_held(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    hold = broker.faults.inject("deliver.before", "hold", topic=topic, once=True)
    consumer, producer = subscribed(client, topic), client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    hold.wait_for_hit()
    with pytest.raises(Timeout):
        consumer.receive(100)
    hold.remove()
    assert [consumer.receive(LONG_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_held_acknowledgement_holds_those_behind_it_and_nothing_else(
    broker: RunningBroker, raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic)
    raw.publish(b"1", 0)
    raw.publish(b"2", 1)
    raw.subscribe(topic)
    raw.flow(10)
    first, second = (message.message_id for message in raw.messages(2))
    hold = broker.faults.inject("acknowledge.before", "hold", topic=topic, once=True)
    asked = [
        raw.start_request(
            _T.ACK, "ack", pb.CommandAck(consumer_id=1, ack_type=0, message_id=[each])
        )
        for each in (first, second)
    ]
    hold.wait_for_hit()
    assert broker.backlog(topic, "raw") == 2
    assert raw.publish(b"3", 2).sequence_id == 2
    hold.release()
    assert [raw.answer_to(each).request_id for each in asked] == asked
    assert broker.backlog(topic, "raw") == 1


def test_one_participant_follows_while_the_other_is_held(
    broker: RunningBroker, client: Client, threads: ThreadPoolExecutor, topic: str
) -> None:
    left, right = f"{topic}-left", f"{topic}-right"
    readers = [subscribed(client, each) for each in (left, right)]
    txn = client.new_transaction()
    for each in (left, right):
        client.create_producer(each).send(b"both", txn=txn)
    hold = broker.faults.inject("transaction.marker.before", "hold", topic=right)
    committing = threads.submit(txn.commit)
    hold.wait_for_hit()
    assert readers[0].receive(LONG_MS).data() == b"both"
    with pytest.raises(Timeout):
        readers[1].receive(100)
    assert not committing.done()
    hold.remove()
    committing.result(30)
    assert readers[1].receive(LONG_MS).data() == b"both"


def test_other_transactions_go_on_while_the_decision_of_one_is_held(
    broker: RunningBroker, raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic)
    held, other = raw.new_txn(), raw.new_txn()
    hold = broker.faults.inject("transaction.decided.before", "hold", transaction=held)
    raw.send_end(held, commit=True)
    hold.wait_for_hit()
    assert not raw.end(other, commit=True).HasField("error")
    hold.release()
    answer = raw.receive(_T.END_TXN_RESPONSE)
    assert answer.txnid_least_bits == held.least and not answer.HasField("error")


@pytest.mark.parametrize("point", ["transaction.marker.before", "transaction.marker.after"])
def test_a_participant_that_fails_is_told_again(
    broker: RunningBroker, client: Client, topic: str, point: str
) -> None:
    reader = subscribed(client, topic)
    fails = broker.faults.inject(point, "fail", topic=topic, times=2)
    with client.new_transaction() as txn:
        client.create_producer(topic).send(b"once", txn=txn)
    assert reader.receive(LONG_MS).data() == b"once"
    assert fails.hits == 2
    with pytest.raises(Timeout):
        reader.receive(100)


@pytest.mark.parametrize("part", ["topic", "subscription"])
def test_what_is_decided_but_not_durably_ends_nowhere(
    broker: RunningBroker, raw: RawClient, topic: str, part: str
) -> None:
    """Even a peer that acts as a broker cannot get a marker written before its decision."""
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    raw.publish(b"in", 0, txn_id)
    hold = broker.faults.inject("transaction.decided.before", "hold", once=True)
    raw.send_end(txn_id, commit=True)
    hold.wait_for_hit()
    ids = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}
    body: Any
    if part == "topic":
        body = pb.CommandEndTxnOnPartition(**ids, topic=topic, txn_action=pb.COMMIT)
        answer = raw.request(_T.END_TXN_ON_PARTITION, "endTxnOnPartition", body)
    else:
        subscription = pb.Subscription(topic=topic, subscription="sub")
        body = pb.CommandEndTxnOnSubscription(
            **ids, subscription=subscription, txn_action=pb.COMMIT
        )
        answer = raw.request(_T.END_TXN_ON_SUBSCRIPTION, "endTxnOnSubscription", body)
    assert (answer.error, "not durable" in answer.message) == (pb.ServiceNotReady, True)
    asked = pb.CommandAskTransaction(**ids)
    answer = raw.request(_T.ASK_TRANSACTION, "askTransaction", asked)
    assert (answer.error, "not durable" in answer.message) == (pb.ServiceNotReady, True)
    hold.release()
    assert not raw.receive(_T.END_TXN_RESPONSE).HasField("error")
    answer = raw.request(_T.ASK_TRANSACTION, "askTransaction", asked)
    assert answer.status == TxnStatus.COMMITTED


def test_a_coordinator_whose_log_fails_is_reopened(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    reader = subscribed(client, topic)
    fails = broker.faults.inject("transaction.decided.before", "fail", once=True)
    txn = client.new_transaction()
    client.create_producer(topic).send(b"once", txn=txn)
    txn.commit()  # the client repeats the request
    assert reader.receive(LONG_MS).data() == b"once"
    assert fails.hits == 1


def test_an_asynchronous_pipeline_survives_a_cut_at_every_third_receipt(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    reader, producer = subscribed(client, topic), client.create_producer(topic)
    broker.faults.inject("publish.before_receipt", "cut", topic=topic, every=3, times=5)
    sent = threading.Semaphore(0)
    for number in range(20):
        producer.send_async(b"%d" % number, lambda *_: sent.release())
    for _ in range(20):
        assert sent.acquire(timeout=60)
    seen: list[bytes] = []
    while len(set(seen)) < 20:
        seen.append(reader.receive(LONG_MS).data())
    firsts = list(dict.fromkeys(seen))
    assert firsts == [b"%d" % number for number in range(20)]
