"""Frames in, events out: chunking does not matter, limits hold, SENDs gather into runs."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import (
    FRAME_OVERHEAD_BYTES,
    MAX_COMMAND_BYTES,
    BadChecksum,
    CommandFrame,
    Event,
    FrameDecoder,
    ProtocolError,
    SendRun,
    encode_frame,
)
from pybroker.wire.message_metadata import build_entry

Type = pb.BaseCommand
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
U64 = st.integers(0, 2**64 - 1)


def entry(payload: bytes = b"payload") -> bytes:
    return build_entry(
        pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), payload
    )


def send(producer_id: int = 1, sequence_id: int = 0, payload: bytes = b"x", **more: Any) -> bytes:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **more)
    return encode_frame(pb.BaseCommand(type=Type.SEND, send=command), entry(payload))


def flow(permits: int) -> bytes:
    command = pb.CommandFlow(consumer_id=1, messagePermits=permits)
    return encode_frame(pb.BaseCommand(type=Type.FLOW, flow=command))


def decode(chunks: Iterable[bytes]) -> list[Event]:
    decoder = FrameDecoder(MAX_MESSAGE_BYTES)
    return [event for chunk in chunks for event in decoder.receive(chunk)]


def runs_in(stream: bytes) -> list[SendRun]:
    return [event for event in decode([stream]) if isinstance(event, SendRun)]


def flatten(events: list[Event]) -> list[tuple[object, ...]]:
    """Events without their grouping into runs, which depends on the chunks."""
    flat: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, SendRun):
            columns = zip(
                event.prefixes, event.message_counts, event.highest, event.entries, strict=True
            )
            flat += [(event.producer_id, event.txn_id, *row) for row in columns]
        elif isinstance(event, CommandFrame):
            flat.append((event.command.SerializeToString(), event.entry))
        else:
            flat.append((event.producer_id, event.sequence_id))
    return flat


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks, turn = [], 0
    while data:
        size = sizes[turn % len(sizes)]
        chunks.append(data[:size])
        data, turn = data[size:], turn + 1
    return chunks


sends = st.builds(
    send,
    producer_id=st.integers(0, 2),
    sequence_id=U64,
    payload=st.binary(max_size=300),
    num_messages=st.integers(1, 1000),
)
streams = st.lists(st.one_of(sends, st.integers(0, 2**32 - 1).map(flow)), max_size=12).map(b"".join)


@given(streams, st.lists(st.integers(1, 400), min_size=1))
def test_any_chunking_yields_the_same_frames(stream: bytes, sizes: list[int]) -> None:
    assert flatten(decode(cut(stream, sizes))) == flatten(decode([stream]))


large_sends = st.builds(
    lambda size, **fields: send(payload=b"\x01" * size, **fields),
    size=st.integers(16_000, 60_000),
    producer_id=st.integers(0, 1),
    sequence_id=st.integers(0, 3),
    is_chunk=st.sampled_from([None, True]),
)
damaged = large_sends.map(lambda frame: frame[:-1] + b"\x02")


@settings(deadline=None)
@given(
    st.lists(st.one_of(large_sends, damaged, sends), min_size=1, max_size=5).map(b"".join),
    st.lists(st.integers(1, 100_000), min_size=1),
)
@pytest.mark.slow
def test_large_frames_are_the_same_from_a_buffer_that_is_used_again(
    stream: bytes, sizes: list[int]
) -> None:
    buffer = memoryview(bytearray(100_000))
    decoder = FrameDecoder(MAX_MESSAGE_BYTES)
    events = []
    for chunk in cut(stream, sizes):
        buffer[: len(chunk)] = chunk
        events += decoder.receive(buffer[: len(chunk)])
        buffer[: len(chunk)] = bytes(len(chunk))
    assert flatten(events) == flatten(decode([stream]))
    runs = [event for event in events if isinstance(event, SendRun)]
    assert all(type(entry) is bytes for run in runs for entry in run.entries)


def test_a_large_entry_in_two_pieces_begins_a_run() -> None:
    frame = send(payload=b"x" * 50_000)
    decoder = FrameDecoder(MAX_MESSAGE_BYTES)
    assert decoder.receive(memoryview(frame[:20_000])) == []
    (run,) = decoder.receive(memoryview(frame[20_000:] + send(sequence_id=1)))
    assert isinstance(run, SendRun)
    assert run.sequence_ids() == [0, 1]
    assert run.entries == [entry(b"x" * 50_000), entry(b"x")]


def test_sends_of_one_producer_become_one_run() -> None:
    runs = runs_in(send(1, 5) + send(1, 6) + send(2, 7) + send(1, 8))
    assert [(run.producer_id, run.sequence_ids()) for run in runs] == [
        (1, [5, 6]),
        (2, [7]),
        (1, [8]),
    ]


def test_a_command_between_two_sends_keeps_its_place() -> None:
    first, command, last = decode([send(1, 5) + flow(10) + send(1, 6)])
    assert isinstance(first, SendRun) and isinstance(last, SendRun)
    assert isinstance(command, CommandFrame)
    assert command.command.flow.messagePermits == 10
    assert [run.sequence_ids() for run in (first, last)] == [[5], [6]]


def test_long_commands_end_a_turn_and_none_is_lost() -> None:
    long = pb.CommandGetTopicsOfNamespace(request_id=1, namespace="n" * 100)
    command = encode_frame(
        pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=long)
    )
    decoder = FrameDecoder(MAX_MESSAGE_BYTES, events_a_turn=4)
    decoder.command_bytes_a_turn = 150
    turns = [len(decoder.receive(command * 5 + flow(1) * 5))]
    while decoder.has_more:
        turns.append(len(decoder.receive(b"")))
    assert turns == [2, 2, 4, 2]


def test_a_run_belongs_to_one_transaction() -> None:
    in_txn = [send(txnid_most_bits=most, txnid_least_bits=0) for most in (0, 0, 1)]
    runs = runs_in(send() + b"".join(in_txn))
    assert [(run.txn_id, len(run.entries)) for run in runs] == [
        (None, 1),
        (TxnId(0, 0), 2),
        (TxnId(1, 0), 1),
    ]


@given(producer=U64, sequence=U64, batch=st.integers(1, 1000), highest=st.none() | U64)
def test_a_run_carries_what_the_command_said(
    producer: int, sequence: int, batch: int, highest: int | None
) -> None:
    more = {} if highest is None else {"highest_sequence_id": highest}
    (run,) = decode([send(producer, sequence, num_messages=batch, **more)])
    assert isinstance(run, SendRun)
    assert (run.producer_id, run.sequence_ids(), run.message_counts) == (
        producer,
        [sequence],
        [batch],
    )
    assert run.highest_sequence_ids() == [sequence if highest is None else highest]
    assert run.entries == [entry(b"x")]


def test_a_wrong_checksum_costs_one_message_not_the_connection() -> None:
    broken = bytearray(send(1, 6))
    broken[-1] ^= 1
    good, bad, after = decode([send(1, 5) + bytes(broken) + send(1, 7)])
    assert bad == BadChecksum(producer_id=1, sequence_id=6, highest_sequence_id=6)
    assert isinstance(good, SendRun) and isinstance(after, SendRun)
    assert [run.sequence_ids() for run in (good, after)] == [[5], [7]]


@pytest.mark.parametrize(("stated", "highest"), [({}, 9), ({"highest_sequence_id": 26}, 26)])
def test_the_messages_of_a_damaged_batch_are_counted(stated: Any, highest: int) -> None:
    broken = bytearray(send(1, 6, num_messages=4, **stated))
    broken[-1] ^= 1
    (bad,) = decode([bytes(broken)])
    assert bad == BadChecksum(producer_id=1, sequence_id=6, highest_sequence_id=highest)


def test_a_send_without_an_entry_is_a_bad_checksum() -> None:
    command = pb.BaseCommand(type=Type.SEND, send=pb.CommandSend(producer_id=1, sequence_id=2))
    assert decode([encode_frame(command)]) == [BadChecksum(1, 2, 2)]


def test_a_chunk_is_a_run_of_its_own() -> None:
    first, second, third = runs_in(
        send(1, 5, is_chunk=True) + send(1, 5, is_chunk=True) + send(1, 6)
    )
    assert (first.chunked, second.chunked, third.chunked) == (True, True, False)


def test_fields_that_the_fast_path_does_not_know_do_not_matter() -> None:
    (run,) = runs_in(send(1, 5, marker=False) + send(1, 6))
    assert run.sequence_ids() == [5, 6]


@pytest.mark.parametrize("count", [0, -1, 2**31 - 1])
def test_an_impossible_number_of_messages_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match="num_messages"):
        decode([send(num_messages=count)])


@pytest.mark.parametrize(
    "head",
    [
        b"\x00\x00\x00\x00",
        b"\x7f\xff\xff\xff",
        (MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES + 1).to_bytes(4, "big"),
    ],
    ids=["0", "2^31-1", "one byte too many"],
)
def test_a_frame_of_impossible_size_is_refused_at_once(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode([head])


def test_a_command_larger_than_its_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        decode([(10).to_bytes(4, "big") + (7).to_bytes(4, "big")])


def test_a_command_larger_than_any_command_is_refused() -> None:
    size = MAX_COMMAND_BYTES + 1
    with pytest.raises(ProtocolError, match="too large"):
        decode([(4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + bytes(size)])


def test_a_command_that_does_not_parse_is_refused() -> None:
    with pytest.raises(ProtocolError, match="does not parse"):
        decode([(8).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"\x08\x06\x32\x7f"])


def test_an_incomplete_frame_is_held_and_no_more() -> None:
    decoder = FrameDecoder(MAX_MESSAGE_BYTES)
    frame = send(payload=bytes(1000))
    decoder.receive(frame[:-1])
    assert decoder.held_bytes == len(frame) - 1
    assert len(decoder.receive(frame[-1:])) == 1
    assert decoder.held_bytes == 0
