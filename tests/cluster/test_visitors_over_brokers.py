"""A visitor over HTTP or WebSocket may ask any broker: its client goes to the topic's and the
coordinator's.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rest import Rest
from two_brokers import PARTITIONS, TwoBrokers
from ws_client import WsClient

pytestmark = pytest.mark.slow  # two brokers for each test

TRANSACTIONS = "/admin/v3/transactions"
IN = "persistent/public/default"
SUBSCRIPTION = "/topics/persistent/public/default/orders/subscriptions/billing"


@pytest.fixture
def brokers() -> Iterator[TwoBrokers]:
    brokers = TwoBrokers(0)
    yield brokers
    brokers.cluster.close()


def post(rest: Rest, path: str, body: Any = None) -> Any:
    answer = rest.ask("POST", path, b"" if body is None else json.dumps(body).encode())
    assert answer.status in (200, 204), answer.body
    return json.loads(answer.body) if answer.body else None


def test_messages_of_all_brokers_are_received_from_any(brokers: TwoBrokers) -> None:
    earliest = {"subscriptionInitialPosition": "Earliest", "waitMs": 30_000}
    brokers.publish(2)
    found: list[str] = []
    while len(found) < 2 * PARTITIONS:
        rest = (brokers.rest, brokers.other_rest)[len(found) % 2]
        messages = post(rest, f"{SUBSCRIPTION}/receive", earliest)["messages"]
        got = [each["messageId"] for each in messages]
        post(rest, f"{SUBSCRIPTION}/acknowledge", {"messageIds": got})
        found += got
    assert len(set(found)) == 2 * PARTITIONS


def test_a_transaction_is_begun_and_ended_at_any_broker(brokers: TwoBrokers) -> None:
    for first, second in ((brokers.rest, brokers.other_rest), (brokers.other_rest, brokers.rest)):
        path = post(first, TRANSACTIONS)["path"]
        assert post(second, f"{path}/commit")["status"] == "COMMITTED"
        assert post(first, f"{path}/commit")["status"] == "COMMITTED"


def test_websockets_of_one_broker_serve_topics_of_the_other(brokers: TwoBrokers) -> None:
    topic = brokers.names[0]
    assert brokers.two is not brokers.owner(topic)

    async def at_the_wrong_broker() -> list[bytes]:
        path = str(topic).replace("://", "/")
        consumer = await WsClient.open(brokers.two, f"consumer/{path}/s")
        producer = await WsClient.open(brokers.two, f"producer/{path}")
        reader = await WsClient.open(brokers.two, f"reader/{path}?messageId=earliest")
        await producer.publish(b"1")
        return [await consumer.receive(), await reader.receive()]

    assert brokers.cluster.call(at_the_wrong_broker()) == [b"1", b"1"]


def test_a_websocket_s_transaction_has_topics_of_both_brokers(brokers: TwoBrokers) -> None:
    brokers.publish()
    brokers.rest.do("PUT", f"v2/{IN}/copies/partitions", b"%d" % PARTITIONS)
    earliest = "subscriptionInitialPosition=Earliest"

    async def copy(txn: str) -> None:
        orders = await WsClient.open(brokers.one, f"consumer/{IN}/orders/s?{earliest}")
        copies = await WsClient.open(brokers.two, f"producer/{IN}/copies")
        messages = [await orders.hear() for _ in range(PARTITIONS)]
        for each in messages:
            await copies.publish(b"copy", key=each["messageId"], txn=txn)
            orders.say(messageId=each["messageId"], txn=txn)
        answers = [await orders.hear() for _ in messages]
        assert {each["result"] for each in answers} == {"ok"}
        orders.close()

    async def read() -> list[bytes]:
        copies = await WsClient.open(brokers.one, f"consumer/{IN}/copies/s?{earliest}")
        return [await copies.receive() for _ in range(PARTITIONS)]

    txn = post(brokers.rest, TRANSACTIONS)
    brokers.cluster.call(copy(f"{txn['most']}:{txn['least']}"))
    post(brokers.other_rest, f"{txn['path']}/prepare")
    post(brokers.other_rest, f"{txn['path']}/commit")
    assert brokers.cluster.call(read()) == [b"copy"] * PARTITIONS
    stats = brokers.rest.get(f"v2/{IN}/orders/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
