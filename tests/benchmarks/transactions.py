"""Rows of transactions: rate, duration of a commit, and extra cost per message."""

import time
from collections.abc import Sequence
from statistics import median

from calibration import quantile
from figures import Figure, Target
from flood import Publisher, build_batch, drive, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from transform import SUBSCRIPTION, TIMEOUT_MS, Source, Transform, end_txn
from workload import Bench, Load, Spent, last_position, measure, new_topic, publish

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

OPEN_AT_ONCE = 256
FEW_AT_ONCE, COORDINATORS = 50, 16
BUFFERS = "logOrder", "commitOrder"
MESSAGES_PER_TXN = 1000
WINDOW = 10_000


def transactions(bench: Bench) -> list[Figure]:
    count, alone = bench.scaled(5_000), bench.scaled(1_000) // 4
    busy: list[Spent] = []
    busy_ms: list[list[float]] = []
    alone_ms: list[list[float]] = []
    with bench.broker("transactions") as broker:
        for _ in range(bench.runs):
            transform = _transform(broker, count, OPEN_AT_ONCE)
            busy.append(measure(broker, [transform]))
            busy_ms.append(sorted(transform.commit_ms))
            transform = _transform(broker, alone, 1)
            measure(broker, [transform])
            alone_ms.append(sorted(transform.commit_ms))
    name = f"transactions, {OPEN_AT_ONCE} open"
    rates = [s.rate(count) for s in busy]
    return [
        Figure(f"{name}: rate", "txn/s", rates, Target(2000, 5000, True)),
        Figure(f"{name}: broker CPU", "µs/txn", [s.cpu_us(count) for s in busy]),
        Figure(f"{name}: commit p50", "ms", [quantile(taken, 0.5) for taken in busy_ms]),
        Figure(f"{name}: commit p99", "ms", [quantile(taken, 0.99) for taken in busy_ms]),
        Figure("one transaction at a time: commit p50", "ms", [quantile(t, 0.5) for t in alone_ms]),
    ]


def small_transactions(bench: Bench) -> list[Figure]:
    """Like Apache Pulsar's own load tool: fewer transactions at once, on all coordinators."""
    count = bench.scaled(5_000)
    spent: list[Spent] = []
    with bench.broker("txn-small") as broker:
        for _ in range(bench.runs):
            spent.append(measure(broker, [_transform(broker, count, FEW_AT_ONCE, COORDINATORS)]))
    name = f"transactions, one message, one acknowledgement, {FEW_AT_ONCE} open"
    return [
        Figure(f"{name}: rate", "txn/s", [s.rate(count) for s in spent]),
        Figure(f"{name}: broker CPU", "µs/txn", [s.cpu_us(count) for s in spent], Target(450)),
    ]


def fast_path(bench: Bench) -> list[Figure]:
    """The smallest transactions, in both buffers: without a target, to keep both fast."""
    count = bench.scaled(5_000)
    figures = []
    for buffer in BUFFERS:
        alone: list[Spent] = []
        with_ack: list[Spent] = []
        with bench.broker("txn-fast", f"transactionBuffer={buffer}") as broker:
            for _ in range(bench.runs):
                pump = publishing(broker, new_topic(), count, FEW_AT_ONCE, COORDINATORS)
                alone.append(measure(broker, [pump]))
                pump.connection.close()
                pump = _transform(broker, count, FEW_AT_ONCE, COORDINATORS)
                with_ack.append(measure(broker, [pump]))
                pump.connection.close()
        for name, spent in (("one topic", alone), ("one topic, one acknowledgement", with_ack)):
            name = f"{buffer}, {name}, {FEW_AT_ONCE} open"
            figures.append(Figure(f"{name}: rate", "txn/s", [s.rate(count) for s in spent]))
            figures.append(
                Figure(f"{name}: broker CPU", "µs/txn", [s.cpu_us(count) for s in spent])
            )
    return figures


def publishing(
    broker: MeasuredBroker,
    topic: str,
    count: int,
    window: int,
    coordinators: int = 1,
    action: pb.TxnAction | None = pb.COMMIT,
) -> Transform:
    """Transactions of one message."""
    connection = connect_coordinator(broker, coordinators)
    connection.create_producer(topic, in_txn=True)
    return Transform(connection, topic, None, count, window, coordinators, action)


def _transform(broker: MeasuredBroker, count: int, window: int, coordinators: int = 1) -> Transform:
    source_topic, output = new_topic(), new_topic()
    publish(broker, source_topic, Load(count, 1, 100, window=10_000))
    connection = connect_coordinator(broker, coordinators)
    connection.create_producer(output, in_txn=True)
    connection.subscribe(source_topic, SUBSCRIPTION, pb.CommandSubscribe.Shared)
    source = Source(source_topic, last_position(connection)[0])
    return Transform(connection, output, source, count, window, coordinators)


def connect_coordinator(broker: MeasuredBroker, coordinators: int = 1) -> RawConnection:
    connection = RawConnection(broker.port)
    for tc_id in range(coordinators):
        request = pb.CommandTcClientConnectRequest(
            request_id=connection.next_request_id(), tc_id=tc_id
        )
        connection.send(
            pb.BaseCommand(type=Type.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=request)
        )
        connection.wait_for(Type.TC_CLIENT_CONNECT_RESPONSE)
    return connection


def transactional_publish(bench: Bench) -> list[Figure]:
    """The same messages plain and in transactions of 1,000, alternately.

    A ratio of two noisy figures needs more runs than one figure.
    """
    txns = bench.scaled(150_000) // MESSAGES_PER_TXN
    count = txns * MESSAGES_PER_TXN
    plain, in_txn = [], []
    with bench.broker("txn-publish") as broker:
        for _ in range(3 * bench.runs):
            plain.append(publish(broker, new_topic(), Load(count, 1, 100, WINDOW)))
            in_txn.append(publish_in_transactions(broker, new_topic(), txns))
    plain_us, in_txn_us = ([s.cpu_us(count) for s in spent] for spent in (plain, in_txn))
    extra = [100 * (median(in_txn_us) / median(plain_us) - 1)]
    return [
        Figure("publish 100 B plain: broker CPU", "µs/e", plain_us),
        Figure("publish 100 B in transactions: broker CPU", "µs/e", in_txn_us),
        Figure("a transactional message's extra CPU", "%", extra, Target(20)),
    ]


def publish_in_transactions(
    broker: MeasuredBroker, topic: str, txns: int, action: pb.TxnAction = pb.COMMIT
) -> Spent:
    """Publish in transactions of 1,000 messages. Counts sending and ending, not opening."""
    control = connect_coordinator(broker)
    # Ids from 128 on take two bytes, so that all frames have one size.
    while (first := open_transaction(control, topic)).least < 128:
        pass
    txn_ids = [first, *(open_transaction(control, topic) for _ in range(txns - 1))]
    frames = b"".join(
        send_frames(build_batch(1, 100, txn_id), 1, MESSAGES_PER_TXN, txn_id) for txn_id in txn_ids
    )
    count = txns * MESSAGES_PER_TXN
    connection = RawConnection(broker.port)
    connection.create_producer(topic, in_txn=True)
    cpu_before, started = broker.cpu_s(), time.perf_counter()
    drive([Publisher(connection, frames, len(frames) // count, count, WINDOW)])
    end_all(control, txn_ids, action)
    spent = Spent(time.perf_counter() - started, broker.cpu_s() - cpu_before)
    connection.close()
    control.close()
    return spent


def end_all(control: RawConnection, txn_ids: Sequence[TxnId], action: pb.TxnAction) -> None:
    for number, txn_id in enumerate(txn_ids):
        control.send(end_txn(number, txn_id, action))
    for _ in txn_ids:
        control.wait_for(Type.END_TXN_RESPONSE)


def open_transaction(control: RawConnection, topic: str) -> TxnId:
    """A new transaction with `topic` added."""
    new = pb.CommandNewTxn(request_id=control.next_request_id(), txn_ttl_millis=TIMEOUT_MS, tc_id=0)
    control.send(pb.BaseCommand(type=Type.NEW_TXN, newTxn=new))
    answer = control.wait_for(Type.NEW_TXN_RESPONSE).newTxnResponse
    txn_id = TxnId(answer.txnid_most_bits, answer.txnid_least_bits)
    add = pb.CommandAddPartitionToTxn(
        request_id=control.next_request_id(),
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        partitions=[topic],
    )
    control.send(pb.BaseCommand(type=Type.ADD_PARTITION_TO_TXN, addPartitionToTxn=add))
    control.wait_for(Type.ADD_PARTITION_TO_TXN_RESPONSE)
    return txn_id
