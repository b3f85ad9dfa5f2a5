"""A scrape, as Prometheus reads it, of a broker on which everything happens that metrics count."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from compacting import compact
from kafka_produce import batch, create, produce
from prometheus_client.parser import text_string_to_metric_families
from raw_client import RawClient
from raw_kafka import RawKafka
from v5_raw import join, next_layout, share_by_buckets, watch_layout

import pybroker.testing
from pybroker.client import Client, NotAllowed
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "public/default/orders"
_NAME = f"persistent://{TOPIC}"
_TYPED = "persistent://public/default/typed"
_SCALABLE = "topic://public/default/scalable"
_SEGMENT = "segment://public/default/scalable/0000-7fff-1"
_PASSING = "non-persistent://public/default/passing"
_OFFSET_COMMIT = 8


@dataclass(frozen=True)
class Scrape:
    """`samples` maps a sample's name to the labels of each such sample."""

    text: str
    samples: Mapping[str, list[Mapping[str, str]]]
    values: Mapping[str, float]  # the last value by name

    def labels_of(self, name: str) -> set[str]:
        return set().union(*(set(each) for each in self.samples[name]))


@contextmanager
def busy_broker(data_dir: Path) -> Iterator[RunningBroker]:
    limits = {"max_open_transaction_messages_per_topic": 5}
    with (
        pybroker.testing.broker(data_dir=data_dir, http=True, kafka=True, **limits) as broker,
        Client(broker.service_url, enable_transaction=True) as client,
    ):
        _make_busy(broker, client)
        yield broker


def _use_a_kafka_group(broker: RunningBroker) -> None:
    with RawKafka(broker.kafka_bootstrap) as raw:
        create(raw, "counted")
        produce(raw, "counted", batch(b"1", b"2", b"3"))
        place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        topics = [{"name": "counted", "partitions": [place]}]
        raw.ask(_OFFSET_COMMIT, 7, {"group_id": "readers", "member_id": "", "topics": topics})


def _make_busy(broker: RunningBroker, client: Client) -> None:
    _use_a_kafka_group(broker)
    with httpx.Client(base_url=broker.admin_url) as admin:
        admin.put(f"/admin/v2/persistent/{TOPIC}")
        rate = {"dispatchThrottlingRateInMsg": 1000, "ratePeriodInSecond": 1}
        answer = admin.post(
            "/admin/v2/namespaces/public/default/subscriptionDispatchRate", json=rate
        )
        assert answer.status_code == 204, answer.text
        assert admin.get("/admin/v2/brokers/health").status_code == 200
        _use_a_scalable_topic(broker, admin)
    consumer = client.subscribe(_NAME, "s")
    producer = client.create_producer(_NAME)
    for size_bytes in (10, 1000, 10_000, 2_000_000):
        producer.send(b"x" * size_bytes, partition_key="k")
    consumer.acknowledge(consumer.receive(30_000))
    with client.new_transaction() as committed:
        producer.send(b"in a transaction", txn=committed)
    stays_open = client.new_transaction()
    producer.send(b"stays open", txn=stays_open)
    with suppress(NotAllowed):
        for _ in range(5):
            producer.send(b"one is too much", txn=stays_open)
    client.subscribe(_PASSING, "s")
    client.create_producer(_PASSING).send(b"kept nowhere")
    compact(broker, TOPIC)
    with RawClient(broker.service_url) as raw:
        text = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
        raw.create_producer(_TYPED, schema=text)
        body = pb.CommandGetSchema(topic=_TYPED)
        raw.request(pb.BaseCommand.GET_SCHEMA, "getSchema", body)


def _use_a_scalable_topic(broker: RunningBroker, admin: httpx.Client) -> None:
    path = "/admin/v2/scalable/public/default/scalable"
    assert admin.put(path).status_code == 204
    with RawClient(broker.service_url) as raw:
        watch_layout(raw, _SCALABLE)
        join(raw, _SCALABLE)
        assert admin.post(f"{path}/split/0").status_code == 204
        next_layout(raw)
        share_by_buckets(raw, _SEGMENT, [(0, 32767), (32768, 65535)])
        raw.flow(1)
        raw.create_producer(_SEGMENT)
        raw.publish(b"x", 0, num_messages_in_batch=2)
        raw.receive(pb.BaseCommand.MESSAGE)


def scrape(broker: RunningBroker) -> Scrape:
    text = httpx.get(f"{broker.admin_url}/metrics").text
    samples: dict[str, list[Mapping[str, str]]] = {}
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
            if not sample.labels.get("topic", "").startswith("segment://"):
                values[sample.name] = sample.value
    return Scrape(text, samples, values)
