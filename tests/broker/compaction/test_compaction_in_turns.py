"""A compaction lets others have the loop, also within one large batch."""

import asyncio
import struct

import pytest

from managed_ledger.position import Position
from pybroker.broker.compaction.compacted_log import Kept
from pybroker.broker.compaction.selection import Selection
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

MESSAGES = 20_000


def a_batch() -> bytes:
    payload = bytearray()
    for number in range(MESSAGES):
        single = pb.SingleMessageMetadata(payload_size=1, partition_key=f"k{number % 5000}")
        encoded = single.SerializeToString()
        payload += struct.pack(">I", len(encoded)) + encoded + b"x"
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.num_messages_in_batch = MESSAGES
    return build_entry(metadata, bytes(payload))


@pytest.mark.parametrize("left_out", [0, 5000])
def test_a_large_batch_is_looked_into_in_turns(left_out: int) -> None:
    """Of which an earlier compaction has left the last ones out."""

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
