"""A prepared transaction on a scalable topic, whose segments are split before and after PREPARE."""

from collections.abc import Iterator

import httpx
import pytest

import pybroker.testing
from pybroker.client import Client, MessageId
from pybroker.testing import RunningBroker

ORDERS = "topic://public/default/orders"
KEYS = [f"k{number}" for number in range(12)]  # of all parts of the range


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


class Scalable:
    """The topic over HTTP, which follows a broker that was started again."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self._ask("PUT")

    def _ask(self, method: str, path: str = "") -> httpx.Response:
        url = f"{self._broker.admin_url}/admin/v2/scalable/public/default/orders{path}"
        answer = httpx.request(method, url, follow_redirects=True, timeout=60)
        assert answer.is_success, answer.text
        return answer

    def segments(self) -> dict[int, str]:
        """The topics of the segments, by number."""
        found = {}
        for number, each in self._ask("GET").json()["segments"].items():
            start, end = each["hashRange"]["start"], each["hashRange"]["end"]
            found[int(number)] = f"segment://public/default/orders/{start:04x}-{end:04x}-{number}"
        return found

    def split(self, number: int) -> None:
        self._ask("POST", f"/split/{number}")


def read(client: Client, topic: str) -> list[bytes]:
    """What is visible in one segment."""
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next().data())
    reader.close()
    return found


def read_all(client: Client, topic: Scalable) -> list[bytes]:
    return sorted(found for each in topic.segments().values() for found in read(client, each))


@pytest.mark.slow
@pytest.mark.parametrize(("commits", "killed"), [(True, True), (True, False), (False, True)])
def test_it_is_one_over_all_segments(broker: RunningBroker, commits: bool, killed: bool) -> None:
    topic = Scalable(broker)
    with Client(broker.service_url, enable_transaction=True) as client:
        producer, txn = client.create_producer(ORDERS), client.new_transaction()
        for key in KEYS:
            producer.send(b"1 " + key.encode(), partition_key=key, txn=txn)
        topic.split(0)
        for key in KEYS:
            producer.send(b"2 " + key.encode(), partition_key=key, txn=txn)
        txn.prepare("shop")
        topic.split(1)
        plain = client.create_producer(ORDERS)
        for key in KEYS:
            plain.send(b"3 " + key.encode(), partition_key=key)
        if killed:
            broker.kill_and_restart()
        assert len(topic.segments()) == 5
        before = read_all(client, topic)
        assert not [each for each in before if each[:1] in b"12"]
        (left,) = client.prepared_transactions("shop")
        again = client.attach_transaction(left.txn_id)
        again.commit() if commits else again.abort()
        rounds = b"123" if commits else b"3"
        expected = [b"%c %b" % (number, key.encode()) for number in rounds for key in KEYS]
        assert read_all(client, topic) == sorted(expected)
