"""Rows of throughput: the rate of a raw load, and the broker's CPU per entry."""

from collections.abc import Callable

from figures import Figure, Target
from flood import Acks, Consumer, cumulative_acks, listed_acks
from measured_broker import MeasuredBroker
from workload import (
    Bench,
    Load,
    Spent,
    consume,
    last_position,
    measure,
    new_topic,
    publish,
    publisher,
    subscribed,
)

ACKS_STEP = 1000


def publish_100b(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(250_000), 1, 100, window=10_000)
    return _published(bench, "publish 100 B", load, Target(6, 4), Target(120e3, 200e3, True))


def publish_1kb(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(150_000), 1, 1024, window=5_000)
    return _published(bench, "publish 1 KB", load, Target(9, 6), Target(80e3, 130e3, True))


def _published(bench: Bench, name: str, load: Load, cpu: Target, rate: Target) -> list[Figure]:
    with bench.broker("publish") as broker:
        spent = [publish(broker, new_topic(), load) for _ in range(bench.runs)]
    return [
        Figure(f"{name}: rate", "e/s", [s.rate(load.entries) for s in spent], rate),
        Figure(f"{name}: broker CPU", "µs/e", [s.cpu_us(load.entries) for s in spent], cpu),
    ]


AcksFrom = Callable[[int, int], Acks]


def dispatch_100b(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(100_000), 1, 100, window=10_000)
    count = load.entries
    ways: list[tuple[str, AcksFrom, Target]] = [
        (
            "cumulative acks",
            lambda ledger, first: cumulative_acks(ledger, first, count, ACKS_STEP),
            Target(4, 2.5),
        ),
        (
            "listed acks",
            lambda ledger, first: listed_acks(ledger, first, count, ACKS_STEP),
            Target(4, 2.5),
        ),
        ("one ACK each", lambda ledger, first: listed_acks(ledger, first, count, 1), Target(10, 6)),
    ]
    figures = []
    with bench.broker("dispatch") as broker:
        topic = new_topic()
        publish(broker, topic, load)
        for name, acks_from, target in ways:
            spent = [
                _dispatch(broker, topic, f"{name}-{run}", load, acks_from)
                for run in range(bench.runs)
            ]
            figures += [
                Figure(f"dispatch 100 B, {name}: rate", "e/s", [s.rate(count) for s in spent]),
                Figure(
                    f"dispatch 100 B, {name}: broker CPU",
                    "µs/e",
                    [s.cpu_us(count) for s in spent],
                    target,
                ),
            ]
    return figures


def _dispatch(
    broker: MeasuredBroker, topic: str, subscription: str, load: Load, acks_from: AcksFrom
) -> Spent:
    connection = subscribed(broker, topic, subscription)
    ledger_id, last_entry_id = last_position(connection)
    acks = acks_from(ledger_id, last_entry_id - load.entries + 1)
    return consume(broker, connection, load, acks)


def publish_and_consume_1kb(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(100_000), 1, 1024, window=5_000)
    spent = []
    with bench.broker("both") as broker:
        for _ in range(bench.runs):
            topic = new_topic()
            consumer = subscribed(broker, topic, "both")
            acks = cumulative_acks(last_position(consumer)[0], 0, load.entries, ACKS_STEP)
            sink = Consumer(consumer, load.entries, load.entries, acks)
            source = publisher(broker, topic, load)
            spent.append(measure(broker, [sink, source]))
            consumer.close()
            source.connection.close()
    return [
        Figure(
            "publish + consume 1 KB at once: rate",
            "e/s",
            [s.rate(load.entries) for s in spent],
            Target(60e3, 100e3, True),
        ),
        Figure(
            "publish + consume 1 KB at once: broker CPU",
            "µs/e",
            [s.cpu_us(load.entries) for s in spent],
        ),
    ]


def batches_100_x_1kb(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(6_000), 100, 1024, window=100)
    published, consumed = _both_ways(bench, load)
    target = Target(200, 300, True)
    return [
        _megabytes("batches of 100 × 1 KB: publish", load, published, target),
        _megabytes("batches of 100 × 1 KB: consume", load, consumed, target),
        *_batch_costs("batches of 100 × 1 KB", load, published, consumed, Target(130)),
    ]


def batches_1000_x_100b(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(6_000), 1000, 100, window=100)
    published, consumed = _both_ways(bench, load)
    messages = load.entries * load.messages
    target = Target(1e6, 2e6, True)
    return [
        Figure(
            f"batches of 1000 × 100 B: {way}", "msg/s", [s.rate(messages) for s in spent], target
        )
        for way, spent in (("publish", published), ("consume", consumed))
    ] + _batch_costs("batches of 1000 × 100 B", load, published, consumed, Target(150))


def _batch_costs(
    name: str, load: Load, published: list[Spent], consumed: list[Spent], publish: Target
) -> list[Figure]:
    """The broker's CPU per large entry. That of publishing includes checkpoints."""
    costs = [[spent.cpu_us(load.entries) for spent in way] for way in (published, consumed)]
    return [
        Figure(f"{name}: publish, broker CPU", "µs/e", costs[0], publish),
        Figure(f"{name}: consume, broker CPU", "µs/e", costs[1]),
    ]


def _both_ways(bench: Bench, load: Load) -> tuple[list[Spent], list[Spent]]:
    published, consumed = [], []
    with bench.broker("batches") as broker:
        for _ in range(bench.runs):
            topic = new_topic()
            published.append(publish(broker, topic, load))
            connection = subscribed(broker, topic, "batches")
            consumed.append(consume(broker, connection, load))
    return published, consumed


def _megabytes(name: str, load: Load, spent: list[Spent], target: Target) -> Figure:
    return Figure(name, "MB/s", [s.rate(load.payload_mb) for s in spent], target)
