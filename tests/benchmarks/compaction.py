"""A row of compaction: a million keys, twice."""

import json
import time
import urllib.request
from collections.abc import Iterator

from figures import Figure
from flood import Consumer, NoAcks, Publisher
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from workload import Bench, Spent, measure, new_topic

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame
from pybroker.wire.message_metadata import build_entry

KEYS = 1_000_000
PUBLISHED_AT_ONCE = 100_000
WINDOW = 10_000
_FIRST_SEQUENCE_ID = 1 << 21  # ids of four bytes each, so that all frames have one size
_POLL_S = 0.05


def compaction(bench: Bench) -> list[Figure]:
    """Compact twice: the second compaction also merges the result of the first."""
    keys = bench.scaled(KEYS)
    spent: dict[str, list[Spent]] = {"first": [], "again": []}
    memory, read = [], []
    for _ in range(bench.runs):
        with bench.broker("compaction") as broker:
            topic = new_topic()
            for which, found in spent.items():
                publish_keyed(broker, topic, keys)
                used_mb = broker.resident_mb()
                done, most_mb = compact(broker, topic)
                found.append(done)
                if which == "first":
                    memory.append(most_mb - used_mb)
            read.append(read_compacted(broker, topic, keys).rate(keys))
    name = f"compacting {keys:,} keys"
    return [
        Figure(f"{name}: time", "s", [each.seconds for each in spent["first"]]),
        Figure(f"{name}: broker CPU", "µs/e", [each.cpu_us(keys) for each in spent["first"]]),
        Figure(f"{name} again, each twice: time", "s", [each.seconds for each in spent["again"]]),
        Figure(f"{name}: memory", "MB", memory),
        Figure(f"{keys:,} keys read compacted: rate", "e/s", read),
    ]


def publish_keyed(broker: MeasuredBroker, topic: str, keys: int) -> None:
    connection = RawConnection(broker.port)
    connection.create_producer(topic)
    for start in range(0, keys, PUBLISHED_AT_ONCE):
        count = min(PUBLISHED_AT_ONCE, keys - start)
        frames = list(keyed_frames(start, count))
        publisher = Publisher(connection, b"".join(frames), len(frames[0]), count, WINDOW)
        measure(broker, [publisher])
    connection.close()


def keyed_frames(start: int, count: int) -> Iterator[bytes]:
    payload = bytes(100)
    send = pb.CommandSend(producer_id=1, sequence_id=0)
    command = pb.BaseCommand(type=Type.SEND, send=send)
    metadata = pb.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1)
    for number in range(start, start + count):
        command.send.sequence_id = _FIRST_SEQUENCE_ID + number
        metadata.partition_key = f"key-{number:09d}"
        yield encode_frame(command, build_entry(metadata, payload))


def compact(broker: MeasuredBroker, topic: str) -> tuple[Spent, float]:
    """Compact; returns the cost and the peak memory in MB."""
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/compaction"
    cpu_s, began_s, most_mb = broker.cpu_s(), time.perf_counter(), 0.0
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    while (answer := status(url))["status"] == "RUNNING":
        most_mb = max(most_mb, broker.resident_mb())
        time.sleep(_POLL_S)
    if answer["status"] != "SUCCESS":
        raise RuntimeError(f"The compaction failed: {answer['lastError']}")
    return Spent(time.perf_counter() - began_s, broker.cpu_s() - cpu_s), most_mb


def status(url: str) -> dict[str, str]:
    with urllib.request.urlopen(url) as answer:
        return dict(json.load(answer))


def read_compacted(broker: MeasuredBroker, topic: str, keys: int) -> Spent:
    connection = RawConnection(broker.port)
    subscribe = pb.CommandSubscribe(
        topic=topic,
        subscription="compacted",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=connection.next_request_id(),
        initialPosition=pb.CommandSubscribe.Earliest,
        durable=False,
        read_compacted=True,
    )
    connection.send(pb.BaseCommand(type=Type.SUBSCRIBE, subscribe=subscribe))
    connection.wait_for(Type.SUCCESS)
    spent = measure(broker, [Consumer(connection, keys, keys, NoAcks())])
    connection.close()
    return spent
