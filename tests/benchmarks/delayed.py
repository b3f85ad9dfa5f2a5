"""A row of delayed messages: their memory, and the cost of plain messages beside them."""

import random
import time

from figures import Figure, Target
from flood import Consumer, NoAcks, Publisher
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from workload import Bench, Load, Spent, measure, new_topic, publish

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame
from pybroker.wire.message_metadata import build_entry

DELAYED = 1_000_000
PLAIN = 100_000
DIFFERENT = 20_000  # delivery times, over some hours
WINDOW = 10_000
_FIRST_SEQUENCE_ID = 1 << 14
_UNLIMITED = ("maxUnackedMessagesPerConsumer=0", "maxUnackedMessagesPerSubscription=0")
_HOUR_MS = 3_600_000


def delayed(bench: Bench) -> list[Figure]:
    count, load = bench.scaled(DELAYED), Load(bench.scaled(PLAIN), 1, 100, WINDOW)
    memory, passing, alone, beside = [], [], [], []
    for _ in range(bench.runs):
        with bench.broker("delayed", *_UNLIMITED) as broker:
            plain, waiting = new_topic(), new_topic()
            publish_delayed(broker, waiting, count)
            publish(broker, waiting, load)
            publish(broker, plain, load)
            consume(broker, plain, load)  # warms up the dispatch
            before_mb = broker.resident_mb()
            spent, connection = consume(broker, waiting, load)
            passing.append(spent.cpu_s)
            memory.append(broker.resident_mb() - before_mb)
            beside.append(while_there(broker, waiting, connection, load).cpu_us(load.entries))
            connection = consume(broker, plain, load)[1]
            alone.append(while_there(broker, plain, connection, load).cpu_us(load.entries))
    name = f"{count:,} delayed messages"
    return [
        Figure(f"{name}: memory", "MB", memory, Target(150)),
        Figure(f"{name}: read past, broker CPU", "s", passing),
        Figure("Shared 100 B, publish and dispatch: broker CPU", "µs/e", alone),
        Figure(f"the same beside {name}: broker CPU", "µs/e", beside),
    ]


def publish_delayed(broker: MeasuredBroker, topic: str, count: int) -> None:
    rng = random.Random(1)
    now_ms, payload = time.time_ns() // 1_000_000, bytes(100)
    send = pb.CommandSend(producer_id=1, sequence_id=0)
    frames = []
    for sequence_id in range(_FIRST_SEQUENCE_ID, _FIRST_SEQUENCE_ID + DIFFERENT):
        send.sequence_id = sequence_id
        metadata = pb.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1)
        metadata.deliver_at_time = now_ms + rng.randint(_HOUR_MS, 10 * _HOUR_MS)
        command = pb.BaseCommand(type=Type.SEND, send=send)
        frames.append(encode_frame(command, build_entry(metadata, payload)))
    assert len(set(map(len, frames))) == 1
    connection = RawConnection(broker.port)
    connection.create_producer(topic)
    measure(broker, [Publisher(connection, b"".join(frames), len(frames[0]), count, WINDOW)])
    connection.close()


def consume(broker: MeasuredBroker, topic: str, load: Load) -> tuple[Spent, RawConnection]:
    """Consume on Shared, without acknowledgements."""
    connection = RawConnection(broker.port)
    connection.subscribe(topic, "sub", pb.CommandSubscribe.Shared)
    pump = Consumer(connection, load.entries, load.entries, NoAcks())
    return measure(broker, [pump]), connection


def while_there(broker: MeasuredBroker, topic: str, connection: RawConnection, load: Load) -> Spent:
    """Publish to a waiting consumer."""
    source = RawConnection(broker.port)
    source.create_producer(topic)
    entry = build_entry(
        pb.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1), bytes(100)
    )
    send = pb.CommandSend(producer_id=1, sequence_id=_FIRST_SEQUENCE_ID)
    frame = encode_frame(pb.BaseCommand(type=Type.SEND, send=send), entry)
    sink = Consumer(connection, load.entries, load.entries, NoAcks())
    publisher = Publisher(source, frame * 1000, len(frame), load.entries, WINDOW)
    spent = measure(broker, [sink, publisher])
    connection.close()
    source.close()
    return spent
