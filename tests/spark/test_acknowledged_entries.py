"""Entries acknowledged individually before a query began, with a broker in this process."""

import pytest

from pybroker.base.errors import ServiceNotReady, TransactionConflict
from pybroker.client import Client, ConsumerType, InitialPosition, Outgoing, encode_batch
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadMaxRows
from pybroker.spark.offsets import CursorName, Position, SourceOffset, Span, Stretch
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading import acknowledged
from pybroker.spark.reading.acknowledged import acknowledged_behind
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.session import Session, connect

TOPIC = "persistent://public/default/in"
NAME = CursorName(TOPIC, "s")


def left_behind(broker, count, done, per_entry=1):
    """Publish `count` entries; a Shared consumer acknowledges those of `done`."""
    with Client(broker.service_url) as client:
        consumer = client.subscribe(
            TOPIC, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        producer = client.create_producer(TOPIC)
        for number in range(count):
            producer.send_batch(encode_batch([Outgoing(b"%d" % number)] * per_entry))
        messages = [consumer.receive(30_000) for _ in range(count * per_entry)]
        for number in done:
            for message in messages[number * per_entry : (number + 1) * per_entry]:
                consumer.acknowledge(message)


def holes(broker):
    session = Session(connect(broker.service_url))
    try:
        stretches = acknowledged_behind(session, NAME, session.cursor(NAME))
        return [(stretch.first.entry_id, stretch.last.entry_id) for stretch in stretches]
    finally:
        session.close()


@pytest.mark.parametrize(
    ("done", "found"),
    [
        ([], []),
        ([0, 1, 2], []),  # the cursor has passed them
        ([3, 4, 5, 6, 7], [(3, 7)]),
        ([1, 3, 4, 8], [(1, 1), (3, 4), (8, 8)]),
        ([7, 8, 9], [(7, 9)]),  # no entry follows them
        ([0, 9], [(9, 9)]),
    ],
)
def test_what_was_acknowledged_one_by_one_is_found(pulsar_broker, done, found):
    left_behind(pulsar_broker, 10, done)
    assert holes(pulsar_broker) == found


def test_batches_are_counted_as_entries(pulsar_broker):
    left_behind(pulsar_broker, 6, [1, 2, 4], per_entry=5)
    assert holes(pulsar_broker) == [(1, 2), (4, 4)]


def test_what_an_open_transaction_holds_is_waited_for(pulsar_broker):
    """It may abort, and its acknowledgements must not count as done."""
    left_behind(pulsar_broker, 10, [8])
    driver = Session(connect(pulsar_broker.service_url))
    txn = driver.client.new_transaction()
    driver.acknowledge(NAME, Position(driver.cursor(NAME).ledger_id, 4), txn)
    driver._consumer(NAME, InitialPosition.Earliest).close()
    with pytest.raises(ServiceNotReady, match="held by an open transaction"):
        holes(pulsar_broker)
    txn.abort()
    driver.close()
    assert holes(pulsar_broker) == [(8, 8)]


def test_while_holes_are_looked_for_nobody_takes_the_cursor(pulsar_broker, monkeypatch):
    left_behind(pulsar_broker, 10, [8])
    driver = Session(connect(pulsar_broker.service_url))
    seen = []
    read_to_end = Session.read_to_end

    def rival(session, topic, after):
        txn = driver.client.new_transaction()
        with pytest.raises(TransactionConflict):
            driver.acknowledge(NAME, Position(after.ledger_id, 4), txn)
        txn.abort()
        seen.append(txn)
        return read_to_end(session, topic, after)

    monkeypatch.setattr(Session, "read_to_end", rival)
    assert holes(pulsar_broker) == [(8, 8)]
    driver.close()
    assert seen


def test_without_holes_nothing_is_received(pulsar_broker, monkeypatch):
    left_behind(pulsar_broker, 10, [0])
    monkeypatch.delattr(Session, "receiving")
    assert holes(pulsar_broker) == []


def test_the_search_has_a_limit_and_says_so(pulsar_broker, monkeypatch, caplog):
    left_behind(pulsar_broker, 10, [2, 8])
    monkeypatch.setattr(acknowledged, "MAX_ENTRIES", 4)
    assert holes(pulsar_broker) == [(2, 2)]
    assert "are read again" in caplog.text


def test_a_query_leaves_out_what_was_acknowledged_batch_by_batch(pulsar_broker):
    left_behind(pulsar_broker, 10, [3, 4, 5, 6, 7])
    options = {"service_url": pulsar_broker.service_url, "topic": TOPIC, "subscription": "s"}
    reader = PulsarStreamReader(chosen(options, Mode.READ_STREAM), Shape.of(default_schema()))
    start = reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(start, ReadMaxRows(5))) != start:
        rows = []
        for task in reader.partitions(start, end):
            rows += [row["value"] for batch in reader.read(task) for row in batch.to_pylist()]
        batches.append(rows)
        start = end
    reader.stop()
    assert batches == [[b"0", b"1", b"2"], [b"8", b"9"]]


def test_an_offset_carries_what_is_still_to_come_through_json():
    stretches = {TOPIC: [Stretch(Position(3, 3), Position(4, 7))]}
    spans = {TOPIC: Span(Position(3, 1), Position(3, 5))}
    offset = SourceOffset("s", spans, stretches)
    assert SourceOffset.from_json(offset.to_json()) == offset


def test_the_planner_leaves_the_subscription_to_the_sink(pulsar_broker):
    left_behind(pulsar_broker, 10, [3])
    options = {"service_url": pulsar_broker.service_url, "topic": TOPIC, "subscription": "s"}
    reader = PulsarStreamReader(chosen(options, Mode.READ_STREAM), Shape.of(default_schema()))
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))
    with Client(pulsar_broker.service_url) as client:
        client.subscribe(TOPIC, "s", ConsumerType.Exclusive).close()
    reader.stop()
