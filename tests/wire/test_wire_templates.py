"""protobuf parses frames written from byte templates as intended."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.errors import NotAllowed
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import varint
from pybroker.wire.commands import (
    MessageFrames,
    ack_set_bits,
    ack_set_words,
    receipts,
    transaction_done,
)
from pybroker.wire.frames import FrameDecoder, SendRun, encode_command, encode_frame, field_number
from pybroker.wire.message_metadata import build_entry

Type = pb.BaseCommand
U64 = st.integers(0, 2**64 - 1)
ENTRY_IDS = st.integers(0, 2**35 - 20)
LEDGERS = st.integers(0, 2**63 - 1)


def frames_in(data: bytes) -> Iterator[tuple[pb.BaseCommand, bytes]]:
    while data:
        total, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
        frame, data = data[4 : 4 + total], data[4 + total :]
        assert len(frame) == total
        yield pb.BaseCommand.FromString(frame[4 : 4 + size]), frame[4 + size :]


def run_of(producer_id: int, sends: list[tuple[int, int | None]]) -> SendRun:
    entry = build_entry(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0), b"x")
    data = b""
    for sequence_id, highest in sends:
        send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
        if highest is not None:
            send.highest_sequence_id = highest
        data += encode_frame(pb.BaseCommand(type=Type.SEND, send=send), entry)
    (run,) = FrameDecoder(1024).receive(data)
    assert isinstance(run, SendRun)
    return run


@given(
    producer_id=U64,
    sends=st.lists(st.tuples(U64, st.none() | U64), min_size=1, max_size=5),
    ledger_id=LEDGERS,
    first=ENTRY_IDS,
)
def test_a_run_of_receipts_is_one_receipt_per_message(
    producer_id: int, sends: list[tuple[int, int | None]], ledger_id: int, first: int
) -> None:
    written = receipts(run_of(producer_id, sends), ledger_id, first)
    expected = []
    for index, (sequence_id, highest) in enumerate(sends):
        receipt = pb.CommandSendReceipt(
            producer_id=producer_id,
            sequence_id=sequence_id,
            message_id=pb.MessageIdData(ledgerId=ledger_id, entryId=first + index),
        )
        if highest is not None:
            receipt.highest_sequence_id = highest
        expected.append((pb.BaseCommand(type=Type.SEND_RECEIPT, send_receipt=receipt), b""))
    assert list(frames_in(written)) == expected


def message(consumer_id: int, partition: int, ledger_id: int, entry_id: int) -> pb.BaseCommand:
    command = pb.CommandMessage(consumer_id=consumer_id)
    command.message_id.ledgerId, command.message_id.entryId = ledger_id, entry_id
    if partition >= 0:
        command.message_id.partition = partition
    return pb.BaseCommand(type=Type.MESSAGE, message=command)


deliveries = st.lists(st.tuples(ENTRY_IDS, st.binary(max_size=300)), min_size=1, max_size=6)


@given(U64, st.integers(-1, 2**31 - 1), st.lists(LEDGERS, min_size=1, max_size=3), deliveries)
def test_messages_carry_their_ids_and_entries_verbatim(
    consumer_id: int, partition: int, ledgers: list[int], delivered: list[tuple[int, bytes]]
) -> None:
    frames = MessageFrames(consumer_id, partition)
    entry_ids = [entry_id for entry_id, _ in delivered]
    entries = [entry for _, entry in delivered]
    for ledger_id in ledgers:
        assert list(frames_in(frames.encode(ledger_id, entry_ids, entries))) == [
            (message(consumer_id, partition, ledger_id, entry_id), entry)
            for entry_id, entry in delivered
        ]


@given(
    deliveries,
    st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6),
    st.integers(1, 2**100 - 1),
)
def test_messages_carry_redelivery_counts_and_what_is_unacknowledged(
    delivered: list[tuple[int, bytes]], counts: list[int], unacked: int
) -> None:
    frames = MessageFrames(7, -1)
    entry_ids = [entry_id for entry_id, _ in delivered]
    entries = [entry for _, entry in delivered]
    counts = counts[: len(entries)]
    written = frames.encode_again(3, entry_ids, entries, counts, {entry_ids[0]: (unacked, 100)})
    for index, (command, entry) in enumerate(frames_in(written)):
        assert entry == entries[index]
        assert command.message.message_id.entryId == entry_ids[index]
        assert command.message.redelivery_count == counts[index]
        expected = unacked if entry_ids[index] == entry_ids[0] else 0
        assert ack_set_bits(command.message.ack_set, 100) == expected


@given(deliveries, st.integers(0, 2**64 - 1))
def test_messages_carry_the_epoch_their_consumer_told_last(
    delivered: list[tuple[int, bytes]], epoch: int
) -> None:
    frames = MessageFrames(7, -1)
    entry_ids = [entry_id for entry_id, _ in delivered]
    entries = [entry for _, entry in delivered]
    for command, _ in frames_in(frames.encode(3, entry_ids, entries)):
        assert not command.message.HasField("consumer_epoch")
    frames.begin_epoch(1)
    frames.begin_epoch(epoch)
    written = frames.encode(3, entry_ids, entries)
    written += frames.encode_again(3, entry_ids, entries, [1] * len(entries), None)
    for command, _ in frames_in(written):
        assert command.message.consumer_epoch == epoch
        assert command.message.message_id.ledgerId == 3


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2**n - 1))))
def test_an_ack_set_survives_the_wire(batch: tuple[int, int]) -> None:
    size, unacked = batch
    words = ack_set_words(unacked, size)
    signed = [word - 2**64 if word >= 2**63 else word for word in words]
    carried = pb.MessageIdData(ledgerId=0, entryId=0, ack_set=signed).ack_set
    assert ack_set_bits(carried, size) == unacked


@pytest.mark.parametrize("words", [[0b10000], [0, 1], [-1], [0] * 10_000 + [-(2**63)]])
def test_an_ack_set_names_no_message_that_the_batch_does_not_have(words: list[int]) -> None:
    with pytest.raises(NotAllowed):
        ack_set_bits(words, 4)


@given(U64)
def test_a_varint_reads_back(value: int) -> None:
    assert varint.decode(varint.encode(value)) == value


@given(ENTRY_IDS)
def test_a_padded_entry_id_is_a_varint_of_fixed_width(entry_id: int) -> None:
    padded = varint.ENTRY_LOW[entry_id & 127] + varint.ENTRY_HIGH[entry_id >> 7]
    assert len(padded) == varint.ENTRY_WIDTH
    assert varint.decode(padded) == entry_id
    assert pb.MessageIdData.FromString(b"\x08\x00\x10" + padded).entryId == entry_id


@pytest.mark.slow
def test_the_type_of_each_command_is_the_number_of_its_field() -> None:
    bodies = [each for each in Type.DESCRIPTOR.fields if each.message_type is not None]
    assert {each.number for each in bodies} == set(Type.Type.values())
    for each in bodies:
        body = getattr(pb.BaseCommand(), each.name)
        assert field_number(type(body)) == each.number


@given(request_id=U64, text=st.text(max_size=300), entry=st.binary(max_size=20))
def test_a_command_is_framed_as_protobuf_would_write_it(
    request_id: int, text: str, entry: bytes
) -> None:
    pong = pb.BaseCommand(type=Type.PONG, pong=pb.CommandPong())
    assert encode_command(pb.CommandPong()) == encode_frame(pong)
    error = pb.CommandError(request_id=request_id, error=pb.NotAllowedError, message=text)
    wanted = pb.BaseCommand(type=Type.ERROR, error=error)
    assert encode_command(error, entry) == encode_frame(wanted, entry)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (Type.NEW_TXN_RESPONSE, "newTxnResponse"),
        (Type.ADD_PARTITION_TO_TXN_RESPONSE, "addPartitionToTxnResponse"),
        (Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, "addSubscriptionToTxnResponse"),
        (Type.END_TXN_RESPONSE, "endTxnResponse"),
        (Type.END_TXN_ON_PARTITION_RESPONSE, "endTxnOnPartitionResponse"),
        (Type.END_TXN_ON_SUBSCRIPTION_RESPONSE, "endTxnOnSubscriptionResponse"),
    ],
)
@given(request_id=U64, most=U64, least=U64)
def test_a_transactions_answer_is_what_protobuf_would_write(
    kind: int, field: str, request_id: int, most: int, least: int
) -> None:
    number = Type.DESCRIPTOR.fields_by_name[field].number
    wanted = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    response = getattr(wanted, field)
    response.request_id = request_id
    response.txnid_most_bits, response.txnid_least_bits = most, least
    assert transaction_done(number, request_id, most, least) == encode_frame(wanted)
