"""For any bytes the decoder returns events or ProtocolError, and agrees with protobuf."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import (
    FRAME_OVERHEAD_BYTES,
    BadChecksum,
    Event,
    FrameDecoder,
    ProtocolError,
    SendRun,
    encode_frame,
)
from pybroker.wire.message_metadata import BadEntry, build_entry, parse_metadata, payload_of

Type = pb.BaseCommand
MAX_MESSAGE_BYTES = 4096
ENTRY = build_entry(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"abc")
SEND = pb.CommandSend(producer_id=3, sequence_id=300, num_messages=2, highest_sequence_id=301)
FRAMES = [
    encode_frame(pb.BaseCommand(type=Type.SEND, send=SEND), ENTRY),
    encode_frame(pb.BaseCommand(type=Type.PING, ping=pb.CommandPing())),
    encode_frame(
        pb.BaseCommand(
            type=Type.CONNECT, connect=pb.CommandConnect(client_version="x", protocol_version=21)
        )
    ),
]

# An example takes less than a millisecond, and most fields are rarely damaged.
MANY = settings(max_examples=10 * settings().max_examples)

mutations = st.tuples(st.integers(0, 500), st.binary(min_size=0, max_size=4), st.integers(0, 4))


def mutate(data: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    """Replaces `removed` bytes at a place by `inserted`."""
    for place, inserted, removed in changes:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    return data


def receive_all(data: bytes, chunk_bytes: int) -> list[Event]:
    decoder = FrameDecoder(MAX_MESSAGE_BYTES)
    events: list[Event] = []
    for start in range(0, len(data), chunk_bytes):
        events += decoder.receive(data[start : start + chunk_bytes])
        assert decoder.held_bytes <= MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES + 4 + chunk_bytes
    return events


@MANY
@given(
    st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4).map(b"".join),
    st.lists(mutations, max_size=3),
    st.integers(1, 200),
)
def test_mutated_frames_raise_nothing_but_protocol_error(
    stream: bytes, changes: list[tuple[int, bytes, int]], chunk_bytes: int
) -> None:
    try:
        receive_all(mutate(stream, changes), chunk_bytes)
    except ProtocolError as error:
        assert str(error)


@MANY
@given(st.binary(max_size=300), st.integers(1, 50))
def test_noise_raises_nothing_but_protocol_error(noise: bytes, chunk_bytes: int) -> None:
    try:
        receive_all(noise, chunk_bytes)
    except ProtocolError as error:
        assert str(error)


send_commands = st.builds(
    pb.CommandSend,
    producer_id=st.integers(0, 300),
    sequence_id=st.integers(0, 2**64 - 1),
    num_messages=st.none() | st.integers(1, 300),
    txnid_least_bits=st.none() | st.integers(0, 300),
    txnid_most_bits=st.none() | st.integers(0, 300),
    highest_sequence_id=st.none() | st.integers(0, 300),
)


@MANY
@given(send_commands, st.lists(mutations, max_size=2))
@example(SEND, [(3, b"\x04", 1)])
def test_a_send_means_what_protobuf_says_it_means(
    send: pb.CommandSend, changes: list[tuple[int, bytes, int]]
) -> None:
    command = mutate(pb.BaseCommand(type=Type.SEND, send=send).SerializeToString(), changes)
    sizes = (4 + len(command) + len(ENTRY)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    try:
        (event,) = FrameDecoder(MAX_MESSAGE_BYTES).receive(sizes + command + ENTRY)
    except ProtocolError:
        return
    parsed = pb.BaseCommand.FromString(command)
    if isinstance(event, SendRun):
        assert parsed.type == Type.SEND
        assert event.producer_id == parsed.send.producer_id
        assert event.sequence_ids() == [parsed.send.sequence_id]
        assert event.message_counts == [parsed.send.num_messages]
        assert (event.txn_id is not None) == (
            parsed.send.HasField("txnid_least_bits") or parsed.send.HasField("txnid_most_bits")
        )
    else:
        assert not isinstance(event, BadChecksum)


@MANY
@given(st.lists(mutations, max_size=3))
def test_mutated_entries_raise_nothing_but_bad_entry(
    changes: list[tuple[int, bytes, int]],
) -> None:
    entry = mutate(ENTRY, changes)
    try:
        parse_metadata(entry)
        payload_of(entry)
    except BadEntry as error:
        assert str(error)
