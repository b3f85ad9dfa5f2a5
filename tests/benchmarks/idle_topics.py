"""A row of many unused topics: their memory, and the CPU of an idle broker."""

import time

from figures import Figure, Target
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from workload import Bench

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

TOPICS = 20_000
AT_ONCE = 1000
SETTLE_S = 5.0
IDLE_S = 10.0


def idle_topics(bench: Bench) -> list[Figure]:
    """Topics with a durable subscription each, and no connected clients."""
    topics = bench.scaled(TOPICS)
    loaded, busy, unloaded = [], [], []
    for _ in range(bench.runs):
        with bench.broker("idle") as broker:
            subscribe_to_all(broker, topics)
            busy.append(cpu_percent(broker))
            loaded.append(broker.resident_mb())
            broker.stop()
            broker.start()
            unloaded.append(broker.resident_mb())
    name = f"{topics:,} idle topics"
    return [
        Figure(f"{name}: memory", "MB", loaded, Target(200)),
        Figure(f"{name}: broker CPU", "%", busy, Target(2)),
        Figure(f"{name}, none loaded: memory", "MB", unloaded),
    ]


def subscribe_to_all(broker: MeasuredBroker, topics: int) -> None:
    for start in range(0, topics, AT_ONCE):
        connection = RawConnection(broker.port)
        numbers = range(start, min(topics, start + AT_ONCE))
        connection.socket.sendall(b"".join(map(subscribe_frame, numbers)))
        for _ in numbers:
            connection.wait_for(Type.SUCCESS)
        connection.close()


def subscribe_frame(number: int) -> bytes:
    subscribe = pb.CommandSubscribe(
        topic=f"persistent://public/default/an-idle-topic-{number:06d}",
        subscription="subscription",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=number,
        request_id=number,
    )
    return encode_frame(pb.BaseCommand(type=Type.SUBSCRIBE, subscribe=subscribe))


def cpu_percent(broker: MeasuredBroker) -> float:
    time.sleep(SETTLE_S)  # connections end, the journal is flushed
    before_s, started_s = broker.cpu_s(), time.perf_counter()
    time.sleep(IDLE_S)
    return 100 * (broker.cpu_s() - before_s) / (time.perf_counter() - started_s)
