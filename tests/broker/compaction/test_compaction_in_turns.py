"""A compaction yields to other tasks, even within one large batch."""

import asyncio
import struct

import pytest

from managed_ledger.position import Position
from pybroker.broker.compaction.compacted_log import Kept
from pybroker.broker.compaction.selection import Selection
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

MESSAGES = 20_000
MOST = 1_000_000  # the most that a producer may declare


def a_batch() -> bytes:
    payload = bytearray()
    for number in range(MESSAGES):
        single = pb.SingleMessageMetadata(payload_size=1, partition_key=f"k{number % 5000}")
        encoded = single.SerializeToString()
        payload += struct.pack(">I", len(encoded)) + encoded + b"x"
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.num_messages_in_batch = MESSAGES
    return build_entry(metadata, bytes(payload))


def one_message() -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    return build_entry(metadata, b"x")


@pytest.mark.parametrize("left_out", [0, 5000])
def test_a_large_batch_is_looked_into_in_turns(left_out: int) -> None:
    """Also if an earlier compaction has left out its last messages."""

    async def scenario() -> None:
        bits = (1 << MESSAGES - left_out) - 1 if left_out else None
        kept = Kept(Position(1, 0), a_batch(), MESSAGES, bits)
        selection = Selection(True)
        seeing = asyncio.ensure_future(selection.see([kept]))
        turns = 0
        while not seeing.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= MESSAGES // 2000
        left = (await selection.kept()).of(kept)
        last = range(MESSAGES - left_out - 5000, MESSAGES - left_out)
        assert left is not None and left.bits == sum(1 << number for number in last)

    asyncio.run(scenario())


@pytest.mark.parametrize("entry", [b"no metadata", one_message()])
def test_what_a_producer_says_of_a_small_entry_takes_no_memory(entry: bytes) -> None:
    async def scenario() -> None:
        entries = [Kept(Position(1, number), entry, MOST) for number in range(20)]
        selection = Selection(True)
        await selection.see(entries)
        assert selection.messages == len(entries)
        kept = await selection.kept()
        assert [kept.of(each) for each in entries] == entries
        assert kept.complete

    asyncio.run(scenario())


def test_what_is_not_as_it_was_seen_is_noticed() -> None:
    async def scenario() -> None:
        first, second = (Kept(Position(1, number), a_batch(), MESSAGES) for number in range(2))
        selection = Selection(True)
        await selection.see([first._replace(entry=one_message(), messages=1), first, second])
        kept = await selection.kept()
        for each in (first, second, second, second):
            kept.of(each)
        assert not kept.complete

    asyncio.run(scenario())
