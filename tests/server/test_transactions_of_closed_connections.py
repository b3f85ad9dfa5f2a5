"""A connection that closes aborts its open transactions, if their owner asked for that."""

from collections.abc import Iterator

import httpx
import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TxnId
from pybroker.client import Client, Consumer, InitialPosition
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"
OTHER = "persistent://public/other/t"
_T = pb.BaseCommand


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        httpx.put(f"{running.admin_url}/admin/v2/namespaces/public/other").raise_for_status()
        yield running


def begin(client: RawClient, asks: bool) -> TxnId:
    body = pb.CommandNewTxn(txn_ttl_millis=3_600_000, tc_id=0, abort_on_disconnect=asks)
    answer = client.request(_T.NEW_TXN, "newTxn", body)
    return TxnId(answer.txnid_most_bits, answer.txnid_least_bits)


def hold(raw: RawClient, txn_id: TxnId, topic: str) -> None:
    """Holds readers back from here on."""
    assert not raw.add_partition(txn_id, topic).HasField("error")
    raw.create_producer(topic)
    raw.publish(b"held", 0, txn_id=txn_id)


def waiting_behind(client: Client, topic: str) -> Consumer:
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    client.create_producer(topic).send(b"plain")
    return consumer


def takes_the_plain_one(consumer: Consumer) -> None:
    """Receives the plain message. It becomes visible only when the transaction before it ends."""
    message = consumer.receive(timeout_millis=30_000)
    assert message.data() == b"plain"
    consumer.acknowledge(message)


def test_an_open_transaction_that_asked_is_aborted_when_its_connection_closes(
    broker: RunningBroker,
) -> None:
    with Client(broker.service_url) as client, RawClient(broker.service_url) as other:
        with RawClient(broker.service_url) as raw:
            mine, also = begin(raw, asks=True), begin(raw, asks=False)
            hold(raw, mine, f"{TOPIC}-asked")
            consumer = waiting_behind(client, f"{TOPIC}-asked")
        takes_the_plain_one(consumer)
        refused = other.end(mine, commit=True)
        assert refused.error == pb.InvalidTxnStatus
        assert refused.message.endswith(
            "it was aborted because the connection that began it closed"
        )
        assert not other.end(also, commit=True).HasField("error")


def test_the_python_client_asks_for_it(broker: RunningBroker) -> None:
    topic = f"{TOPIC}-client"
    with Client(broker.service_url) as client:
        gone = Client(broker.service_url, enable_transaction=True)
        txn = gone.new_transaction(timeout_ms=3_600_000, abort_on_disconnect=True)
        gone.create_producer(topic).send(b"held", txn=txn)
        consumer = waiting_behind(client, topic)
        gone.close()
        takes_the_plain_one(consumer)


def test_each_transaction_of_a_group_that_asked_is_aborted(broker: RunningBroker) -> None:
    topics = [f"{TOPIC}-{name}" for name in ("debits", "credits")]
    with Client(broker.service_url) as client:
        gone = Client(broker.service_url, enable_transaction=True)
        group = gone.new_transactions(2, timeout_ms=3_600_000, abort_on_disconnect=True)
        for topic, txn in zip(topics, group, strict=True):
            gone.create_producer(topic).send(b"held", txn=txn)
        consumers = [waiting_behind(client, topic) for topic in topics]
        gone.close()
        for consumer in consumers:
            takes_the_plain_one(consumer)


def test_a_namespace_asks_for_the_transactions_in_it(broker: RunningBroker) -> None:
    url = f"{broker.admin_url}/admin/v2/namespaces/public/other/transactionLimits"
    httpx.post(url, json={"abortOnDisconnect": True}).raise_for_status()
    with Client(broker.service_url) as client, RawClient(broker.service_url) as other:
        with RawClient(broker.service_url) as raw:
            elsewhere, inside = begin(raw, asks=False), begin(raw, asks=False)
            raw.add_partition(elsewhere, TOPIC)
            hold(raw, inside, OTHER)
            consumer = waiting_behind(client, OTHER)
        takes_the_plain_one(consumer)
        assert not other.end(elsewhere, commit=True).HasField("error")
