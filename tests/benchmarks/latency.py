"""Rows of latency: one message at a time, a steady trickle, many waiting producers."""

import select
import time

from calibration import fdatasync_ms, quantile
from figures import Figure, Target
from flood import build_batch, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RECEIVE_BYTES, FrameCounter, RawConnection, Type
from workload import Bench, Load, measure, new_topic, publisher, subscribed

SENDS_PER_ROUND = 100
SYNCS_PER_ROUND = 30
TRICKLE_PER_S = 1000
TRICKLE_S = 6
SYNCHRONOUS_TOPICS = 64


def synchronous_send(bench: Bench) -> list[Figure]:
    """Sends and fdatasyncs alternate, so that both see the same disk."""
    excess, sends, syncs = [], [], []
    with bench.broker("send") as broker:
        for _ in range(bench.runs):
            taken, synced = _take_turns(broker, bench, max(1, int(10 * bench.scale)))
            sends.append(quantile(taken, 0.5))
            syncs.append(quantile(synced, 0.5))
            excess.append(sends[-1] - syncs[-1])
    return [
        Figure("synchronous send 1 KB: p50", "ms", sends),
        Figure("fdatasync between those sends: p50", "ms", syncs),
        Figure("synchronous send: p50 beyond fdatasync", "ms", excess, Target(0.5, 0.3)),
    ]


def _take_turns(
    broker: MeasuredBroker, bench: Bench, rounds: int
) -> tuple[list[float], list[float]]:
    connection = RawConnection(broker.port)
    connection.create_producer(new_topic())
    frame = send_frames(build_batch(1, 1024), 1, 1)
    taken: list[float] = []
    synced: list[float] = []
    for _ in range(rounds):
        synced += fdatasync_ms(bench.folder, SYNCS_PER_ROUND)
        for _ in range(SENDS_PER_ROUND):
            started = time.perf_counter()
            connection.socket.sendall(frame)
            connection.wait_for(Type.SEND_RECEIPT)
            taken.append((time.perf_counter() - started) * 1000)
    connection.close()
    return sorted(taken), sorted(synced)


def end_to_end(bench: Bench) -> list[Figure]:
    quantiles = [(0.5, Target(0.8, 0.6)), (0.99, Target(3, 1.5)), (0.999, Target(8, 4))]
    runs = []
    with bench.broker("trickle") as broker:
        for _ in range(bench.runs):
            runs.append(_trickle(broker, max(1000, int(TRICKLE_PER_S * TRICKLE_S * bench.scale))))
    return [
        Figure(
            f"end to end at {TRICKLE_PER_S}/s: p{100 * q:g}",
            "ms",
            [quantile(taken, q) for taken in runs],
            target,
        )
        for q, target in quantiles
    ]


def _trickle(broker: MeasuredBroker, count: int) -> list[float]:
    """The milliseconds from sending to receiving each message; messages arrive in order."""
    topic = new_topic()
    consumer = subscribed(broker, topic, "trickle")
    consumer.allow(count)
    producer = RawConnection(broker.port)
    producer.create_producer(topic)
    frame = send_frames(build_batch(1, 1024), 1, 1)
    sent: list[float] = []
    taken: list[float] = []
    messages = FrameCounter(Type.MESSAGE)
    started = time.perf_counter()
    while len(taken) < count:
        now = time.perf_counter()
        due = started + len(sent) / TRICKLE_PER_S
        if len(sent) < count and now >= due:
            sent.append(now)
            producer.socket.sendall(frame)
            continue
        wait = due - now if len(sent) < count else 5.0
        for ready in select.select([consumer.socket, producer.socket], [], [], wait)[0]:
            chunk = ready.recv(RECEIVE_BYTES)
            if ready is consumer.socket:
                now = time.perf_counter()
                arrived = messages.feed(chunk)
                taken += [(now - sent[len(taken) + i]) * 1000 for i in range(arrived)]
    producer.close()
    consumer.close()
    return sorted(taken)


def synchronous_topics(bench: Bench) -> list[Figure]:
    """64 producers; each waits for its receipt before it sends again."""
    load = Load(bench.scaled(64_000) // SYNCHRONOUS_TOPICS, 1, 1024, window=1)
    count = load.entries * SYNCHRONOUS_TOPICS
    spent = []
    with bench.broker("topics") as broker:
        for _ in range(bench.runs):
            pumps = [publisher(broker, new_topic(), load) for _ in range(SYNCHRONOUS_TOPICS)]
            spent.append(measure(broker, pumps))
            for pump in pumps:
                pump.connection.close()
    name = f"{SYNCHRONOUS_TOPICS} topics, synchronous producers"
    return [
        Figure(f"{name}: rate", "e/s", [s.rate(count) for s in spent], Target(15e3, 22e3, True)),
        Figure(f"{name}: broker CPU", "µs/e", [s.cpu_us(count) for s in spent]),
    ]
