"""Apache Pulsar's WebSocket API through websocket-client, as its examples in Python use it."""

import itertools
import json
from collections.abc import Iterator

import httpx
import pytest
import websocket
from ws_programs import connected, hear, payload_of, publish, receive, refusal, say

import pybroker.testing
from pybroker.client import Client, CompressionType, InitialPosition
from pybroker.testing import RunningBroker

IN = "persistent/public/default"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"t-{next(_numbers)}"


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url) as client:
        yield client


# -- producers


def test_each_message_gets_its_receipt_with_the_context(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    with connected(broker, f"v2/producer/{IN}/{topic}") as ws:
        answer = publish(
            ws,
            b"Hello",
            properties={"a": "1"},
            key="k",
            context="5",
            eventTime="2024-05-06T07:08:09Z",
        )
        assert answer["result"] == "ok" and answer["context"] == "5"
        message = consumer.receive(30_000)
        assert (message.data(), message.properties()) == (b"Hello", {"a": "1"})
        assert (message.partition_key(), message.event_timestamp()) == ("k", 1_714_979_289_000)
        assert "context" not in publish(ws, b"")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("{", 3),
        ("[]", 3),
        ('{"payload": 7}', 7),
        ('{"payload": "***"}', 7),
        ("{}", 7),
        ('{"payload": "", "properties": {"a": 1}}', 7),
        ('{"payload": "", "eventTime": "soon"}', 7),
        ('{"payload": "", "deliverAt": -1}', 7),
        ('{"payload": "", "key": []}', 7),
        ('{"payload": "", "txn": "x"}', 7),
    ],
)
def test_a_message_that_cannot_be_published_gets_an_error_and_the_next_is_published(
    broker: RunningBroker, topic: str, said: str, code: int
) -> None:
    with connected(broker, f"v2/producer/{IN}/{topic}") as ws:
        ws.send(said)
        answer = hear(ws)
        assert answer["result"] == f"send-error:{code}"
        assert answer["errorMsg"]
        assert publish(ws, b"x")["result"] == "ok"


def test_many_messages_keep_their_order(broker: RunningBroker, client: Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    with connected(
        broker, f"v2/producer/{IN}/{topic}?batchingEnabled=true&maxPendingMessages=7"
    ) as ws:
        for number in range(300):
            ws.send(json.dumps({"payload": "AAAA", "context": str(number)}))
        contexts = [hear(ws)["context"] for _ in range(300)]
    assert contexts == [str(number) for number in range(300)]
    for _ in range(300):
        consumer.receive(30_000)


def test_a_large_message_goes_in_and_out(broker: RunningBroker, topic: str) -> None:
    payload = bytes(range(256)) * 2500
    with (
        connected(broker, f"v2/consumer/{IN}/{topic}/s") as out,
        connected(broker, f"v2/producer/{IN}/{topic}") as ws,
    ):
        for _ in range(3):
            assert publish(ws, payload)["result"] == "ok"
            assert receive(out) == payload


def test_a_named_producer_excludes_another(broker: RunningBroker, topic: str) -> None:
    path = f"v2/producer/{IN}/{topic}?producerName=one"
    with connected(broker, path):
        status, reason = refusal(broker, path)
    assert status == 409
    assert "one" in reason


# -- consumers


def test_a_consumer_gets_what_apaches_gets(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    with connected(broker, f"v2/consumer/{IN}/{topic}/s?subscriptionType=Shared") as ws:
        sent = client.create_producer(topic).send(
            b"x", partition_key="k", properties={"p": "q"}, event_timestamp=1_714_979_289_000
        )
        message = hear(ws)
        assert set(message) == {
            *("messageId", "payload", "properties", "publishTime", "redeliveryCount"),
            *("key", "eventTime"),
        }
        assert payload_of(message) == b"x"
        assert (message["key"], message["properties"]) == ("k", {"p": "q"})
        assert message["eventTime"].startswith("2024-05-06T07:08:09")
        assert message["redeliveryCount"] == 0
        say(ws, messageId=message["messageId"])
    assert sent is not None


def test_what_is_acknowledged_does_not_come_again(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    path = f"v2/consumer/{IN}/{topic}/s?subscriptionInitialPosition=Earliest"
    for number in range(4):
        producer.send(b"%d" % number)
    with connected(broker, path) as ws:
        assert [receive(ws) for _ in range(3)] == [b"0", b"1", b"2"]
        say(ws, type="isEndOfTopic")
        while "endOfTopic" not in hear(ws):
            pass  # the answer shows that the acknowledgements were handled
    with connected(broker, path) as ws:
        assert receive(ws) == b"3"


def test_no_more_messages_come_than_the_peer_wants(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    start = "subscriptionInitialPosition=Earliest"
    with connected(broker, f"v2/consumer/{IN}/{topic}/s?receiverQueueSize=2&{start}") as ws:
        first = [hear(ws), hear(ws)]
        say(ws, type="isEndOfTopic")
        assert hear(ws) == {"endOfTopic": False}  # comes before a third message
        say(ws, messageId=first[0]["messageId"])
        assert payload_of(hear(ws)) == b"2"
    with connected(broker, f"v2/consumer/{IN}/{topic}/t?pullMode=true&{start}") as ws:
        say(ws, type="isEndOfTopic")
        assert hear(ws) == {"endOfTopic": False}
        say(ws, type="permit", permitMessages=2)
        assert [payload_of(hear(ws)) for _ in range(2)] == [b"0", b"1"]
        say(ws, type="isEndOfTopic")
        assert hear(ws) == {"endOfTopic": False}


def test_a_message_that_is_given_back_comes_again_and_then_goes_to_the_dead_letters(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    dead = client.subscribe(f"{topic}-dead", "s")
    path = f"v2/consumer/{IN}/{topic}/s?subscriptionType=Shared&negativeAckRedeliveryDelay=0"
    letters = f"maxRedeliverCount=2&deadLetterTopic={topic}-dead"
    with connected(broker, f"{path}&{letters}") as ws:
        client.create_producer(topic).send(b"bad", properties={"p": "q"})
        for count in range(3):
            message = hear(ws)
            assert message["redeliveryCount"] == count
            say(ws, type="negativeAcknowledge", messageId=message["messageId"])
        found = dead.receive(30_000)
        assert found.data() == b"bad"
        assert found.properties()["p"] == "q"
        assert found.properties()["REAL_TOPIC"].endswith(topic)


@pytest.mark.parametrize("options", ["", "?pullMode=true"])
def test_unsubscribing_deletes_the_subscription(
    broker: RunningBroker, topic: str, options: str
) -> None:
    with connected(broker, f"v2/consumer/{IN}/{topic}/gone{options}") as ws:
        say(ws, type="unsubscribe")
        _, frame = ws.recv_data()
        assert (int.from_bytes(frame[:2], "big"), frame[2:]) == (1000, b"unsubscribed")
    listed = httpx.get(f"{broker.admin_url}/admin/v2/{IN}/{topic}/subscriptions")
    assert listed.json() == []


def test_the_end_of_a_terminated_topic_is_told(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    client.create_producer(topic).send(b"last")
    assert httpx.post(f"{broker.admin_url}/admin/v2/{IN}/{topic}/terminate").status_code == 200
    start = "subscriptionInitialPosition=Earliest"
    with connected(broker, f"v2/consumer/{IN}/{topic}/s?{start}") as ws:
        assert receive(ws) == b"last"
        while True:
            say(ws, type="isEndOfTopic")
            if hear(ws)["endOfTopic"]:
                break


def test_several_topics_are_one_subscription(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    names = [f"{topic}-a", f"persistent://public/default/{topic}-b"]
    with connected(broker, f"v3/consumer/s?topics={','.join(names)}") as ws:
        for name in names:
            client.create_producer(name).send(name.encode())
        found = [hear(ws) for _ in names]
        assert {payload_of(each) for each in found} == {name.encode() for name in names}
        assert all(each["topic"].startswith("persistent://public/default/") for each in found)
        for each in found:
            say(ws, messageId=each["messageId"])


def test_a_pattern_finds_topics_now_and_later(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    client.create_producer(f"{topic}-a").send(b"0")
    pattern = f"persistent://public/default/{topic}-.*"
    start = "subscriptionInitialPosition=Earliest"
    with connected(broker, f"v3/consumer/s?topicsPattern={pattern}&{start}") as ws:
        assert receive(ws) == b"0"
        client.create_producer(f"{topic}-b").send(b"1")
        client.create_producer(f"other-{topic}").send(b"2")
        broker.clock.advance("61s")
        assert receive(ws) == b"1"


# -- readers


def test_a_reader_reads_from_where_it_is_told(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    with connected(broker, f"v2/reader/{IN}/{topic}?messageId=earliest") as ws:
        found = [hear(ws) for _ in range(3)]
        assert [payload_of(each) for each in found] == [b"0", b"1", b"2"]
    from_there = found[0]["messageId"].replace("+", "%2B").replace("/", "%2F")
    with connected(broker, f"v2/reader/{IN}/{topic}?messageId={from_there}") as ws:
        assert payload_of(hear(ws)) == b"1"
    with connected(broker, f"v2/reader/{IN}/{topic}?receiverQueueSize=1") as ws:
        producer.send(b"3")
        producer.send(b"4")
        message = hear(ws)
        assert payload_of(message) == b"3"
        say(ws, type="isEndOfTopic")
        assert hear(ws) == {"endOfTopic": False}
        say(ws, messageId=message["messageId"])
        assert payload_of(hear(ws)) == b"4"


# -- transactions


def test_messages_and_acknowledgements_take_part_in_a_transaction(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    admin = f"{broker.admin_url}/admin/v3/transactions"
    client.create_producer(f"{topic}-in").send(b"in")
    start = "subscriptionInitialPosition=Earliest"
    with (
        connected(broker, f"v2/consumer/{IN}/{topic}-in/s?{start}") as source,
        connected(broker, f"v2/producer/{IN}/{topic}-out") as target,
        connected(broker, f"v2/consumer/{IN}/{topic}-out/s") as result,
    ):
        message, begun = hear(source), httpx.post(admin).json()
        assert publish(target, b"out", txn=begun["txnId"])["result"] == "ok"
        say(source, messageId=message["messageId"], txn=begun["txnId"])
        assert hear(source) == {"result": "ok", "messageId": message["messageId"]}
        say(source, messageId=message["messageId"], txn=begun["txnId"])
        again = hear(source)
        assert again["result"] == "ack-error" and again["errorMsg"]
        ended = httpx.post(f"{broker.admin_url}{begun['path']}/commit")
        assert ended.status_code == 200
        assert receive(result) == b"out"
        for txn in (begun["txnId"], "501:1"):
            assert publish(target, b"late", txn=txn)["result"].startswith("send-error")
        say(source, messageId=message["messageId"], txn="501:1")
        assert hear(source)["result"] == "ack-error"
    backlog = httpx.get(f"{broker.admin_url}/admin/v2/{IN}/{topic}-in/stats").json()
    assert backlog["subscriptions"]["s"]["msgBacklog"] == 0


@pytest.mark.parametrize("of", ["topics={0}-a,{0}-b", "topicsPattern={0}-.*"])
def test_an_acknowledgement_that_was_refused_is_repeated_in_another_transaction(
    broker: RunningBroker, client: Client, topic: str, of: str
) -> None:
    admin = f"{broker.admin_url}/admin/v3/transactions"
    for name in ("a", "b"):
        client.create_producer(f"{topic}-{name}").send(b"x")
    start = "subscriptionInitialPosition=Earliest"
    with connected(broker, f"v3/consumer/s?{of.format(topic)}&{start}") as ws:
        ids = [hear(ws)["messageId"] for _ in range(2)]
        say(ws, messageId=ids[0], txn="0:99")
        assert hear(ws)["result"] == "ack-error"
        begun = httpx.post(admin).json()
        for each in ids:
            say(ws, messageId=each, txn=begun["txnId"])
        assert [hear(ws)["result"] for _ in ids] == ["ok", "ok"]


# -- refusals


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"v2/consumer/{IN}/t/s?subscriptionType=shared", 400),
        (f"v2/consumer/{IN}/t/s?receiverQueueSize=many", 400),
        (f"v2/consumer/{IN}/t/s?ackTimeoutMillis=5", 400),
        (f"v2/consumer/{IN}/t/s?deadLetterTopic=d", 400),
        (f"v2/producer/{IN}/t?compressionType=RAR", 400),
        (f"v2/producer/{IN}/t?encryptionKeys=k", 400),
        (f"v2/reader/{IN}/t?messageId=here", 400),
        (f"v2/reader/{IN}/t?messageId=CAAQACAAMP////8H", 400),  # of a batch of 2**31 - 1
        ("v2/producer/persistent/none/ns/t", 404),
        ("v3/consumer/s", 400),
        ("v3/consumer/s?topics=a&topicsPattern=b", 400),
        ("v3/consumer/s?topicsPattern=(a", 405),
        ("v2/consumer/persistent/public/default/t", 404),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_reason(
    broker: RunningBroker, path: str, status: int
) -> None:
    found, reason = refusal(broker, path)
    assert (found, bool(reason)) == (status, True), reason


def test_a_plain_request_is_told_to_upgrade(broker: RunningBroker) -> None:
    answer = httpx.get(f"{broker.admin_url}/ws/v2/producer/{IN}/t")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


def test_websockets_can_be_switched_off() -> None:
    with pybroker.testing.broker(http=True, web_socket_service_enabled=False) as broker:
        status, reason = refusal(broker, f"v2/producer/{IN}/t")
    assert status == 404
    assert "webSocketServiceEnabled" in reason


def test_a_broker_that_stops_says_so() -> None:
    with pybroker.testing.broker(http=True) as broker:
        ws = websocket.create_connection(
            f"ws{broker.admin_url.removeprefix('http')}/ws/v2/producer/{IN}/t", timeout=30
        )
    code, frame = ws.recv_data()
    assert (code, int.from_bytes(frame[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1001)
    ws.shutdown()


def test_compressed_messages_are_uncompressed(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    path = f"v2/producer/{IN}/{topic}?compressionType=ZLIB"
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    with (
        connected(broker, f"v2/consumer/{IN}/{topic}/w") as out,
        connected(broker, path) as ws,
    ):
        assert publish(ws, b"a" * 50_000)["result"] == "ok"
        producer = client.create_producer(topic, compression_type=CompressionType.ZLib)
        producer.send(b"b" * 50_000)
        assert consumer.receive(30_000).data() == b"a" * 50_000
        assert [receive(out), receive(out)] == [b"a" * 50_000, b"b" * 50_000]
