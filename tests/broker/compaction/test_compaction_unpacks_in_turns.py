"""Compressed messages are unpacked in parts, and other tasks run in between."""

import asyncio
import struct
import zlib
from typing import Any

import pytest

from pybroker.broker.compaction.keyed_messages import Unreadable, look_at
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.decompression import MAX_BYTES, PART_BYTES
from pybroker.wire.message_metadata import build_entry

ZLIB = pb.ZLIB
MEGABYTES = 20


def compressed(claimed_bytes: int | None = None, spoil: bool = False) -> bytes:
    single = pb.SingleMessageMetadata(payload_size=MEGABYTES * PART_BYTES, partition_key="k")
    encoded = single.SerializeToString()
    plain = struct.pack(">I", len(encoded)) + encoded + bytes(MEGABYTES * PART_BYTES)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    metadata.num_messages_in_batch = 1
    metadata.compression = ZLIB
    metadata.uncompressed_size = len(plain) if claimed_bytes is None else claimed_bytes
    packed = zlib.compress(plain)
    return build_entry(metadata, packed[:-1000] if spoil else packed)


def test_a_part_is_unpacked_in_a_turn() -> None:
    async def scenario() -> None:
        looking = asyncio.ensure_future(look_at(compressed(), 1))
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= MEGABYTES
        found = await looking
        assert isinstance(found, list) and [one.key for one in found] == [b"k"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"claimed_bytes": 10},
        {"claimed_bytes": MAX_BYTES + 1},
        {"claimed_bytes": 30 * PART_BYTES},
        {"spoil": True},
    ],
    ids=["less", "too much", "more", "spoilt"],
)
def test_what_is_not_as_large_as_it_claims_is_left_alone(wrong: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        asyncio.run(look_at(compressed(**wrong), 1))
