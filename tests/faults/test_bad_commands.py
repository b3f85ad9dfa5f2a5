"""Well-formed commands that make no sense: a typed error, or nothing; never harm to others."""

import pytest
from peer import REQUEST_ID, Peer, Type, is_error

from pybroker.wire import pulsar_api_pb2 as pb

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
def test_a_topic_name_that_is_none_is_refused(peer: Peer, topic: str) -> None:
    assert is_error(peer.create_producer(topic))
    assert is_error(peer.subscribe(topic))


@pytest.mark.parametrize("topic", ["%2e%2e", "a%2Fb", "t-partition-99999999", "ü", "a/b/c"])
def test_an_odd_topic_name_hurts_nobody(peer: Peer, topic: str, entry: bytes) -> None:
    answer = peer.create_producer(f"persistent://public/default/{topic}")
    if not is_error(answer):
        receipt = peer.publish(entry)
        assert receipt is not None and receipt.command.HasField("send_receipt")


def test_a_missing_required_field_is_refused(peer: Peer) -> None:
    peer.write(b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\x05\x2a\x00")
    answer = peer.answer()
    assert is_error(answer.command if answer else None)


@pytest.mark.parametrize("permits", [0, 2**31, 2**32 - 1])
def test_permits_beyond_reason_do_not_stop_delivery(peer: Peer, entry: bytes, permits: int) -> None:
    topic = f"permits-{permits}"
    peer.create_producer(topic)
    peer.subscribe(topic)
    for granted in (permits, 2**31 - 1, 2**31 - 1, 10):
        peer.send(Type.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=granted))
    peer.send(Type.SEND, entry, send=pb.CommandSend(producer_id=1, sequence_id=0))
    delivered = peer.answer(Type.MESSAGE)
    assert delivered is not None and delivered.entry == entry


def ack(*ids: pb.MessageIdData, kind: int = pb.CommandAck.Individual) -> pb.CommandAck:
    return pb.CommandAck(
        consumer_id=1,
        ack_type=kind,  # type: ignore[arg-type]
        message_id=ids,
        request_id=REQUEST_ID,
    )


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
    peer: Peer, entry: bytes, name: str
) -> None:
    topic = f"acks-{name.replace(' ', '-')}"
    peer.create_producer(topic)
    peer.publish(entry)
    peer.subscribe(topic)
    assert peer.request(Type.ACK, ack=BAD_ACKS[name]) is not None
    peer.publish(entry, sequence_id=1)
    peer.send(Type.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=10))
    assert peer.answer(Type.MESSAGE) is not None
    assert peer.answer(Type.MESSAGE) is not None


def test_commands_about_strangers_are_answered_or_ignored(peer: Peer, entry: bytes) -> None:
    """Producers and consumers that this connection never made, or closed a moment ago."""
    peer.send(Type.SEND, entry, send=pb.CommandSend(producer_id=9, sequence_id=0))
    peer.send(Type.FLOW, flow=pb.CommandFlow(consumer_id=9, messagePermits=1))
    redeliver = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=9)
    peer.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=redeliver)
    unknown = pb.CommandSeek(consumer_id=9, request_id=REQUEST_ID)
    peer.send(Type.SEEK, seek=unknown)
    answer = peer.answer(Type.ERROR)
    assert answer is not None and answer.command.error.request_id == REQUEST_ID


def test_a_producer_id_in_use_is_answered_once_more(peer: Peer) -> None:
    first, second = peer.create_producer("twice"), peer.create_producer("twice")
    assert first is not None and second is not None
    assert second.type in (Type.PRODUCER_SUCCESS, Type.ERROR)


def test_producers_without_end_are_stopped(peer: Peer) -> None:
    """One connection may not hold the broker's memory: at some count it is refused or closed."""
    refused = False
    for producer_id in range(100_000):
        command = pb.CommandProducer(topic="many", producer_id=producer_id, request_id=producer_id)
        peer.send(Type.PRODUCER, producer=command)
        if producer_id % 1000 == 999 and is_refused(peer, 1000):
            refused = True
            break
    assert refused


def is_refused(peer: Peer, answers: int) -> bool:
    for _ in range(answers):
        answer = peer.answer(Type.PRODUCER_SUCCESS, Type.ERROR)
        if answer is None or answer.command.type == Type.ERROR:
            return True
    return False


def new_txn(peer: Peer, tc_id: int = 0, ttl_ms: int = 60_000) -> pb.CommandNewTxnResponse:
    command = pb.CommandNewTxn(request_id=REQUEST_ID, tc_id=tc_id, txn_ttl_millis=ttl_ms)
    answer = peer.request(Type.NEW_TXN, newTxn=command)
    assert answer is not None
    return answer.newTxnResponse


def end_txn(peer: Peer, least: int, most: int = 0, **action: int) -> pb.CommandEndTxnResponse:
    command = pb.CommandEndTxn(
        request_id=REQUEST_ID,
        txnid_least_bits=least,
        txnid_most_bits=most,
        **action,  # type: ignore[arg-type]
    )
    answer = peer.request(Type.END_TXN, endTxn=command)
    assert answer is not None
    return answer.endTxnResponse


@pytest.mark.parametrize("tc_id", [16, 2**32, 2**64 - 1])
def test_an_unknown_coordinator_is_named(peer: Peer, tc_id: int) -> None:
    assert new_txn(peer, tc_id).error == pb.TransactionCoordinatorNotFound
    ended = end_txn(peer, 0, most=tc_id, txn_action=pb.COMMIT)
    assert ended.error == pb.TransactionCoordinatorNotFound


@pytest.mark.parametrize("least", [2**40, 2**63, 2**64 - 1])
def test_an_unknown_transaction_is_named(peer: Peer, least: int) -> None:
    assert end_txn(peer, least, txn_action=pb.COMMIT).error == pb.TransactionNotFound


@pytest.mark.parametrize("ttl_ms", [0, 2**63, 2**64 - 1])
def test_an_unreasonable_timeout_is_refused_or_bounded(peer: Peer, ttl_ms: int) -> None:
    answer = new_txn(peer, ttl_ms=ttl_ms)
    if not answer.HasField("error"):
        assert not end_txn(peer, answer.txnid_least_bits, txn_action=pb.ABORT).HasField("error")


def test_ending_without_saying_how_is_refused(peer: Peer) -> None:
    """proto2's default would make it a commit."""
    assert end_txn(peer, new_txn(peer).txnid_least_bits).HasField("error")


def test_a_message_after_its_transaction_is_refused(peer: Peer, entry: bytes) -> None:
    peer.create_producer("late")
    least = new_txn(peer).txnid_least_bits
    add = pb.CommandAddPartitionToTxn(
        request_id=REQUEST_ID,
        txnid_least_bits=least,
        txnid_most_bits=0,
        partitions=["persistent://public/default/late"],
    )
    peer.request(Type.ADD_PARTITION_TO_TXN, addPartitionToTxn=add)
    end_txn(peer, least, txn_action=pb.COMMIT)
    send = pb.CommandSend(producer_id=1, sequence_id=0, txnid_least_bits=least, txnid_most_bits=0)
    peer.send(Type.SEND, entry, send=send)
    answer = peer.answer(Type.SEND_RECEIPT, Type.SEND_ERROR)
    assert answer is not None and answer.command.type == Type.SEND_ERROR
    assert end_txn(peer, least, txn_action=pb.ABORT).error == pb.InvalidTxnStatus


def test_a_hundred_racing_ends_agree(service_url: str, peer: Peer) -> None:
    least = new_txn(peer).txnid_least_bits
    for number in range(100):
        command = pb.CommandEndTxn(
            request_id=number,
            txnid_least_bits=least,
            txnid_most_bits=0,
            txn_action=pb.COMMIT if number % 2 else pb.ABORT,
        )
        peer.send(Type.END_TXN, endTxn=command)
    outcomes = set()
    for _ in range(100):
        answer = peer.answer(Type.END_TXN_RESPONSE)
        assert answer is not None
        ended = answer.command.endTxnResponse
        outcomes.add((ended.request_id % 2, ended.error if ended.HasField("error") else None))
    assert outcomes in (
        {(0, None), (1, pb.InvalidTxnStatus)},
        {(1, None), (0, pb.InvalidTxnStatus)},
    )
