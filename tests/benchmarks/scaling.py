"""Rows of scaling: CPU per entry must not grow with other things on the same broker.

The same load is published (and consumed and acknowledged) on a fresh broker, and on a broker with a
thousand topics, open transactions or aborted ones, or with holes in a subscription's
acknowledgements.
"""

from collections.abc import Callable

from figures import Figure, Target
from flood import Consumer, build_batch, drive, listed_acks, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from transactions import connect_coordinator, open_transaction
from transform import end_txn
from workload import Bench, Load, last_position, measure, new_topic, publish, subscribed

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

BURDEN = 1000
HOLES = 25_000
ACKS_STEP = 1000
SAME = Target(1.2)


class Stage:
    """A topic with one subscription and its permanent consumer."""

    def __init__(self, broker: MeasuredBroker) -> None:
        self.broker = broker
        self.topic = new_topic()
        self.consumer = subscribed(broker, self.topic, "stage")

    def publish(self, load: Load) -> float:
        """Publish; returns the broker's CPU in µs per entry."""
        return publish(self.broker, self.topic, load).cpu_us(load.entries)

    def pass_through(self, load: Load) -> float:
        """As `publish`, with dispatching and acknowledging."""
        published_us = self.publish(load)
        ledger_id, last_entry_id = last_position(self.consumer)
        acks = listed_acks(ledger_id, last_entry_id - load.entries + 1, load.entries, ACKS_STEP)
        pump = Consumer(self.consumer, load.entries, load.entries, acks)
        return published_us + measure(self.broker, [pump]).cpu_us(load.entries)


def scaling(bench: Bench) -> list[Figure]:
    load = Load(bench.scaled(50_000), 1, 100, window=10_000)
    cases: list[tuple[str, Callable[[Stage], None], Callable[[Stage, Load], float]]] = [
        (f"{BURDEN} other topics", add_topics, Stage.pass_through),
        (f"{BURDEN} open transactions", open_transactions, Stage.publish),
        (f"{BURDEN} aborted transactions", abort_transactions, Stage.pass_through),
        (f"{HOLES} acknowledged holes", acknowledge_every_other, Stage.pass_through),
    ]
    figures = []
    for name, burden, cost in cases:
        ratios = [_ratio(bench, f"{name}-{run}", burden, cost, load) for run in range(bench.runs)]
        figures.append(Figure(f"CPU per entry with {name}", "×", ratios, SAME))
    return figures


def _ratio(
    bench: Bench,
    name: str,
    burden: Callable[[Stage], None],
    cost: Callable[[Stage, Load], float],
    load: Load,
) -> float:
    with bench.broker(f"scaling-{name}") as broker:
        cost(Stage(broker), load)  # warms the broker up
        alone = cost(Stage(broker), load)
        stage = Stage(broker)
        burden(stage)
        return cost(stage, load) / alone


def add_topics(stage: Stage) -> None:
    connection = RawConnection(stage.broker.port)
    for producer_id in range(BURDEN):
        connection.create_producer(new_topic(), producer_id)


def open_transactions(stage: Stage) -> None:
    _write_one_message_each(stage)


def abort_transactions(stage: Stage) -> None:
    control, txn_ids = _write_one_message_each(stage)
    for number, txn_id in enumerate(txn_ids):
        control.send(end_txn(number, txn_id, pb.ABORT))
    for _ in txn_ids:
        control.wait_for(Type.END_TXN_RESPONSE)


def _write_one_message_each(stage: Stage) -> tuple[RawConnection, list[TxnId]]:
    control = connect_coordinator(stage.broker)
    txn_ids = [open_transaction(control, stage.topic) for _ in range(BURDEN)]
    producer = RawConnection(stage.broker.port)
    producer.create_producer(stage.topic, in_txn=True)
    for txn_id in txn_ids:
        entry = build_batch(1, 100, txn_id)
        producer.socket.sendall(send_frames(entry, 1, 1, txn_id))
    for _ in txn_ids:
        producer.wait_for(Type.SEND_RECEIPT)
    producer.close()
    return control, txn_ids


def acknowledge_every_other(stage: Stage) -> None:
    count = 2 * HOLES
    stage.publish(Load(count, 1, 100, window=10_000))
    ledger_id, last_entry_id = last_position(stage.consumer)
    acks = listed_acks(ledger_id, last_entry_id - count + 1, count, ACKS_STEP, every=2)
    drive([Consumer(stage.consumer, count, count, acks)])
