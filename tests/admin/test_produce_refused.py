"""Messages over HTTP that are refused: for their content, their topic, or their sender."""

import asyncio
import gc
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from credentials import bearer
from described import check_described
from permission_world import SETTINGS, World
from posting import P, codes, post, publishers, received, schema, sent, set_policy
from raw_client import RawClient

import pybroker.testing
from pybroker.admin.routes import produce
from pybroker.base.errors import NotAllowed
from pybroker.client import Client
from pybroker.server.local.connection import PUBLISH_TIMEOUT_S, LocalConnections
from pybroker.testing import RunningBroker


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[]", 400),
        (b'{"messages": {}}', 400),
        (b'{"valueSchema": 5, "messages": []}', 400),
        (b'{"schemaVersion": -2, "messages": []}', 400),
        (b'{"messages": [' + b"1," * 1000 + b"1]}", 400),
        (b'{"messages": [{"payload": "' + b"x" * 1024 * 1024 + b'"}]}', 413),
    ],
    ids=["no JSON", "nothing", "list", "object", "number", "version", "too many", "too large"],
)
def test_a_body_that_is_not_as_it_should_be_is_refused(
    admin: httpx.Client, topic: str, body: bytes, status: int
) -> None:
    answer = admin.post(f"/topics/persistent/{topic}", content=body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "bad",
    [1, {}, {"payload": None}, {"payload": 1}, {"payload": "p", "key": 1},
     {"payload": "p", "properties": {"a": 1}}, {"payload": "p", "eventTime": "yesterday"},
     {"payload": "p", "eventTime": -1}, {"payload": "p", "sequenceId": -1},
     {"payload": "p", "sequenceId": 2**63}, {"payload": "p", "deliverAt": 2**64},
     {"payload": "p", "eventTime": "9" * 30}],
    ids=str,
)  # fmt: skip
def test_a_message_that_is_not_as_it_should_be_fails_alone(
    admin: httpx.Client, client: Client, topic: str, bad: Any
) -> None:
    results = sent(admin, topic, {"payload": "a"}, bad, {"payload": "b"})
    assert codes(results) == [0, 2, 0]
    assert results[1]["errorMsg"]
    assert "messageId" not in results[1]
    assert [message.data() for message in received(client, topic, 2)] == [b"a", b"b"]


def test_a_topic_that_is_not_there_is_not_made(admin: httpx.Client, namespace: str) -> None:
    assert post(admin, f"{namespace}/none", {"payload": "p"}).status_code == 404
    assert admin.get(f"{P}/{namespace}").json() == []


def test_a_message_that_is_too_large_for_its_topic_fails_alone(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    answer = admin.post(f"{P}/{topic}/maxMessageSize", json=1000)
    assert answer.status_code == 204, answer.text
    results = sent(admin, topic, {"payload": "x" * 2000}, {"payload": "small"})
    assert codes(results) == [2, 0]
    assert "allows 1000 bytes in an entry" in results[0]["errorMsg"]


def test_a_terminated_topic_takes_nothing(admin: httpx.Client, topic: str) -> None:
    admin.post(f"{P}/{topic}/terminate")
    answer = post(admin, topic, {"payload": "p"})
    assert answer.status_code == 405
    assert "terminated" in answer.json()["reason"]


def test_a_full_backlog_takes_nothing(admin: httpx.Client, topic: str) -> None:
    admin.put(f"{P}/{topic}/subscription/slow", json="earliest")
    sent(admin, topic, {"payload": "x" * 2000})
    quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    assert admin.post(f"{P}/{topic}/backlogQuota", json=quota).status_code == 204
    answer = post(admin, topic, {"payload": "p"})
    assert answer.status_code == 412, answer.text


def test_where_encryption_is_required_nothing_is_published(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    set_policy(admin, namespace, "encryptionRequired", True)
    answer = post(admin, topic, {"payload": "p"})
    assert (answer.status_code, "Encryption" in answer.text) == (405, True)


def test_a_producer_of_the_same_name_keeps_it(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{topic}", producer_name="mine")
        answer = post(admin, topic, {"payload": "p"}, producerName="mine")
        assert answer.status_code == 409
        assert [each["producerName"] for each in publishers(admin, topic)] == ["mine"]
    sent(admin, topic, {"payload": "p"}, producerName="other")


def test_deduplication_goes_by_name_and_sequence_id(
    admin: httpx.Client, client: Client, namespace: str, topic: str
) -> None:
    set_policy(admin, namespace, "deduplication", True)
    first = {"payload": "a", "sequenceId": 5}
    sent(admin, topic, first, producerName="gate")
    again = sent(admin, topic, first, {"payload": "b"}, producerName="gate")
    assert again[0]["messageId"] == "-1:-1:-1"
    assert codes(again) == [0, 0]
    for text in "cd":
        sent(admin, topic, {"payload": text})
    found = [message.data() for message in received(client, topic, 4)]
    assert found == [b"a", b"b", b"c", b"d"]


def test_the_highest_sequence_id_leaves_room_for_those_behind_it(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    set_policy(admin, namespace, "deduplication", True)
    highest = {"payload": "a", "sequenceId": 2**63 - 1001}
    too_high = {"payload": "b", "sequenceId": 2**63 - 1000}
    results = sent(admin, topic, highest, too_high, {"payload": "c"}, producerName="gate")
    assert codes(results) == [0, 2, 0]
    assert codes(sent(admin, topic, {"payload": "d"}, producerName="gate")) == [0]


def test_names_that_the_broker_gave_are_given_again(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    for text in "abc":
        sent(admin, topic, {"payload": text})
    assert len({message.producer_name() for message in received(client, topic, 3)}) == 1


def test_an_unnamed_producer_with_sequence_ids_is_distinct_from_others(
    admin: httpx.Client, client: Client, namespace: str, topic: str
) -> None:
    set_policy(admin, namespace, "deduplication", True)
    for text, number in (("a", 10), ("b", None), ("c", 3), ("d", 0), ("e", None)):
        message = {"payload": text} if number is None else {"payload": text, "sequenceId": number}
        sent(admin, topic, message)
    found = [message.data() for message in received(client, topic, 5)]
    assert found == [b"a", b"b", b"c", b"d", b"e"]


def test_a_publish_rate_holds_what_is_too_fast(
    admin: httpx.Client, client: Client, namespace: str, topic: str
) -> None:
    rate = {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
    assert admin.post(f"{P}/{topic}/publishRate", json=rate).status_code == 204
    results = sent(admin, topic, *({"payload": str(number)} for number in range(30)))
    assert codes(results) == [0] * 30
    assert len(received(client, topic, 30)) == 30


# -- permissions


@pytest.fixture(scope="module")
def guarded_broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        yield running


def test_who_may_not_produce_may_not_post(guarded_broker: RunningBroker) -> None:
    world = World(guarded_broker)
    world.admin("PUT", world.on_topic())
    world.admin("PUT", world.on_topic("/partitions", "p"), 2)
    world.grant("reader", "consume")
    world.grant("writer", "produce")

    def posted(by: str, path: str = "") -> int:
        url = f"{guarded_broker.admin_url}/topics/{world.on_topic(path)}"
        body = {"messages": [{"payload": "p"}]}
        answer = httpx.post(url, json=body, headers=bearer(by) if by else {})
        check_described(answer)
        if answer.status_code == 200:
            assert codes(answer.json()["messagePublishResults"]) == [0]
        return answer.status_code

    assert [posted(who) for who in ("", "reader", "stranger")] == [401, 401, 401]
    assert [posted(who) for who in ("writer", "boss", "admin")] == [200, 200, 200]
    assert posted("reader", "/partitions/0") == 401
    world.revoke("writer")
    assert posted("writer") == 401


# -- expensive requests


def test_what_is_wrong_with_each_of_many_messages_is_said_shortly(
    admin: httpx.Client, topic: str
) -> None:
    messages = [{"payload": "{}"}] * 1000
    for definition in ("A" * 200_000, {"type": "record", "name": "r", "fields": [LONG_FIELD]}):
        answer = post(admin, topic, *messages, valueSchema=schema("AVRO", definition))
        assert answer.status_code in (200, 400), answer.text[:200]
        assert len(answer.content) < 2_000_000


LONG_FIELD = {"name": "f" * 1000, "type": "int"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"producerName": "n" * 1025}, 405),
        ({"producerName": "n" * 1_040_000}, 405),
        ({"valueSchema": json.dumps({"type": "STRING", "name": "n" * 1_000_000})}, 400),
        ({"valueSchema": json.dumps({"type": "STRING", "properties": {"a": "b" * 500_000}})}, 400),
    ],
    ids=["name", "long name", "schema's name", "schema's properties"],
)
def test_what_is_longer_than_names_and_schemas_may_be_is_refused(
    admin: httpx.Client, topic: str, body: Any, status: int
) -> None:
    answer = post(admin, topic, {"payload": "p"}, **body)
    assert answer.status_code == status, answer.text[:200]


def test_a_topic_that_goes_while_its_messages_come_is_not_made_again(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    body = b'{"messages": [{"payload": "p"}]}'
    address = admin_broker.admin_url.removeprefix("http://")
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as slow:
        head = f"POST /topics/persistent/{topic} HTTP/1.1\r\nHost: {address}\r\n"
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:9])
        # Two requests in sequence: by then the server has seen the first one's head.
        admin.get(f"{P}/{topic}/stats")
        assert admin.delete(f"{P}/{topic}").status_code == 204
        slow.sendall(body[9:])
        assert b" 404 " in slow.recv(4096).partition(b"\r\n")[0]
    assert admin.get(f"{P}/{topic.rpartition('/')[0]}").json() == []


def test_what_waits_for_a_topic_holds_its_messages_and_no_more_of_the_body(
    admin: httpx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    async def publish(self: Any, identity: Any, sender: Any, batches: Any, schema: Any) -> None:
        gc.collect()
        dicts = [each for each in gc.get_objects() if type(each) is dict]
        kept.append(sum("of no use here" in each for each in dicts))
        batches[0].outcomes = [NotAllowed("not now")]

    monkeypatch.setattr(LocalConnections, "publish", publish)
    message = '{"payload": "p", "more": [{"of no use here": [{}]}]}'
    answer = admin.post(f"/topics/persistent/{topic}", content=f'{{"messages": [{message}]}}')
    assert codes(answer.json()["messagePublishResults"]) == [2]
    assert kept == [0]


# -- clients that go away


def test_who_hangs_up_leaves_no_producer_behind(admin_broker: RunningBroker, topic: str) -> None:
    body = json.dumps({"messages": [{"payload": "p"}] * 100})
    for _ in range(3):
        admin_broker.call(hang_up(topic, body))
    with httpx.Client(base_url=admin_broker.admin_url) as plain:
        sent(plain, topic, {"payload": "last"})
    assert admin_broker.call(local_sessions) == []


def hang_up(topic: str, body: str) -> Any:
    async def connect_and_go(running: Any) -> None:
        host, port = running.admin_url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /topics/persistent/{topic} HTTP/1.1\r\nHost: {host}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.transport.abort()

    return connect_and_go


async def local_sessions(running: Any) -> list[str]:
    sessions = [each for each in running.server.sessions if each.client_version == "pybroker-rest"]
    for session in sessions:
        await session.ended
    return [str(each) for each in running.server.sessions if each in sessions]


def test_what_is_posted_at_once_is_limited(
    admin: httpx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "MOST_BYTES_AT_WORK", 1000)
    assert post(admin, topic, {"payload": "x" * 1000}).status_code == 429
    for _ in range(5):
        sent(admin, topic, {"payload": "x" * 500})


def test_who_has_nothing_at_work_finds_room_though_another_has_taken_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "MOST_BYTES_AT_WORK", 1000)
    other = httpx.HTTPTransport(local_address="127.0.0.2")
    with (
        pybroker.testing.broker(http=True, faults=True) as broker,
        httpx.Client(base_url=broker.admin_url, timeout=60) as many,
        httpx.Client(base_url=broker.admin_url, timeout=60, transport=other) as few,
        ThreadPoolExecutor(1) as threads,
    ):
        for topic in ("held", "t"):
            many.put(f"/admin/v2/persistent/public/default/{topic}")
        hold = broker.faults.inject("publish.before_append", "hold", topic="held", once=True)
        first = threads.submit(post, many, "public/default/held", {"payload": "x" * 700})
        hold.wait_for_hit()
        assert post(many, "public/default/t", {"payload": "x" * 700}).status_code == 429
        assert post(few, "public/default/t", {"payload": "x" * 700}).status_code == 200
        hold.release()
        assert first.result().status_code == 200


def test_waiting_for_what_others_sent_has_an_end(
    admin: httpx.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "ENCODING_TIMEOUT_S", 0.0)
    answer = post(admin, topic, {"payload": "x"})
    assert (answer.status_code, "Too many bytes" in answer.text) == (429, True)
    monkeypatch.undo()
    sent(admin, topic, {"payload": "x"})


def test_waiting_has_an_end_behind_what_a_rate_holds() -> None:
    assert PUBLISH_TIMEOUT_S <= 60
