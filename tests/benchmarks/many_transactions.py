"""Rows of many transactions: open ones, and aborted ones.

Publishing, dispatching and starting should cost the same with and without them.
"""

import time
from collections.abc import Callable
from statistics import median

from figures import Figure, Target
from measured_broker import MeasuredBroker
from raw_connection import RawConnection
from transactions import (
    COORDINATORS,
    MESSAGES_PER_TXN,
    connect_coordinator,
    publish_in_transactions,
    publishing,
)
from workload import Bench, Load, Spent, consume, measure, new_topic, publish, subscribed

from pybroker.wire import pulsar_api_pb2 as pb

OPEN = 100_000
ABORTED = 1_000_000
AT_ONCE = 1000
TXNS_PER_ROUND = 100  # of a thousand messages each: prepared in memory
BESIDE = 50_000  # plain messages to publish and dispatch
SETTLE_S = 8.0  # the topic and the coordinators write snapshots of open transactions
WITHOUT_LIMITS = "maxActiveTransactionsPerConnection=0"
SAME = Target(20)


def many_open(bench: Bench) -> list[Figure]:
    """Open transactions of one message each, on one topic. Plain messages are published after them,
    which stay invisible, and are published and dispatched on another topic. This alternates with a
    broker that has as many plain messages. A ratio of two noisy figures needs more runs than one
    figure.
    """
    count = bench.scaled(OPEN)
    load = _load(bench)
    with (
        bench.broker("txn-open-none", WITHOUT_LIMITS) as none,
        bench.broker("txn-open", WITHOUT_LIMITS) as broker,
    ):
        topic = new_topic()
        _passed_through_us(none, new_topic(), load)  # warms the broker up
        publish(none, topic, Load(count, 1, 100, AT_ONCE))
        _passed_through_us(broker, new_topic(), load)
        pump = publishing(broker, topic, count, AT_ONCE, COORDINATORS, None)
        measure(broker, [pump])
        time.sleep(SETTLE_S)
        behind = _compared(lambda each: _published_us(each, topic, load), broker, none, bench)
        beside = _compared(
            lambda each: _passed_through_us(each, new_topic(), load), broker, none, bench
        )
        pump.connection.close()
        starts = [_start(broker, topic) for _ in range(bench.runs)]
    name = f"beside {count:,} open transactions"
    return [
        Figure(f"publish behind {count:,} open transactions: more CPU", "%", [behind], SAME),
        Figure(f"publish and dispatch {name}: more CPU", "%", [beside], SAME),
        Figure(f"start after kill -9 {name}", "s", [s.seconds for s in starts], Target(3)),
        Figure(f"start after kill -9 {name}: CPU", "s", [s.cpu_s for s in starts]),
    ]


def aborted_messages(bench: Bench) -> list[Figure]:
    """Aborted transactions of a thousand messages each."""
    count = bench.scaled(ABORTED)

    def abort(broker: MeasuredBroker, topic: str) -> None:
        txns = count // MESSAGES_PER_TXN
        for first in range(0, txns, TXNS_PER_ROUND):
            some = min(TXNS_PER_ROUND, txns - first)
            publish_in_transactions(broker, topic, some, pb.ABORT)

    return _behind_aborted(bench, count, f"{count:,} aborted messages", abort)


def aborted_transactions(bench: Bench) -> list[Figure]:
    """Aborted transactions of one message each, which take minutes to make."""
    count = bench.scaled(ABORTED)

    def abort(broker: MeasuredBroker, topic: str) -> None:
        pump = publishing(broker, topic, count, AT_ONCE, COORDINATORS, pb.ABORT)
        measure(broker, [pump])
        pump.connection.close()

    return _behind_aborted(bench, count, f"{count:,} aborted transactions", abort)


def _behind_aborted(
    bench: Bench, count: int, what: str, abort: Callable[[MeasuredBroker, str], None]
) -> list[Figure]:
    """Starts are compared with those of a broker with as many plain messages in its topic."""
    load = _load(bench)
    with bench.broker("txn-aborted-none", WITHOUT_LIMITS) as broker:
        topic = new_topic()
        publish(broker, topic, Load(count, 1, 100, AT_ONCE))
        plain_starts = [_start(broker, topic) for _ in range(bench.runs)]
    published, dispatched = [], []
    with bench.broker("txn-aborted", WITHOUT_LIMITS) as broker:
        other, topic = new_topic(), new_topic()
        publish(broker, other, load)  # warms the broker up
        abort(broker, topic)
        publish(broker, topic, load)
        for run in range(bench.runs):
            alone_us = _published_us(broker, other, load)
            published.append(_more(_published_us(broker, topic, load), alone_us))
            held = Load((run + 2) * load.entries, 1, 100, load.window)
            alone_us = _dispatched_us(broker, other, held, run)
            dispatched.append(_more(_dispatched_us(broker, topic, held, run), alone_us))
        starts = [_start(broker, topic) for _ in range(bench.runs)]
    more = [_more(some.cpu_s, of.cpu_s) for some, of in zip(starts, plain_starts, strict=True)]
    return [
        Figure(f"publish behind {what}: more CPU", "%", published, SAME),
        Figure(f"dispatch from before {what}: more CPU", "%", dispatched, SAME),
        Figure(f"start after kill -9 with {what}", "s", [s.seconds for s in starts], Target(3)),
        Figure(f"start with {what}: more CPU than with plain ones", "%", more, SAME),
    ]


def _load(bench: Bench) -> Load:
    return Load(bench.scaled(BESIDE), 1, 100, window=10_000)


def _compared(
    cost_us: Callable[[MeasuredBroker], float],
    broker: MeasuredBroker,
    than: MeasuredBroker,
    bench: Bench,
) -> float:
    costs = [(cost_us(broker), cost_us(than)) for _ in range(3 * bench.runs)]
    return _more(*map(median, zip(*costs, strict=True)))


def _more(cost: float, than: float) -> float:
    return 100 * (cost / than - 1)


def _published_us(broker: MeasuredBroker, topic: str, load: Load) -> float:
    return publish(broker, topic, load).cpu_us(load.entries)


def _dispatched_us(broker: MeasuredBroker, topic: str, held: Load, run: int) -> float:
    """Dispatch the whole topic to a subscription from its beginning."""
    consumer = subscribed(broker, topic, f"from-the-earliest-{run}")
    return consume(broker, consumer, held).cpu_us(held.entries)


def _passed_through_us(broker: MeasuredBroker, topic: str, load: Load) -> float:
    consumer = subscribed(broker, topic, "beside")
    published_us = _published_us(broker, topic, load)
    return published_us + consume(broker, consumer, load).cpu_us(load.entries)


def _start(broker: MeasuredBroker, topic: str) -> Spent:
    """The time from a start after kill -9 until all coordinators and the topic serve."""
    broker.kill()
    started = time.perf_counter()
    broker.start()
    connect_coordinator(broker, COORDINATORS).close()
    connection = RawConnection(broker.port)
    connection.create_producer(topic)
    spent = Spent(time.perf_counter() - started, broker.cpu_s())
    connection.close()
    return spent
