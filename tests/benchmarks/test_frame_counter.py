"""The benchmarks rely on FrameCounter: it must count correctly for all chunks and frames."""

from hypothesis import given
from hypothesis import strategies as st
from raw_connection import FrameCounter, Type

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

PING = encode_frame(pb.BaseCommand(type=Type.PING, ping=pb.CommandPing()))


def message(payload_bytes: int) -> bytes:
    position = pb.MessageIdData(ledgerId=1, entryId=2)
    command = pb.CommandMessage(consumer_id=1, message_id=position)
    return encode_frame(pb.BaseCommand(type=Type.MESSAGE, message=command), bytes(payload_bytes))


frames = st.lists(
    st.one_of(st.just(PING), st.integers(0, 700).map(message), st.just(message(50))), max_size=30
)


@given(frames, st.lists(st.integers(1, 900), min_size=1))
def test_messages_are_counted_in_any_chunking(frames: list[bytes], cuts: list[int]) -> None:
    counter = FrameCounter(Type.MESSAGE)
    data, counted, turn = b"".join(frames), 0, 0
    while data:
        size = cuts[turn % len(cuts)]
        counted += counter.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert counted == sum(frame != PING for frame in frames)


def test_a_frame_counts_when_its_last_byte_is_there() -> None:
    counter = FrameCounter(Type.MESSAGE)
    frame = message(100)
    assert [counter.feed(frame[:-1]), counter.feed(frame[-1:])] == [0, 1]
