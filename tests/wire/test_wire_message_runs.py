"""MESSAGE commands as read by a client: in runs, however the broker encodes them."""

import pytest

from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import MessageFrames
from pybroker.wire.frames import CommandFrame, ProtocolError, encode_frame
from pybroker.wire.message_run import ClientDecoder, MessageRun


def message(consumer_id: int, entry_id: int, **details: object) -> pb.CommandMessage:
    place = pb.MessageIdData(ledgerId=1, entryId=entry_id)
    return pb.CommandMessage(consumer_id=consumer_id, message_id=place, **details)


def framed(body: pb.CommandMessage, entry: bytes = b"entry") -> bytes:
    return encode_frame(pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=body), entry)


def read(data: bytes, piece: int = 1 << 20) -> list[object]:
    decoder = ClientDecoder(1000)
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    return [event for each in pieces for event in decoder.receive(each)]


def test_messages_of_a_consumer_come_together():
    data = b"".join(framed(message(consumer_id, 7)) for consumer_id in (1, 1, 2, 1))
    runs = read(data)
    assert [(run.consumer_id, len(run.messages)) for run in runs] == [(1, 2), (2, 1), (1, 1)]
    assert runs[0].entries == [b"entry", b"entry"]


def test_another_command_ends_a_run():
    ping = encode_frame(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
    first, between, last = read(framed(message(1, 1)) + ping + framed(message(1, 2)))
    assert isinstance(between, CommandFrame)
    assert [run.messages[0].message_id.entryId for run in (first, last)] == [1, 2]


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_runs_do_not_depend_on_how_bytes_arrive(piece: int):
    data = b"".join(framed(message(1, entry_id), b"%d" % entry_id) for entry_id in range(20))
    entries = [entry for run in read(data, piece) for entry in run.entries]
    assert entries == [b"%d" % entry_id for entry_id in range(20)]


def test_templates_of_this_broker_are_read():
    data = MessageFrames(5, 3).encode(9, [70_000, 70_001], [b"a", b"b"])
    (run,) = read(data)
    assert isinstance(run, MessageRun)
    assert [each.message_id.entryId for each in run.messages] == [70_000, 70_001]
    assert (run.messages[0].message_id.partition, run.consumer_id) == (3, 5)


def test_a_long_command_and_one_out_of_order_come_as_they_are():
    long = message(1, 1, ack_set=[-1] * 50)
    swapped = pb.BaseCommand(message=message(1, 2)).SerializePartialToString() + b"\x08\x09"
    size = len(swapped)
    data = framed(long) + (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + swapped
    assert [type(event) for event in read(data)] == [CommandFrame, CommandFrame]
    assert [event.command.message.message_id.entryId for event in read(data)] == [1, 2]


def test_a_message_that_does_not_parse_is_refused():
    broken = b"\x08\x09\x4a\x02\x12\x05"
    data = (len(broken) + 4).to_bytes(4, "big") + len(broken).to_bytes(4, "big") + broken
    with pytest.raises(ProtocolError, match="does not parse"):
        read(data)
