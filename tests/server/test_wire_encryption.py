"""Where encryption is required, plain producers and plain messages are refused."""

from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.broker.policies.table import ENCRYPTION_REQUIRED
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
DOMAINS = ["persistent", "non-persistent"]
KEYS = [{"key": "k", "value": b"v"}]


def require(broker: Any, namespace: str, required: bool) -> None:
    async def set_policy(running: Any) -> None:
        policies = running.topics.policies
        await policies.set_for_namespace(namespace, ENCRYPTION_REQUIRED, required)
        await running.topics.following.told()

    broker.call(set_policy)


@pytest.fixture
def namespace(wire_broker: Any, topic: str) -> str:
    name = "public/encrypted-" + topic.rsplit("-", 1)[1]
    wire_broker.call(lambda running: running.topics.tenants.create_namespace(name, {}))
    return name


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_producer_that_does_not_encrypt_is_refused(
    raw: RawClient, wire_broker: Any, namespace: str, domain: str
) -> None:
    topic = f"{domain}://{namespace}/t"
    require(wire_broker, namespace, True)
    refused = raw.ask_for_producer(topic)
    assert (refused.error, refused.message) == (
        pb.MetadataError,
        f"Encryption is required in {topic}",
    )
    raw.create_producer(topic, encrypted=True)
    require(wire_broker, namespace, False)
    raw.create_producer(topic, 2)


@pytest.mark.parametrize("domain", DOMAINS)
def test_who_does_not_encrypt_is_sent_away_when_it_becomes_required(
    raw: RawClient, wire_broker: Any, namespace: str, domain: str
) -> None:
    topic = f"{domain}://{namespace}/t"
    raw.create_producer(topic)
    raw.create_producer(topic, 2, encrypted=True)
    require(wire_broker, namespace, True)
    assert raw.receive(_T.CLOSE_PRODUCER).producer_id == 1
    assert raw.kinds_before_pong() == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_encrypting_producer_need_not_wait_for_a_refused_one(
    raw: RawClient, wire_broker: Any, namespace: str, domain: str
) -> None:
    topic = f"{domain}://{namespace}/t"
    raw.create_producer(topic)
    for producer_id, encrypted in ((2, False), (3, True)):
        waiting = raw.ask_for_producer(
            topic,
            producer_id,
            producer_access_mode=pb.WaitForExclusive,
            encrypted=encrypted,
        )
        assert not waiting.producer_ready
    require(wire_broker, namespace, True)
    assert raw.receive(_T.CLOSE_PRODUCER).producer_id == 1
    assert raw.receive(_T.ERROR).message == f"Encryption is required in {topic}"
    assert raw.receive(_T.PRODUCER_SUCCESS).producer_ready


def test_a_plain_message_is_refused_in_its_turn(
    raw: RawClient, wire_broker: Any, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    require(wire_broker, namespace, True)
    raw.create_producer(topic, encrypted=True)
    with raw.in_one_piece():
        raw.start_publish(b"a", 0, encryption_keys=KEYS)
        raw.start_publish(b"plain", 1)
        raw.start_publish(b"b", 2, encryption_keys=KEYS)
    answers = [raw.receive(_T.SEND_RECEIPT, _T.SEND_ERROR) for _ in range(3)]
    assert [answer.sequence_id for answer in answers] == [0, 1, 2]
    assert (answers[1].error, answers[1].message) == (
        pb.MetadataError,
        "Messages must be encrypted",
    )
    raw.subscribe(topic)
    raw.flow(10)
    raw.messages(2)
    assert raw.waiting_messages() == 0


def test_the_broker_may_require_it_everywhere(topic: str) -> None:
    with (
        pybroker.testing.broker(encryption_require_on_producer=True) as broker,
        RawClient(broker.service_url) as raw,
    ):
        assert raw.ask_for_producer(topic).error == pb.MetadataError
