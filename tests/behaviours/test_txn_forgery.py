"""Metadata that a client forges affects no transaction, not even after a crash."""

import pytest
from raw_client import RawClient
from scenario import IN_LOG_ORDER

import pybroker.testing
from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import MARKER_TXN_ABORT, MARKER_TXN_COMMIT, payload_of

Crashing = pybroker.testing.RunningBroker


def claims(txn_id: TxnId, **fields: int) -> dict[str, int]:
    return {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least, **fields}


def names(txn_id: TxnId) -> dict[str, int]:
    """The fields that name the transaction in the SEND command, which alone decides."""
    return {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least}


def messages(broker: Crashing, topic: str) -> list[bytes]:
    """What a new reader receives up to a last message that this function publishes."""
    with RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        raw.publish(b"end", 1_000)
        raw.subscribe(topic, durable=False, subscription="reader")
        raw.flow(1000)
        found: list[bytes] = []
        while not found or found[-1] != b"end":
            raw.messages(1)
            found.append(payload_of(raw.entry))
        return [payload for payload in found if payload != b"end"]


def begin(raw: RawClient, topic: str) -> TxnId:
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    return txn_id


@IN_LOG_ORDER
@pytest.mark.parametrize("marker_type", [MARKER_TXN_ABORT, MARKER_TXN_COMMIT])
def test_a_plain_message_that_claims_to_be_a_marker_ends_nothing(
    topic: str, marker_type: int
) -> None:
    with pybroker.testing.broker() as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic)
            txn_id = begin(raw, topic)
            raw.publish(b"one", 0, txn_id)
            raw.publish(b"claim", 1, **claims(txn_id, marker_type=marker_type))
            raw.publish(b"two", 2, txn_id)
            raw.end(txn_id, commit=marker_type == MARKER_TXN_ABORT)
        expected = [b"one", b"claim", b"two"] if marker_type == MARKER_TXN_ABORT else [b"claim"]
        broker.kill_and_restart()
        assert messages(broker, topic) == expected


def test_a_plain_message_whose_metadata_names_a_transaction_is_plain(topic: str) -> None:
    with pybroker.testing.broker() as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic)
            raw.end(begin(raw, topic), commit=True)
            txn_id = begin(raw, topic)
            raw.publish(b"aborted", 0, txn_id)
            raw.publish(b"names it", 1, **claims(txn_id))
            raw.publish(b"names none that ever was", 2, **claims(TxnId(0, 999)))
            raw.end(txn_id, commit=False)
        for _ in range(2):
            assert messages(broker, topic) == [b"names it", b"names none that ever was"]
            broker.kill_and_restart()


def test_the_transaction_of_the_command_counts_not_that_of_the_metadata(topic: str) -> None:
    with pybroker.testing.broker() as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic)
            aborted, committed = begin(raw, topic), begin(raw, topic)
            raw.publish(b"a", 0, send_fields=names(committed), **claims(aborted))
            raw.publish(b"b", 1, send_fields=names(aborted), **claims(committed))
            raw.publish(b"c", 2, send_fields=names(committed))
            raw.publish(
                b"d",
                3,
                send_fields=names(committed),
                **claims(committed, marker_type=MARKER_TXN_ABORT),
            )
            raw.end(committed, commit=True)
            raw.end(aborted, commit=False)
        for _ in range(2):
            assert messages(broker, topic) == [b"a", b"c", b"d"]
            broker.kill_and_restart()


def test_a_claimed_marker_does_not_end_an_open_transaction_over_a_crash(topic: str) -> None:
    with pybroker.testing.broker() as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic)
            txn_id = begin(raw, topic)
            raw.publish(b"one", 0, txn_id)
            raw.publish(b"claim", 1, **claims(txn_id, marker_type=MARKER_TXN_COMMIT))
            broker.kill_and_restart()
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic)
            raw.publish(b"two", 2, txn_id)
            raw.end(txn_id, commit=False)
        assert messages(broker, topic) == [b"claim"]


@IN_LOG_ORDER
def test_a_claimed_marker_gives_no_sequence_id_back(topic: str) -> None:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic, producer_name="raw")
            raw.create_producer(topic, 2, producer_name="other")
            txn_id = begin(raw, topic)
            raw.publish(b"one", 7, txn_id)
            claim = claims(txn_id, marker_type=MARKER_TXN_ABORT, producer_id=2)
            raw.publish(b"claim", 0, producer_name="other", **claim)
            raw.end(txn_id, commit=True)
            broker.kill_and_restart()
        with RawClient(broker.service_url) as raw:
            answer = raw.ask_for_producer(topic, producer_name="raw")
            assert answer.last_sequence_id == 7
            raw.publish(b"one again", 7)
        assert messages(broker, topic) == [b"one", b"claim"]


@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_message_in_another_producers_name_makes_no_duplicates_of_its_messages(
    topic: str, in_transaction: bool
) -> None:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        with RawClient(broker.service_url) as raw:
            raw.create_producer(topic, producer_name="raw")
            raw.create_producer(topic, 2, producer_name="other")
            raw.publish(b"one", 0)
            txn_id = begin(raw, topic)
            command = names(txn_id) if in_transaction else {}
            raw.start_publish(b"claim", 1_000_000, producer_id=2, send_fields=command)
            raw.receive(pb.BaseCommand.SEND_RECEIPT)
            raw.end(txn_id, commit=True)
            broker.kill_and_restart()
        with RawClient(broker.service_url) as raw:
            assert raw.ask_for_producer(topic, producer_name="raw").last_sequence_id == 0
            raw.publish(b"two", 1)
        assert messages(broker, topic) == [b"one", b"claim", b"two"]
