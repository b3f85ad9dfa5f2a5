"""Well-formed but senseless commands: a typed error or nothing, and no effect on others."""

from typing import Any

import pytest
from peer import Peer
from raw_client import RawClient

from pybroker.base.names import TxnId
from pybroker.server.connections import command_runner
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

Type = pb.BaseCommand
SHARED = pb.CommandSubscribe.Shared

BAD_NAMES = {
    "path": "persistent://public/default/..",
    "path upwards": "../../etc/passwd",
    "tenant upwards": "persistent://../default/t",
    "NUL": "persistent://public/default/a\x00b",
    "64 KB": "persistent://public/default/" + "a" * 65_536,
    "empty": "",
    "unknown domain": "ephemeral://public/default/t",
    "too few parts": "persistent://public/t",
}


@pytest.mark.parametrize("topic", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_topic_name_that_is_none_is_refused(client: RawClient, topic: str) -> None:
    assert isinstance(client.ask_for_producer(topic), pb.CommandError)
    assert isinstance(client.subscribe(topic), pb.CommandError)


@pytest.mark.parametrize("topic", ["%2e%2e", "a%2Fb", "t-partition-99999999", "ü", "a/b/c"])
def test_an_odd_topic_name_harms_no_other_topic(client: RawClient, topic: str) -> None:
    answer = client.ask_for_producer(f"persistent://public/default/{topic}")
    if not isinstance(answer, pb.CommandError):
        assert isinstance(client.publish(b"x", 0), pb.CommandSendReceipt)


def test_a_missing_required_field_is_refused(peer: Peer) -> None:
    peer.write(b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x05\x2a\x00")
    assert peer.is_refused()


NOT_UTF_8 = {
    "topic": pb.CommandProducer(topic="@@", producer_id=1, request_id=1),
    "property": pb.CommandProducer(
        topic="t", producer_id=1, request_id=1, metadata=[pb.KeyValue(key="@@", value="")]
    ),
}


@pytest.mark.parametrize("where", NOT_UTF_8)
def test_text_that_is_not_utf_8_ends_the_connection(peer: Peer, where: str) -> None:
    command = pb.BaseCommand(type=Type.PRODUCER, producer=NOT_UTF_8[where])
    peer.write(encode_frame(command).replace(b"@@", b"\xff\xfe"))
    assert peer.is_refused()


@pytest.mark.parametrize("permits", [0, 2**31, 2**32 - 1])
def test_permits_beyond_reason_do_not_stop_delivery(client: RawClient, permits: int) -> None:
    topic = f"permits-{permits}"
    client.create_producer(topic)
    client.subscribe(topic, subType=SHARED)
    for granted in (permits, 2**31 - 1, 2**31 - 1, 10):
        client.flow(granted)
    client.publish(b"delivered", 0)
    client.receive(Type.MESSAGE)
    assert client.entry.endswith(b"delivered")


def ack(*ids: pb.MessageIdData, kind: Any = pb.CommandAck.Individual) -> pb.CommandAck:
    return pb.CommandAck(consumer_id=1, ack_type=kind, message_id=ids)


BAD_ACKS = {
    "foreign ledger": ack(pb.MessageIdData(ledgerId=123_456, entryId=0)),
    "entry of the future": ack(pb.MessageIdData(ledgerId=0, entryId=2**40)),
    "negative": ack(pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)),
    "largest": ack(pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)),
    "ack set of an entry that is no batch": ack(
        pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[-1, 5, 7], batch_size=-3)
    ),
    "huge ack set": ack(
        pb.MessageIdData(ledgerId=0, entryId=0, ack_set=[1] * 10_000, batch_size=2**31 - 1)
    ),
    "cumulative of the future": ack(
        pb.MessageIdData(ledgerId=2**62, entryId=5), kind=pb.CommandAck.Cumulative
    ),
    "cumulative of nothing": ack(kind=pb.CommandAck.Cumulative),
    "cumulative of two": ack(
        pb.MessageIdData(ledgerId=0, entryId=0),
        pb.MessageIdData(ledgerId=0, entryId=1),
        kind=pb.CommandAck.Cumulative,
    ),
}


@pytest.mark.parametrize("name", BAD_ACKS)
def test_a_foreign_acknowledgement_is_answered_and_loses_nothing(
    client: RawClient, name: str
) -> None:
    topic = f"acks-{name.replace(' ', '-')}"
    client.create_producer(topic)
    client.publish(b"before", 0)
    client.subscribe(topic, subType=SHARED)
    client.request(Type.ACK, "ack", BAD_ACKS[name])
    client.publish(b"after", 1)
    client.flow(10)
    client.messages(2)
    assert client.entry.endswith(b"after")


def test_commands_about_strangers_are_answered_or_ignored(client: RawClient) -> None:
    """Producers and consumers that this connection never created or has just closed."""
    client.start_publish(b"x", 0, producer_id=9)
    client.flow(1, consumer_id=9)
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=9)
    client.send(
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, "redeliverUnacknowledgedMessages", redeliver
    )
    answer = client.request(Type.SEEK, "seek", pb.CommandSeek(consumer_id=9))
    assert isinstance(answer, pb.CommandError)


def test_a_producer_id_in_use_is_answered_once_more(client: RawClient) -> None:
    client.create_producer("twice")
    answer = client.ask_for_producer("twice")
    assert isinstance(answer, pb.CommandProducerSuccess | pb.CommandError)


def test_producers_without_end_are_stopped(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection must not fill the broker's memory: at some count it is refused or closed."""
    monkeypatch.setattr(command_runner, "_MAX_PRODUCERS_AND_CONSUMERS", 1000)
    refused = False
    for producer_id in range(5_000):
        producer = pb.CommandProducer(topic="many", producer_id=producer_id, request_id=1)
        peer.write(encode_frame(pb.BaseCommand(type=Type.PRODUCER, producer=producer)))
        if producer_id % 100 == 99 and peer.is_refused():
            refused = True
            break
    assert refused


@pytest.mark.parametrize("tc_id", [16, 2**32, 2**64 - 1])
def test_an_unknown_coordinator_is_named(client: RawClient, tc_id: int) -> None:
    refused = client.try_new_txn(tc_id=tc_id)
    assert refused.error == pb.TransactionCoordinatorNotFound
    assert refused.txnid_most_bits == tc_id
    ended = client.end(TxnId(tc_id, 0), commit=True)
    assert ended.error == pb.TransactionCoordinatorNotFound


@pytest.mark.parametrize("least", [2**40, 2**63, 2**64 - 1])
def test_an_unknown_transaction_is_named(client: RawClient, least: int) -> None:
    assert client.end(TxnId(0, least), commit=True).error == pb.TransactionNotFound


@pytest.mark.parametrize("ttl_ms", [0, 2**63, 2**64 - 1])
def test_an_unreasonable_timeout_is_refused_or_bounded(client: RawClient, ttl_ms: int) -> None:
    answer = client.try_new_txn(timeout_ms=ttl_ms)
    if not answer.HasField("error"):
        txn_id = TxnId(answer.txnid_most_bits, answer.txnid_least_bits)
        assert not client.end(txn_id, commit=False).HasField("error")


@pytest.mark.parametrize("tc_id", [0, 5])
def test_a_refused_transaction_names_the_coordinator_that_was_asked(
    client: RawClient, tc_id: int
) -> None:
    """The Java client uses it to find the waiting request; otherwise that request times out."""
    answer = client.try_new_txn(timeout_ms=2**62, tc_id=tc_id)
    assert answer.error == pb.NotAllowedError
    assert "maxTransactionTimeoutMs" in answer.message
    assert answer.HasField("txnid_most_bits") and answer.txnid_most_bits == tc_id


def test_a_transaction_of_three_hours_is_granted(client: RawClient) -> None:
    """Flink's exactly-once sink requests it by default."""
    client.new_txn(timeout_ms=3 * 3600 * 1000)


def test_ending_without_saying_how_is_refused(client: RawClient) -> None:
    """With proto2's default it would be a commit."""
    most, least = client.new_txn()
    body = pb.CommandEndTxn(txnid_least_bits=least, txnid_most_bits=most)
    assert client.request(Type.END_TXN, "endTxn", body).HasField("error")


def test_a_message_after_its_transaction_is_refused(client: RawClient) -> None:
    client.create_producer("late")
    txn_id = client.new_txn()
    client.add_partition(txn_id, "persistent://public/default/late")
    client.end(txn_id, commit=True)
    assert isinstance(client.publish(b"late", 0, txn_id), pb.CommandSendError)
    assert client.end(txn_id, commit=False).error == pb.InvalidTxnStatus


def test_a_hundred_racing_ends_agree(client: RawClient) -> None:
    txn_id = client.new_txn()
    for number in range(100):
        client.send_end(txn_id, commit=number % 2 == 1)
    answers = [client.receive(Type.END_TXN_RESPONSE) for _ in range(100)]
    by_parity: list[set[int | None]] = [set(), set()]
    for answer in answers:
        error = answer.error if answer.HasField("error") else None
        by_parity[answer.request_id % 2].add(error)
    assert {None} in by_parity
    assert {pb.InvalidTxnStatus} in by_parity


LONG = [pb.KeyValue(key=str(number), value="v" * 9000) for number in range(9)]
MANY = [pb.KeyValue(key="", value="")] * 1001


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("a long name", {"consumer_name": "x" * 2000}),
        ("long properties", {"metadata": LONG}),
        ("properties by the thousand", {"metadata": MANY}),
        (
            "hash ranges by the thousand",
            {
                "subType": pb.CommandSubscribe.Key_Shared,
                "keySharedMeta": pb.KeySharedMeta(
                    keySharedMode=pb.STICKY,
                    hashRanges=[pb.IntRange(start=n, end=n) for n in range(1025)],
                ),
            },
        ),
    ],
)
def test_a_consumer_that_says_too_much_of_itself_is_refused(
    client: RawClient, what: str, fields: dict[str, Any]
) -> None:
    topic = f"wordy-{what.replace(' ', '-')}"
    assert client.subscribe(topic, **fields).error == pb.NotAllowedError


def test_a_producer_with_a_long_name_is_refused(client: RawClient) -> None:
    answer = client.ask_for_producer("long-name", producer_name="x" * 2000)
    assert answer.error == pb.NotAllowedError


def test_a_schema_version_that_is_no_number_of_8_bytes_is_refused(client: RawClient) -> None:
    body = pb.CommandGetSchema(topic="t", schema_version=b"\xff" * 10_000)
    answer = client.request(Type.GET_SCHEMA, "getSchema", body)
    assert answer.error_code == pb.NotAllowedError
