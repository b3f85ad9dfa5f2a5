"""The policy transactionCoordinators binds a namespace's transactions to some coordinators."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from raw_client import RawClient

from pybroker.client import Client, NotAllowed
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

BOUND = "transactionCoordinators"


@pytest.fixture
def raw(admin_broker: RunningBroker) -> Iterator[RawClient]:
    with RawClient(admin_broker.service_url) as client:
        yield client


class Policies:
    """Policies of a namespace."""

    def __init__(self, admin: httpx.Client, topic: str) -> None:
        self._admin = admin
        self.topic = f"persistent://{topic}"
        self.namespace = topic.rpartition("/")[0]
        self.path = f"/admin/v2/namespaces/{self.namespace}/{BOUND}"

    def bind(self, *coordinators: int) -> None:
        assert self._admin.post(self.path, json=list(coordinators)).status_code == 204

    def release(self) -> None:
        assert self._admin.delete(self.path).status_code == 204


@pytest.fixture
def policies(admin: httpx.Client, topic: str) -> Policies:
    return Policies(admin, topic)


@pytest.fixture
def bound(policies: Policies) -> str:
    """The namespace, bound to coordinators 1 and 3."""
    policies.bind(1, 3)
    return policies.namespace


def refused(answer: Any, text: str) -> None:
    assert (answer.error, text in answer.message) == (pb.NotAllowedError, True), answer


def test_transactions_of_others_add_nothing_there(
    raw: RawClient, policies: Policies, bound: str
) -> None:
    own, other = raw.new_txn(tc_id=3), raw.new_txn(tc_id=0)
    topic = policies.topic
    assert not raw.add_partition(own, topic).HasField("error")
    assert not raw.add_subscription(own, topic, "sub").HasField("error")
    why = f"coordinator 0 cannot take part in {bound}; its policy transactionCoordinators"
    refused(raw.add_partition(other, topic), why)
    refused(raw.add_subscription(other, topic, "sub"), why)
    policies.release()
    assert not raw.add_partition(other, topic).HasField("error")


def test_what_takes_part_already_does_so_to_the_end(raw: RawClient, policies: Policies) -> None:
    raw.create_producer(policies.topic)
    txn_id = raw.new_txn(tc_id=0)
    raw.add_partition(txn_id, policies.topic)
    policies.bind(1)
    assert isinstance(raw.publish(b"a", 0, txn_id), pb.CommandSendReceipt)
    assert not raw.end(txn_id, commit=True).HasField("error")


def test_one_that_spans_the_namespace_begins_where_it_may(raw: RawClient, bound: str) -> None:
    answer = raw.try_new_txn(tc_id=0, spans_namespace=bound)
    refused(answer, f"new_transaction(namespace='{bound}')")
    assert list(answer.allowed_coordinators) == [1, 3]
    assert raw.new_txn(tc_id=1, spans_namespace=bound).most == 1


def test_what_is_bound_meanwhile_is_not_taken_in(raw: RawClient, policies: Policies) -> None:
    raw.create_producer(policies.topic)
    raw.publish(b"a", 0)
    raw.subscribe(policies.topic)
    raw.flow(1)
    (message,) = raw.messages(1)
    txn_id = raw.new_txn(tc_id=0, spans_namespace=policies.namespace)
    policies.bind(1)
    refused(raw.publish(b"b", 1, txn_id), "allows only 1")
    ack = pb.CommandAck(
        consumer_id=1,
        ack_type=pb.CommandAck.Individual,
        message_id=[message.message_id],
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        request_id=99,
    )
    raw.send(pb.BaseCommand.ACK, "ack", ack)
    refused(raw.answer_to(99), "allows only 1")


def test_the_python_client_picks_one_that_may(
    admin_broker: Any, policies: Policies, bound: str
) -> None:
    with Client(admin_broker.service_url) as client:
        producer = client.create_producer(policies.topic)
        begun = [client.new_transaction(namespace=bound) for _ in range(20)]
        for txn in begun:
            producer.send(b"a", txn=txn)
            txn.commit()
        assert {txn.txn_id.most for txn in begun} <= {1, 3}
        policies.bind(2)
        assert client.new_transaction(namespace=bound).txn_id.most == 2
        with pytest.raises(NotAllowed, match="allows only 2"):
            client.new_transaction(namespace=bound, beside=begun[0].txn_id)
        with client.new_transactions(2, namespace=bound) as group:
            assert {txn.txn_id.most for txn in group} == {2}


@pytest.mark.parametrize(
    ("value", "status"), [([-1], 412), (["one"], 400), (1, 400), ([0] * 1001, 400)]
)
def test_what_is_no_list_of_coordinators_is_refused(
    admin: httpx.Client, policies: Policies, value: Any, status: int
) -> None:
    path = policies.path
    assert admin.post(path, json=value).status_code == status
    assert admin.get(path).json() == []
    assert admin.post(path, json=[7, 7, 8]).status_code == 204
    assert admin.get(path).json() == [7, 8]
    assert admin.post(path, json=[]).status_code == 204  # any coordinator
    assert admin.get(path).json() == []
