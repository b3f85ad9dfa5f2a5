"""Rows of single transactions and of large ones: the cost of their END."""

import re
import time
from collections.abc import Callable

from calibration import fdatasync_ms, quantile
from figures import Figure, Target
from flood import Publisher, build_batch, drive, send_frames
from measured_broker import MeasuredBroker
from raw_connection import RawConnection, Type
from transactions import connect_coordinator, open_transaction
from transform import SUBSCRIPTION, Source, acknowledgement, end_txn
from workload import Bench, Load, last_position, new_topic, publish

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb

COMMITS_PER_ROUND, SYNCS_PER_ROUND, ROUNDS = 50, 30, 6
MESSAGES, ACKS, PARTICIPANTS = 1_000_000, 100_000, 30_000
WINDOW = 10_000
ACKS_PER_COMMAND = 1000
LOOP_LAG = re.compile(r"^pybroker_loop_lag_seconds_max\S* (\S+)", re.M)


def lone(bench: Bench) -> list[Figure]:
    """Commits on one topic, without and with an acknowledgement."""
    with bench.broker("txn-lone") as broker:
        alone = [_beyond_fdatasync_ms(bench, broker, False) for _ in range(bench.runs)]
        with_ack = [_beyond_fdatasync_ms(bench, broker, True) for _ in range(bench.runs)]
    name = "lone commit, one topic"
    return [
        Figure(f"{name}: p50 beyond fdatasync", "ms", alone, Target(0.5)),
        Figure(f"{name}, one acknowledgement: p50 beyond fdatasync", "ms", with_ack),
    ]


def _beyond_fdatasync_ms(bench: Bench, broker: MeasuredBroker, acknowledges: bool) -> float:
    """Commits and fdatasyncs alternate, so that both see the same disk."""
    topic, taken, synced = new_topic(), [], []
    rounds = max(1, int(ROUNDS * bench.scale))
    control, producing = connect_coordinator(broker), RawConnection(broker.port)
    producing.create_producer(topic, in_txn=True)
    source = _source(broker, producing, rounds * COMMITS_PER_ROUND) if acknowledges else None
    for _ in range(rounds):
        synced += fdatasync_ms(bench.folder, SYNCS_PER_ROUND)
        for _ in range(COMMITS_PER_ROUND):
            txn_id = open_transaction(control, topic)
            producing.socket.sendall(send_frames(build_batch(1, 100, txn_id), 1, 1, txn_id))
            producing.wait_for(Type.SEND_RECEIPT)
            if source is not None:
                _add_subscription(control, txn_id, source.topic)
                producing.send(acknowledgement(source, txn_id, producing.next_request_id()))
                producing.wait_for(Type.ACK_RESPONSE)
            taken.append(1000 * _commit(control, txn_id))
    producing.close()
    control.close()
    return quantile(sorted(taken), 0.5) - quantile(sorted(synced), 0.5)


def _source(broker: MeasuredBroker, consuming: RawConnection, count: int) -> Source:
    topic = new_topic()
    consuming.subscribe(topic, SUBSCRIPTION, pb.CommandSubscribe.Shared)
    publish(broker, topic, Load(count, 1, 100, WINDOW))
    return Source(topic, last_position(consuming)[0])


def large(bench: Bench) -> list[Figure]:
    figures = []
    for name, prepare, count in (
        ("messages", _messages, MESSAGES),
        ("acknowledgements", _acknowledgements, ACKS),
        ("partitions", _partitions, PARTICIPANTS),
    ):
        figures += _end_of_a_large_one(bench, name, prepare, bench.scaled(count))
    return figures


Prepare = Callable[[MeasuredBroker, RawConnection, TxnId, int], None]


def _end_of_a_large_one(bench: Bench, what: str, prepare: Prepare, count: int) -> list[Figure]:
    taken, turns, grown = [], [], []
    for _ in range(bench.runs):
        with bench.broker(f"txn-{what}") as broker:
            control = connect_coordinator(broker)
            before_mb = broker.resident_mb()
            txn_id = open_transaction(control, new_topic())
            prepare(broker, control, txn_id, count)
            _longest_turn_ms(broker)
            taken.append(_commit(control, txn_id))
            turns.append(_longest_turn_ms(broker))
            grown.append(broker.resident_mb() - before_mb)
            control.close()
    name = f"commit of {count:,} {what}"
    return [
        Figure(f"{name}: END", "s", taken, Target(2)),
        Figure(f"{name}: longest wait of the loop lately", "ms", turns, Target(20)),
        Figure(f"{name}: memory", "MB", grown),
    ]


def _messages(broker: MeasuredBroker, control: RawConnection, txn_id: TxnId, count: int) -> None:
    topic = new_topic()
    _add_partitions(control, txn_id, [topic])
    connection = RawConnection(broker.port)
    connection.create_producer(topic, in_txn=True)
    frames = send_frames(build_batch(1, 100, txn_id), 1, count, txn_id)
    drive([Publisher(connection, frames, len(frames) // count, count, WINDOW)])
    connection.close()


def _acknowledgements(
    broker: MeasuredBroker, control: RawConnection, txn_id: TxnId, count: int
) -> None:
    """Acknowledge every other message individually: no two form a range."""
    topic = new_topic()
    connection = RawConnection(broker.port)
    connection.subscribe(topic, SUBSCRIPTION, pb.CommandSubscribe.Shared)
    publish(broker, topic, Load(2 * count, 1, 100, WINDOW))
    ledger_id = last_position(connection)[0]
    _add_subscription(control, txn_id, topic)
    for first in range(0, 2 * count, 2 * ACKS_PER_COMMAND):
        ack = pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.Individual,
            txnid_most_bits=txn_id.most,
            txnid_least_bits=txn_id.least,
            request_id=connection.next_request_id(),
        )
        for entry_id in range(first, min(first + 2 * ACKS_PER_COMMAND, 2 * count), 2):
            ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        connection.send(pb.BaseCommand(type=Type.ACK, ack=ack))
        connection.wait_for(Type.ACK_RESPONSE)


def _partitions(broker: MeasuredBroker, control: RawConnection, txn_id: TxnId, count: int) -> None:
    """Add partitions that do not exist: only their cost for the coordinator remains."""
    topics = [new_topic() for _ in range(count)]
    for first in range(0, count, 1000):
        _add_partitions(control, txn_id, topics[first : first + 1000])


def _add_partitions(control: RawConnection, txn_id: TxnId, topics: list[str]) -> None:
    add = pb.CommandAddPartitionToTxn(
        request_id=control.next_request_id(),
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        partitions=topics,
    )
    control.send(pb.BaseCommand(type=Type.ADD_PARTITION_TO_TXN, addPartitionToTxn=add))
    control.wait_for(Type.ADD_PARTITION_TO_TXN_RESPONSE)


def _add_subscription(control: RawConnection, txn_id: TxnId, topic: str) -> None:
    add = pb.CommandAddSubscriptionToTxn(
        request_id=control.next_request_id(),
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    add.subscription.add(topic=topic, subscription=SUBSCRIPTION)
    control.send(pb.BaseCommand(type=Type.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=add))
    control.wait_for(Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE)


def _commit(control: RawConnection, txn_id: TxnId) -> float:
    """Commit; returns the seconds."""
    started = time.perf_counter()
    control.send(end_txn(control.next_request_id(), txn_id))
    control.wait_for(Type.END_TXN_RESPONSE)
    return time.perf_counter() - started


def _longest_turn_ms(broker: MeasuredBroker) -> float:
    found = LOOP_LAG.search(broker.metrics())
    assert found is not None
    return 1000 * float(found[1])
