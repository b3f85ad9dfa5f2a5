"""Messages published over HTTP, as a client then receives them."""

import base64
import json
from datetime import datetime
from typing import Any

import httpx
import pytest
from posting import P, codes, post, publishers, received, schema, sent
from raw_client import RawClient

from pybroker.client import Client
from pybroker.testing import RunningBroker
from pybroker.values.avro import Codec
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import payload_of

POINT = {
    "type": "record",
    "name": "Point",
    "fields": [
        {"name": "x", "type": "int"},
        {"name": "label", "type": ["null", "string"], "default": None},
    ],
}
# -- received messages


def test_what_is_posted_is_what_a_client_receives(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    message = {
        "payload": "grüße",
        "key": "k",
        "properties": {"team": "billing"},
        "eventTime": "1700000000123",
        "sequenceId": 7,
    }
    answer = post(admin, topic, message, producerName="gateway").json()
    (result,) = answer["messagePublishResults"]
    (found,) = received(client, topic, 1)
    ledger_id, entry_id, partition = map(int, result["messageId"].split(":"))
    assert (ledger_id, entry_id) == (
        found.message_id().ledger_id(),
        found.message_id().entry_id(),
    )
    assert partition == -1
    assert (result["errorCode"], result["schemaVersion"], answer["schemaVersion"]) == (0, 0, 0)
    assert found.data() == "grüße".encode()
    assert found.partition_key() == "k"
    assert found.properties() == {"team": "billing"}
    assert found.event_timestamp() == 1_700_000_000_123
    assert found.producer_name() == "gateway"


def test_messages_arrive_in_their_order_and_leave_no_producer(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    results = sent(admin, topic, *({"payload": str(number)} for number in range(500)))
    assert codes(results) == [0] * 500
    assert len({result["messageId"] for result in results}) == 500
    assert publishers(admin, topic) == []
    found = [message.data() for message in received(client, topic, 500)]
    assert found == [b"%d" % number for number in range(500)]
    stats = admin.get(f"{P}/{topic}/stats").json()
    assert stats["msgInCounter"] == 500


def test_large_messages_go_through_in_pieces(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    texts = [letter * 300_000 for letter in "abc"]
    assert codes(sent(admin, topic, *({"payload": text} for text in texts))) == [0, 0, 0]
    assert [message.data().decode() for message in received(client, topic, 3)] == texts


def test_nothing_at_all_is_published_well(admin: httpx.Client, topic: str) -> None:
    assert sent(admin, topic) == []


def test_a_topic_that_is_not_persistent_takes_messages(
    admin: httpx.Client, client: Client, namespace: str
) -> None:
    topic = f"non-persistent://{namespace}/news"
    consumer = client.subscribe(topic, "s")
    path = f"/topics/non-persistent/{namespace}/news"
    answer = admin.post(path, json={"messages": [{"payload": "now"}]})
    assert codes(answer.json()["messagePublishResults"]) == [0]
    assert consumer.receive(30_000).data() == b"now"


def test_a_delayed_message_is_kept_until_it_is_due(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    before_ms = admin_broker.call(now_ms)
    messages = [
        {"payload": "later", "deliverAfterMs": 3_600_000},
        {"payload": "at", "deliverAt": 9},
    ]
    sent(admin, topic, *messages)
    with RawClient(admin_broker.service_url) as raw:
        raw.subscribe(
            f"persistent://{topic}",
            subType=pb.CommandSubscribe.Shared,
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        raw.flow(10)
        raw.messages(1)
        assert payload_of(raw.entry) == b"at"
        delayed = admin.get(f"{P}/{topic}/stats").json()["subscriptions"]
    assert sum(each["msgDelayed"] for each in delayed.values()) == 1
    peeked = admin.get(f"{P}/{topic}/examinemessage?initialPosition=earliest&messagePosition=1")
    assert peeked.content == b"later"
    due = datetime.fromisoformat(peeked.headers["x-pulsar-deliver-at-time"])
    assert due.timestamp() * 1000 >= before_ms + 3_600_000


async def now_ms(running: Any) -> int:
    moment: int = running._clock.now_ms()
    return moment


# -- partitions


@pytest.fixture
def parts(admin: httpx.Client, namespace: str) -> str:
    name = f"{namespace}/parts"
    assert admin.put(f"{P}/{name}/partitions", json=3).status_code == 204
    return name


def partitions_of(results: list[dict[str, Any]]) -> list[int]:
    return [int(result["messageId"].rpartition(":")[2]) for result in results]


def test_partitions_take_turns_and_a_key_stays_where_clients_put_it(
    admin: httpx.Client, client: Client, parts: str
) -> None:
    plain = partitions_of(sent(admin, parts, *[{"payload": "p"}] * 3))
    assert sorted(plain) == [0, 1, 2]
    keyed = partitions_of(sent(admin, parts, *[{"payload": "k", "key": "a"}] * 3))
    with_client = client.create_producer(f"persistent://{parts}").send(b"k", partition_key="a")
    assert keyed == [with_client.partition()] * 3
    assert len(received(client, parts, 7)) == 7


def test_single_messages_take_turns_too(admin: httpx.Client, parts: str) -> None:
    results = [sent(admin, parts, {"payload": "p"})[0] for _ in range(3)]
    assert sorted(partitions_of(results)) == [0, 1, 2]


def test_one_partition_is_chosen_by_its_path(admin: httpx.Client, parts: str) -> None:
    results = sent(admin, parts, *[{"payload": "p"}] * 3, path="/partitions/2")
    assert partitions_of(results) == [2, 2, 2]
    assert partitions_of(sent(admin, f"{parts}-partition-1", {"payload": "p"})) == [1]
    for missing in (f"/partitions/{number}" for number in (3, 10**19)):
        assert post(admin, parts, {"payload": "p"}, path=missing).status_code == 404
    named = post(admin, f"{parts}-partition-1", {"payload": "p"}, path="/partitions/1")
    assert named.status_code == 400


def test_a_topic_without_partitions_has_none(admin: httpx.Client, topic: str) -> None:
    assert post(admin, topic, {"payload": "p"}, path="/partitions/0").status_code == 404


def test_one_partition_that_is_closed_fails_its_messages_alone(
    admin: httpx.Client, parts: str
) -> None:
    sent(admin, parts, *[{"payload": "p"}] * 3)
    assert admin.post(f"{P}/{parts}-partition-1/terminate").status_code == 200
    results = sent(admin, parts, *[{"payload": "p"}] * 3)
    (failed,) = [result for result in results if result["errorCode"]]
    assert failed["errorCode"] == 2
    assert "terminated" in failed["errorMsg"]


# -- schemas


def test_avro_is_written_from_json_and_bad_values_fail_alone(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    texts = ['{"x": 1}', '{"x": "one"}', '{"x": 2, "label": {"string": "two"}}', "{", '{"y": 1}']
    results = sent(
        admin, topic, *({"payload": text} for text in texts), valueSchema=schema("AVRO", POINT)
    )
    assert codes(results) == [0, 2, 0, 2, 2]
    assert "'one' is not of type int" in results[1]["errorMsg"]
    codec = Codec(json.dumps(POINT))
    found = received(client, topic, 2)
    assert [codec.decode(message.data()) for message in found] == [
        {"x": 1, "label": None},
        {"x": 2, "label": "two"},
    ]
    stored = admin.get(f"/admin/v2/schemas/{topic}/schema").json()
    assert (stored["type"], json.loads(stored["data"])) == ("AVRO", POINT)


def test_the_topics_own_schema_serves_where_none_is_declared(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    declared = schema("AVRO", POINT)
    first = post(admin, topic, {"payload": '{"x": 1}'}, valueSchema=declared).json()
    own = post(admin, topic, {"payload": '{"x": 1}'}).json()
    named = post(admin, topic, {"payload": '{"x": 1}'}, schemaVersion=0).json()
    assert [each["schemaVersion"] for each in (first, own, named)] == [0, 0, 0]
    bodies = {message.data() for message in received(client, topic, 3)}
    assert bodies == {b"\x02\x00"}
    assert post(admin, topic, {"payload": "1"}, schemaVersion=5).status_code == 404


def test_json_stays_as_it_is_and_is_json(admin: httpx.Client, client: Client, topic: str) -> None:
    declared = schema("JSON", POINT)
    results = sent(admin, topic, {"payload": '{"x" : 1}'}, {"payload": "x"}, valueSchema=declared)
    assert codes(results) == [0, 2]
    (found,) = received(client, topic, 1)
    assert found.data() == b'{"x" : 1}'


def test_bytes_are_published_without_a_schema(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    answer = post(admin, topic, {"payload": "b"}, valueSchema=schema("BYTES")).json()
    assert answer["schemaVersion"] == -1
    assert admin.get(f"/admin/v2/schemas/{topic}/schema").status_code == 404
    assert received(client, topic, 1)[0].data() == b"b"


def test_a_key_with_its_value_by_two_schemas(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    declared = {"keySchema": schema("INT32"), "valueSchema": schema("STRING")}
    messages = [{"payload": "v", "key": "258"}, {"payload": "v"}, {"payload": "v", "key": "k"}]
    results = sent(admin, topic, *messages, **declared)
    assert codes(results) == [0, 2, 2]
    (found,) = received(client, topic, 1)
    assert base64.b64decode(found.partition_key()) == b"\0\0\1\2"
    assert found.data() == b"v"
    again = sent(admin, topic, {"payload": "w", "key": "1"})
    assert codes(again) == [0]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"type": "ODD"}', '{"type": "AVRO", "schema": "%"}', '{"type": []}',
     '{"type": "STRING", "properties": {"a": 1}}', '{"type": "STRING", "schema": 5}',
     '{"type": "PROTOBUF_NATIVE"}', '{"type": "AUTO_CONSUME"}', '{"type": "AVRO", "schema": ""}'],
)  # fmt: skip
def test_what_is_no_schema_is_refused(admin: httpx.Client, topic: str, text: str) -> None:
    answer = post(admin, topic, {"payload": "p"}, valueSchema=text)
    assert answer.status_code == (200 if not text else 400), answer.text


def test_a_schema_that_may_not_follow_is_refused(admin: httpx.Client, topic: str) -> None:
    sent(admin, topic, {"payload": "1"}, valueSchema=schema("INT32"))
    answer = post(admin, topic, {"payload": "p"}, valueSchema=schema("STRING"))
    assert answer.status_code == 409
    assert "incompatible" in answer.json()["reason"]


def test_a_value_that_could_be_read_in_too_many_ways_is_refused(
    admin: httpx.Client, topic: str
) -> None:
    twins = [
        {"type": "record", "name": name, "fields": [{"name": "n", "type": ["A", "B", "null"]}]}
        for name in "AB"
    ]
    twins[0]["fields"][0]["type"] = ["A", twins.pop(), "null"]
    text = '{"n": ' * 60 + "1" + "}" * 60
    bad = {"payload": text}
    results = sent(
        admin, topic, bad, {"payload": '{"n": null}'}, valueSchema=schema("AVRO", twins[0])
    )
    assert codes(results) == [2, 0]
    assert "too expensive" in results[0]["errorMsg"]


# -- bytes


def test_a_body_of_bytes_is_one_message(admin: httpx.Client, client: Client, topic: str) -> None:
    payload, headers = bytes(range(256)), {"Content-Type": "application/octet-stream"}
    path = f"/topics/persistent/{topic}"
    answer = admin.post(f"{path}?key=k", content=payload, headers=headers)
    assert codes(answer.json()["messagePublishResults"]) == [0]
    once = headers | {"Idempotency-Key": "one"}
    first = admin.post(path, content=b"x", headers=once)
    assert admin.post(path, content=b"x", headers=once).json() == first.json()
    found = received(client, topic, 2)
    assert [message.data() for message in found] == [payload, b"x"]
    assert [message.partition_key() for message in found] == ["k", ""]
    assert admin.get(f"/admin/v2/schemas/{topic}/schema").status_code == 404
