"""Messages received over HTTP by long poll, and acknowledged there."""

import asyncio
import base64
import itertools
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from credentials import bearer
from described import check_described
from permission_world import SETTINGS, World
from ws_programs import payload_of

import pybroker.testing
from pybroker.client import Client, ConsumerType, InitialPosition
from pybroker.gateway import polls
from pybroker.gateway.receivers import IDLE_S
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_numbers = itertools.count(1)
IN = "persistent/public/default"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx.Client]:
    hooks = {"response": [check_described]}
    with httpx.Client(base_url=broker.admin_url, event_hooks=hooks, timeout=60) as client:
        yield client


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"t-{next(_numbers)}"


def path_of(topic: str, subscription: str = "s") -> str:
    return f"/topics/{IN}/{topic}/subscriptions/{subscription}"


def subscribed(api: httpx.Client, topic: str) -> None:
    for path in (topic, f"{topic}/subscription/s"):
        api.put(f"/admin/v2/{IN}/{path}").raise_for_status()


def receive(api: httpx.Client, topic: str, **wanted: Any) -> list[dict[str, Any]]:
    options = {"waitMs": 30_000, "subscriptionInitialPosition": "Earliest", **wanted}
    answer = api.post(f"{path_of(topic)}/receive", json=options)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [each["messageId"] for each in messages]


def acknowledge(api: httpx.Client, topic: str, messages: list[dict[str, Any]], **more: Any) -> None:
    answer = api.post(f"{path_of(topic)}/acknowledge", json={"messageIds": ids(messages), **more})
    assert answer.status_code == 204, answer.text


def send(client: Client, topic: str, *payloads: bytes) -> None:
    producer = client.create_producer(topic)
    for payload in payloads:
        producer.send(payload, partition_key="k")


def test_a_poll_returns_what_is_there(api: httpx.Client, client: Client, topic: str) -> None:
    send(client, topic, b"0", b"1", b"2")
    (message,) = receive(api, topic, maxMessages=1)
    assert (payload_of(message), message["key"], message["redeliveryCount"]) == (b"0", "k", 0)
    rest = receive(api, topic)
    while len(rest) < 2:
        rest += receive(api, topic)
    assert [payload_of(each) for each in rest] == [b"1", b"2"]
    acknowledge(api, topic, [message, *rest])
    assert receive(api, topic, waitMs=0) == []


def test_a_poll_waits_for_a_message(api: httpx.Client, client: Client, topic: str) -> None:
    assert receive(api, topic, waitMs=0) == []
    later = threading.Timer(0.05, send, (client, topic, b"x"))
    later.start()
    assert [payload_of(each) for each in receive(api, topic)] == [b"x"]
    later.join()


def test_what_is_not_acknowledged_in_time_comes_again(
    api: httpx.Client, broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, b"x", b"y")
    first = receive(api, topic, maxMessages=1, visibilityMs=5000)
    second = receive(api, topic, maxMessages=1, visibilityMs=60_000)
    assert receive(api, topic, waitMs=0) == []
    broker.clock.advance("6s")
    (again,) = receive(api, topic, visibilityMs=60_000)
    assert payload_of(again) == b"x"
    assert again["redeliveryCount"] in (1, 2)  # it may have waited here, and was given back
    assert ids([again]) == ids(first)
    acknowledge(api, topic, [again, *second])
    broker.clock.advance("61s")
    assert receive(api, topic, waitMs=0) == []


def test_what_is_given_back_comes_again_at_once(
    api: httpx.Client, client: Client, topic: str
) -> None:
    send(client, topic, b"x")
    found = receive(api, topic)
    answer = api.post(f"{path_of(topic)}/negativeAcknowledge", json={"messageIds": ids(found)})
    assert answer.status_code == 204
    (again,) = receive(api, topic)
    assert again["redeliveryCount"] == 1


def test_ending_gives_back_what_was_got(api: httpx.Client, client: Client, topic: str) -> None:
    send(client, topic, b"x")
    assert len(receive(api, topic)) == 1
    assert api.delete(f"{path_of(topic)}/receiver").status_code == 204
    other = client.subscribe(topic, "s", ConsumerType.Shared)
    assert other.receive(30_000).data() == b"x"


def test_messages_that_nobody_takes_go_to_other_consumers(
    api: httpx.Client, broker: RunningBroker, client: Client, topic: str
) -> None:
    assert receive(api, topic, waitMs=0) == []
    send(client, topic, b"0", b"1", b"2")
    (mine,) = receive(api, topic, maxMessages=1)
    other = client.subscribe(topic, "s", ConsumerType.Shared)
    broker.clock.advance("2s")
    assert {other.receive(30_000).data() for _ in range(2)} == {b"1", b"2"}
    acknowledge(api, topic, [mine])
    send(client, topic, b"3")
    other.close()
    while not (found := receive(api, topic)):
        pass
    assert payload_of(found[0]) in (b"1", b"2", b"3")  # and it goes on receiving


def test_an_id_is_acknowledged_after_the_receiver_is_gone(
    api: httpx.Client, broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, b"x", b"y")
    (x,) = receive(api, topic, maxMessages=1, visibilityMs=1000)
    api.delete(f"{path_of(topic)}/receiver")
    acknowledge(api, topic, [x])
    found = receive(api, topic)
    assert [payload_of(each) for each in found] == [b"y"]


@pytest.mark.parametrize("route", ["acknowledge", "negativeAcknowledge"])
def test_a_mistyped_name_creates_nothing(
    api: httpx.Client, client: Client, topic: str, route: str
) -> None:
    send(client, topic, b"x")
    named = {"messageIds": ids(receive(api, topic))}
    answer = api.post(f"{path_of(topic, 'typo')}/{route}", json=named)
    assert (answer.status_code, "has no subscription typo" in answer.text) == (404, True)
    assert list(api.get(f"/admin/v2/{IN}/{topic}/stats").json()["subscriptions"]) == ["s"]
    assert api.post(f"{path_of(topic + '-typo')}/{route}", json=named).status_code == 404
    assert api.get(f"/admin/v2/{IN}/{topic}-typo/stats").status_code == 404


def test_an_acknowledgement_takes_part_in_a_transaction(
    api: httpx.Client, client: Client, topic: str
) -> None:
    send(client, topic, b"x")
    found = receive(api, topic)
    for end in ("abort", "commit"):
        begun = api.post("/admin/v3/transactions").json()
        acknowledge(api, topic, found, txn=begun["txnId"])
        assert api.post(f"{begun['path']}/{end}").status_code == 200
    stats = api.get(f"/admin/v2/{IN}/{topic}/stats").json()
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    begun = api.post("/admin/v3/transactions").json()
    late = {"messageIds": ids(found), "txn": begun["txnId"]}
    assert api.post(f"{path_of(topic)}/acknowledge", json=late).status_code == 409


def test_large_messages_end_a_poll(api: httpx.Client, client: Client, topic: str) -> None:
    send(client, topic, *(bytes([number]) * 700_000 for number in range(4)))
    found = receive(api, topic)
    assert 1 <= len(found) <= 2
    while len(found) < 4:
        found += receive(api, topic)
    assert [len(payload_of(each)) for each in found] == [700_000] * 4


def test_partitions_are_received_together(api: httpx.Client, client: Client, topic: str) -> None:
    assert api.put(f"/admin/v2/{IN}/{topic}/partitions", json=3).status_code == 204
    producer = client.create_producer(topic)
    for number in range(9):
        producer.send(b"%d" % number, partition_key=str(number))
    found: list[dict[str, Any]] = []
    while len(found) < 9:
        some = receive(api, topic)
        acknowledge(api, topic, some)
        found += some
    assert {payload_of(each) for each in found} == {b"%d" % number for number in range(9)}
    assert receive(api, topic, waitMs=0) == []


def test_a_poller_that_hangs_up_has_got_nothing(
    api: httpx.Client, broker: RunningBroker, client: Client, topic: str
) -> None:
    assert receive(api, topic, waitMs=0) == []
    url = urlsplit(broker.admin_url)
    with socket.create_connection((url.hostname, url.port)) as poller:
        body = b'{"waitMs": 30000}'
        poller.sendall(
            f"POST {path_of(topic)}/receive HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        while not broker.call(waiting_polls):
            pass
    while broker.call(waiting_polls):
        pass
    send(client, topic, b"x")
    (message,) = receive(api, topic)
    assert payload_of(message) == b"x"


async def waiting_polls(running: Any) -> int:
    return len((await running._inside.gateway()).receivers.polls._waiting)


def test_when_too_many_wait_the_oldest_of_the_busiest_machine_is_answered() -> None:
    async def outcome() -> tuple[list[str], int]:
        waiting, ended = polls.Polls(), list[str]()

        async def poll(address: str) -> None:
            try:
                async with asyncio.timeout(60) as limit:
                    with waiting.waiting(address, limit):
                        await asyncio.get_running_loop().create_future()
            except TimeoutError:
                ended.append(address)

        busy = [asyncio.ensure_future(poll("10.0.0.1")) for _ in range(polls.MOST - 1)]
        rare = asyncio.ensure_future(poll("10.0.0.2"))
        await asyncio.sleep(0)
        more = [asyncio.ensure_future(poll("10.0.0.3")) for _ in range(2)]
        await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(busy[1:], return_when=asyncio.FIRST_COMPLETED)
        done = sum(each.done() for each in busy)
        assert not rare.done()
        for each in (*busy, rare, *more):
            each.cancel()
        await asyncio.gather(*busy, rare, *more, return_exceptions=True)
        return ended, done

    assert asyncio.run(outcome()) == (["10.0.0.1", "10.0.0.1"], 2)


def test_an_idle_receiver_leaves_nothing_behind(
    api: httpx.Client, broker: RunningBroker, topic: str
) -> None:
    assert receive(api, topic, waitMs=0) == []
    broker.clock.advance(f"{2 * IDLE_S:.0f}s")
    stats = api.get(f"/admin/v2/{IN}/{topic}/stats").json()
    assert stats["subscriptions"]["s"]["consumers"] == []


def test_null_is_the_usual(api: httpx.Client, client: Client, topic: str) -> None:
    names = ("maxMessages", "maxBytes", "waitMs", "visibilityMs", "subscriptionType")
    wanted = dict.fromkeys(names)
    send(client, topic, b"x")
    found = receive(api, topic, **wanted)
    acknowledge(api, topic, found, subscriptionType=None, txn=None)
    assert [payload_of(each) for each in found] == [b"x"]


@pytest.mark.parametrize(
    "body",
    [
        {"maxMessages": 0},
        {"maxMessages": 1001},
        {"waitMs": 30_001},
        {"waitMs": "long"},
        {"visibilityMs": 10},
        {"subscriptionType": "shared"},
        [],
    ],
)
def test_a_poll_beyond_the_limits_is_refused(api: httpx.Client, topic: str, body: Any) -> None:
    assert api.post(f"{path_of(topic)}/receive", json=body).status_code == 400


def made_up(**fields: int) -> str:
    return base64.b64encode(pb.MessageIdData(**fields).SerializeToString()).decode()


@pytest.mark.parametrize(
    "message_id",
    [
        "",
        "x",
        "****",
        "CAAQ",
        "AAAA" * 100,
        made_up(ledgerId=2**64 - 1, entryId=2**64 - 1),
        made_up(ledgerId=0, entryId=2**64 - 1),
        made_up(ledgerId=0, entryId=0, batch_index=0, batch_size=2**31 - 1),
        made_up(ledgerId=0, entryId=0, batch_index=2**31 - 1, batch_size=2),
    ],
)
def test_what_is_no_id_is_refused(api: httpx.Client, topic: str, message_id: str) -> None:
    subscribed(api, topic)
    body = {"messageIds": [message_id]}
    assert api.post(f"{path_of(topic)}/acknowledge", json=body).status_code == 400


def test_ids_of_large_batches_that_somebody_made_up_hold_up_nobody(
    api: httpx.Client, topic: str
) -> None:
    subscribed(api, topic)
    many = [
        made_up(ledgerId=0, entryId=entry, batch_index=0, batch_size=1_000_000)
        for entry in range(1000)
    ]
    assert api.post(f"{path_of(topic)}/acknowledge", json={"messageIds": many}).status_code == 400
    assert api.post(f"{path_of(topic)}/acknowledge", json={"messageIds": many[:10]}).is_success
    assert api.get("/admin/v2/brokers/health").is_success


def test_an_exclusive_subscription_in_use_is_busy(
    api: httpx.Client, client: Client, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    answer = api.post(f"{path_of(topic)}/receive", json={"subscriptionType": "Exclusive"})
    assert answer.status_code == 409


# -- who may


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        yield running


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Key_Shared"])
def test_whoever_acknowledges_need_not_say_the_type_again(
    api: httpx.Client, client: Client, topic: str, kind: str
) -> None:
    send(client, topic, b"0", b"1")
    first, second = receive(api, topic, subscriptionType=kind, maxMessages=2)
    acknowledge(api, topic, [first])
    given = api.post(f"{path_of(topic)}/negativeAcknowledge", json={"messageIds": ids([second])})
    assert given.status_code == 204, given.text
    (again,) = receive(api, topic, subscriptionType=kind)
    assert payload_of(again) == b"1"
    acknowledge(api, topic, [again], subscriptionType=kind)


def test_receiving_needs_the_permission_to_consume(guarded: RunningBroker) -> None:
    world = World(guarded)
    world.admin("PUT", world.on_topic())
    world.grant("writer", "produce")
    world.grant("reader", "consume")
    path = f"{guarded.admin_url}/topics/persistent/{world.namespace}/t/subscriptions/s"
    for what, body in (
        ("receive", {"waitMs": 0}),
        ("acknowledge", {"messageIds": []}),
        ("negativeAcknowledge", {"messageIds": []}),
    ):
        assert httpx.post(f"{path}/{what}", json=body).status_code == 401
        refused = httpx.post(f"{path}/{what}", json=body, headers=bearer("writer"))
        assert refused.status_code == 401
        done = httpx.post(f"{path}/{what}", json=body, headers=bearer("reader"))
        assert done.status_code in (200, 204)


def test_roles_do_not_share_a_receiver(guarded: RunningBroker) -> None:
    world = World(guarded)
    world.admin("PUT", world.on_topic())
    for role in ("one", "two"):
        world.grant(role, "consume")
    with world.client("admin") as client:
        client.create_producer(world.topic).send(b"x")
    path = f"{guarded.admin_url}/topics/persistent/{world.namespace}/t/subscriptions/s"
    body = {"subscriptionInitialPosition": "Earliest", "waitMs": 30_000}
    found = httpx.post(f"{path}/receive", json=body, headers=bearer("one"), timeout=60)
    assert len(found.json()["messages"]) == 1
    assert httpx.delete(f"{path}/receiver", headers=bearer("two")).status_code == 204
    again = httpx.post(f"{path}/receive", json={"waitMs": 0}, headers=bearer("two"))
    assert again.json()["messages"] == []
