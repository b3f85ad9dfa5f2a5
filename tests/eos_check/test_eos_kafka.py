"""eos-check between a Kafka client and its broker: the steps, the addresses, the groups' lag."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from raw_kafka import RawKafka

from pybroker.client import Client
from pybroker.eos_check.clean_run import clean_run
from pybroker.eos_check.connection_trace import Event, Seen
from pybroker.eos_check.faults import Passing, Phase, Step, Victim
from pybroker.eos_check.kafka_wire import KafkaWire
from pybroker.eos_check.proxy import Proxy
from pybroker.eos_check.run_result import CannotRun, RunResult
from pybroker.eos_check.settings import Places, Settings
from pybroker.eos_check.topics import Topics
from pybroker.eos_check.wire import Unreadable
from pybroker.kafka.codec.messages import (
    Header,
    decode_response,
    encode_request,
    encode_response,
    response_header,
)
from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

LIMIT_S = 60.0
PRODUCE, METADATA, SASL_HANDSHAKE, END_TXN = 0, 3, 17, 26


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, http=True) as one:
        yield one


class Watch:
    def __init__(self, at: Passing | None = None) -> None:
        self.events: list[Event] = []
        self.struck = threading.Event()
        self._at = at

    def passing(self, passing: Passing) -> Victim | None:
        if passing != self._at:
            return None
        self.struck.set()
        return Victim.PIPELINE


def copy_one(bootstrap: str, commit_s: float = LIMIT_S) -> None:
    """A record of `in` to `out`, in a transaction with its offset."""
    common = {"bootstrap.servers": bootstrap}
    group = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer, producer = Consumer(common | group), Producer(common | {"transactional.id": "t"})
    consumer.subscribe(["in"])
    producer.init_transactions(LIMIT_S)
    record = consumer.poll(LIMIT_S)
    assert record is not None
    producer.begin_transaction()
    producer.produce("out", record.value())
    offsets = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), LIMIT_S)
    producer.commit_transaction(commit_s)
    consumer.close()


def test_a_client_works_through_the_proxy_and_each_step_is_seen(running: RunningBroker) -> None:
    topics = Topics(running.service_url, running.admin_url, kafka=True)
    topics.prepare("in", ["out"])
    with Client(running.service_url) as client:
        client.create_producer("in").send(b"one")
    watch = Watch()
    with Proxy(watch.passing, watch.events.append, kafka=True) as proxy:
        proxy.forward_to(running.service_url, running.kafka_bootstrap)
        (node,) = (
            AdminClient({"bootstrap.servers": proxy.kafka_bootstrap})
            .list_topics(timeout=LIMIT_S)
            .brokers.values()
        )
        assert f"{node.host}:{node.port}" == proxy.kafka_bootstrap
        copy_one(proxy.kafka_bootstrap)
        assert topics.backlogs("in") == {"g": 0}
    asked = [(each.what, each.topic) for each in watch.events if not each.answer]
    assert asked[0] == ("INIT_PRODUCER_ID", "")
    assert asked[-1] == ("COMMIT", "")
    assert {("PRODUCE", "out"), ("TXN_OFFSET_COMMIT", "in")} <= set(asked)
    assert ("ADD_OFFSETS_TO_TXN", "") in asked and ("ADD_PARTITIONS_TO_TXN", "out") in asked
    answered = [(each.what, each.topic) for each in watch.events if each.answer]
    assert sorted(answered) == sorted(asked)
    assert not any(each.error for each in watch.events)
    assert [output.value for output in topics.read(["out"])] == [b"one"]


def test_a_group_that_has_committed_nothing_has_everything_left(running: RunningBroker) -> None:
    topics = Topics(running.service_url, running.admin_url, kafka=True)
    topics.prepare("in", ["out"])
    with Client(running.service_url) as client:
        client.create_producer("in").send(b"one")
    group = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": running.kafka_bootstrap} | group)
    consumer.subscribe(["in"])
    assert consumer.poll(LIMIT_S) is not None
    assert topics.backlogs("in") == {"g": 1}
    consumer.close()


def test_a_topic_that_kafka_s_clients_do_not_see_has_no_lag(running: RunningBroker) -> None:
    """A pipeline with clients of both protocols may read it."""
    topics = Topics(running.service_url, running.admin_url, kafka=True)
    orders = "persistent://acme/billing/orders"
    topics.prepare(orders, ["others"])
    consumer = Consumer({"bootstrap.servers": running.kafka_bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("others", 0, 0)], asynchronous=False)
    assert topics.backlogs("others") == {"g": 0}
    assert topics.backlogs(orders) == {}
    consumer.close()


def test_a_transaction_of_a_dead_pipeline_is_found_and_ended(running: RunningBroker) -> None:
    topics = Topics(running.service_url, running.admin_url, kafka=True)
    topics.prepare("in", ["out"])
    producer = Producer({"bootstrap.servers": running.kafka_bootstrap, "transactional.id": "t"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("out", b"half")
    assert producer.flush(LIMIT_S) == 0
    ((txn, _),) = topics.open_transactions()
    assert topics.abort(txn)
    assert topics.open_transactions() == []


def test_before_a_step_the_request_does_not_reach_the_broker(running: RunningBroker) -> None:
    Topics(running.service_url, running.admin_url, kafka=True).prepare("in", ["out"])
    watch = Watch(Passing(Step("COMMIT"), Phase.BEFORE))
    with Client(running.service_url) as client:
        client.create_producer("in").send(b"one")
    with Proxy(watch.passing, watch.events.append, kafka=True) as proxy:
        proxy.forward_to(running.service_url, running.kafka_bootstrap)
        with pytest.raises(KafkaException):  # the client asks again in vain
            copy_one(proxy.kafka_bootstrap, commit_s=2)
        assert watch.struck.is_set()
        assert Topics(running.service_url, running.admin_url, kafka=True).open_transactions()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def test_topics_of_requests_by_id_are_named_as_metadata_told() -> None:
    """Whichever connection asked for the metadata."""
    topics: dict[bytes, str] = {}
    wire, other = (KafkaWire("proxy", 1, topics) for _ in range(2))
    topic_id = b"0123456789abcdef"
    wire.from_client(framed(encode_request(Header(METADATA, 12, 1, "c"), {"topics": None})))
    node = {"node_id": 0, "host": "broker", "port": 2}
    topic = {"name": "out", "topic_id": topic_id, "partitions": []}
    body = {"brokers": [node], "topics": [topic]}
    data = response_header(METADATA, 12, 1) + encode_response(METADATA, 12, body)
    _, frame = wire.from_broker(framed(data))
    _, told = decode_response(METADATA, 12, frame[4:])
    (broker_told,) = told["brokers"]
    assert (broker_told["host"], broker_told["port"]) == ("proxy", 1)
    produce = {"acks": 0, "topic_data": [{"topic_id": topic_id, "partition_data": []}]}
    seen = other.from_client(framed(encode_request(Header(PRODUCE, 13, 2, "c"), produce)))
    assert seen.passing == Passing(Step("PRODUCE", "out"), Phase.BEFORE)
    assert not seen.is_answered


def test_what_a_broker_would_not_read_ends_the_connection() -> None:
    wire = KafkaWire("proxy", 1, {})
    for data in (b"", b"\0\0\0", END_TXN.to_bytes(2, "big") + b"\x7f\xff" + b"\0" * 8):
        with pytest.raises(Unreadable):
            wire.from_client(framed(data))


def handshake(wire: KafkaWire, mechanism: str, **answer: Any) -> None:
    """Of version 0: then come messages of the login as they are."""
    header = Header(SASL_HANDSHAKE, 0, 1, "c")
    assert wire.from_client(framed(encode_request(header, {"mechanism": mechanism}))) == Seen()
    data = response_header(SASL_HANDSHAKE, 0, 1) + encode_response(SASL_HANDSHAKE, 0, answer)
    assert wire.from_broker(framed(data)) == (Seen(), framed(data))


@pytest.mark.parametrize(("mechanism", "rounds"), [("PLAIN", 1), ("SCRAM-SHA-256", 2)])
def test_a_login_without_requests_passes_as_it_is(mechanism: str, rounds: int) -> None:
    wire = KafkaWire("proxy", 1, {})
    handshake(wire, mechanism)
    for _ in range(rounds):
        assert wire.from_client(framed(b"\0Olga\0secret")) == Seen(), "79 is ShareAcknowledge"
        assert wire.from_broker(framed(b"")) == (Seen(), framed(b""))
    header = Header(END_TXN, 1, 2, "c")
    body = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 1, "committed": True}
    assert wire.from_client(framed(encode_request(header, body))).event == Event("COMMIT", "")


def test_a_refused_handshake_is_followed_by_requests() -> None:
    wire = KafkaWire("proxy", 1, {})
    handshake(wire, "GSSAPI", error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    with pytest.raises(Unreadable):
        wire.from_client(framed(b"\0Olga\0secret"))


def test_a_client_logs_in_without_requests_through_the_proxy() -> None:
    settings: dict[str, Any] = {
        "authentication_providers": ("basic",),
        "basic_auth_conf": "data:,Olga:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    }
    watch = Watch()
    with (
        broker(kafka=True, **settings) as running,
        Proxy(watch.passing, watch.events.append, kafka=True) as proxy,
    ):
        proxy.forward_to(running.service_url, running.kafka_bootstrap)
        with RawKafka(proxy.kafka_bootstrap) as raw:
            assert not raw.ask(SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})["error_code"]
            raw.send_frame(b"\0Olga\0secret")
            assert raw.receive_frame() == b""
            assert raw.ask(METADATA, 1, {"topics": []})["brokers"]


def test_a_kafka_client_that_takes_no_step_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no group, as one that keeps its offsets in a database."""
    result = RunResult((), stuck="it had not caught up after 60 s")
    monkeypatch.setattr("pybroker.eos_check.clean_run.run", lambda *_: result)
    with pytest.raises(CannotRun, match=r"\{kafka_bootstrap\} and .* keeps its offsets elsewhere"):
        clean_run(Settings(("run",), kafka=True), threading.Event())


def test_a_placeholder_in_the_command_is_the_proxy_s_address(tmp_path: Path) -> None:
    settings = Settings(("run", "{kafka_bootstrap}"), kafka=True)
    places = Places("pulsar://p", "http://a", "127.0.0.1:9", str(tmp_path))
    assert settings.words(settings.command, places) == ["run", "127.0.0.1:9"]
    assert settings.environment(places)["KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:9"
