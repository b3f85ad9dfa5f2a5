"""A crash at each point of two-phase commit, then recovery: the whole transaction or nothing."""

import threading
from collections.abc import Iterator

import pytest

import pybroker.testing
from pybroker.client import Client, Consumer, InitialPosition, Timeout
from pybroker.testing import RunningBroker

TOPICS = ("left", "right")
LONG_MS = 30_000
# The decision is durable: a transaction that crashes at these points has committed.
COMMITTED_AT = (
    "transaction.decided.after",
    "transaction.marker.before",
    "transaction.marker.after",
    "transaction.pending_ack.before",
    "transaction.pending_ack.after",
    "transaction.completed.before",
    "transaction.completed.after",
    "transaction.end.after",
)
ABORTED_AT = ("transaction.end.before", "transaction.decided.before")


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(faults=True) as running:
        yield running


def reader_of(client: Client, topic: str) -> Consumer:
    """A consumer whose subscription keeps the topic's messages."""
    return client.subscribe(topic, "reader", initial_position=InitialPosition.Earliest)


def read_all(client: Client, topic: str) -> list[bytes]:
    """All messages of the topic; `last` marks the end."""
    client.create_producer(topic).send(b"last")
    consumer = reader_of(client, topic)
    found: list[bytes] = []
    while b"last" not in found:
        found.append(consumer.receive(LONG_MS).data())
    return found[:-1]


def backlog_of_input(client: Client) -> list[bytes]:
    consumer = client.subscribe("input", "s", initial_position=InitialPosition.Earliest)
    try:
        return [consumer.receive(300).data()]
    except Timeout:
        return []


@pytest.mark.slow
@pytest.mark.parametrize("point", [*ABORTED_AT, *COMMITTED_AT])
def test_a_crash_leaves_all_of_a_commit_or_nothing(broker: RunningBroker, point: str) -> None:
    with Client(broker.service_url, enable_transaction=True) as client:
        consumer = client.subscribe("input", "s", initial_position=InitialPosition.Earliest)
        client.create_producer("input").send(b"order")
        txn = client.new_transaction(timeout_ms=60_000)
        for topic in TOPICS:
            reader_of(client, topic).close()
            client.create_producer(topic).send(b"from the order", txn=txn)
        consumer.acknowledge(consumer.receive(LONG_MS), txn=txn)
        crash = broker.faults.inject(point, "crash", transaction=str(txn.txn_id))
        committing = threading.Thread(target=lambda: _commit_if_it_can(txn))
        committing.start()
        crash.wait_for_hit()
        broker.start()
        committing.join(60)
    if point in ABORTED_AT:
        broker.clock.advance("2m")  # the timeout aborts it, unless its client has repeated the END
    with Client(broker.service_url) as reader:
        found = [read_all(reader, topic) for topic in TOPICS]
        left_over = backlog_of_input(reader)
    everything = [[b"from the order"]] * 2
    if point in COMMITTED_AT:
        assert (found, left_over) == (everything, [])
    else:
        assert (found, left_over) in ((everything, []), ([[], []], [b"order"]))


def _commit_if_it_can(txn: object) -> None:
    try:
        txn.commit()  # type: ignore[attr-defined]
    except Exception:  # the client may have given up; only the contents of the topics matter
        return


def test_recovery_may_crash_where_the_commit_did(broker: RunningBroker) -> None:
    with Client(broker.service_url, enable_transaction=True) as client:
        reader = reader_of(client, "left")
        txn = client.new_transaction()
        client.create_producer("left").send(b"once", txn=txn)
        crash = broker.faults.inject("transaction.marker.before", "crash", times=3)
        broker.restart_after(crash)
        txn.commit()
        assert reader.receive(LONG_MS).data() == b"once"
    assert crash.hits == 3


def test_a_broker_that_ends_for_good_does_not_come_back() -> None:
    with pybroker.testing.broker(faults=True) as broker, Client(broker.service_url) as client:
        crash = broker.faults.inject("publish.before_append", "crash")
        broker.restart_after(crash)
        client.create_producer("left").send_async(b"lost", lambda *_: None)
        crash.wait_for_hit()
    with pytest.raises(RuntimeError, match="not running"):
        broker.backlog("left", "s")
