"""Puts a chunked message of a Pulsar client together, at its last chunk.

The chunks before it are looked for backwards, within limits. Source: PIP-37.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.runtime import Pace
from pybroker.wire.decompression import MAX_BYTES
from pybroker.wire.message_metadata import BadEntry, build_entry, split_entry

_MOST_LOOKED_AT: Final = 5_000  # entries before the last chunk
_READS_A_TURN: Final = 50
_OF_CHUNKS: Final = ("uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id")


class Whole(NamedTuple):
    """A message in one piece, and where its earlier chunks are."""

    entry: bytes
    earlier: Sequence[Position] = ()


def is_chunk(metadata: Any) -> bool:
    return bool(metadata.num_chunks_from_msg > 1)


def is_last_chunk(metadata: Any) -> bool:
    return bool(metadata.chunk_id == metadata.num_chunks_from_msg - 1)


async def whole_message(
    ledger: ManagedLedger, position: Position, metadata: Any, last_part: bytes
) -> Whole | None:
    """The entry that the message would be in one piece; None if not all of its chunks are found.
    `metadata` and `last_part` are those of the last chunk, at `position`. Raises
    ManagedLedgerError.
    """
    parts, size, wanted = [last_part], len(last_part), metadata.chunk_id - 1
    earlier = []
    pace = Pace(_READS_A_TURN)
    for _ in range(_MOST_LOOKED_AT):
        position = ledger.previous_position(position)
        if wanted < 0 or position.entry_id < 0 or size > MAX_BYTES:
            break
        part = await _part(ledger, position, metadata, wanted)
        if part is not None:
            parts.append(part)
            earlier.append(position)
            size, wanted = size + len(part), wanted - 1
        await pace.step()
    if wanted >= 0 or size > MAX_BYTES:
        return None
    for name in _OF_CHUNKS:
        metadata.ClearField(name)
    return Whole(build_entry(metadata, b"".join(reversed(parts))), earlier)


async def _part(ledger: ManagedLedger, position: Position, last: Any, wanted: int) -> bytes | None:
    run = ledger.read_cached(position, position, 1, 1)
    run = run or await ledger.read(position, position, 1, 1)
    if run is None:
        return None
    try:
        metadata, start = split_entry(run.entries[0])
    except BadEntry:
        return None
    is_wanted = metadata.HasField("chunk_id") and metadata.chunk_id == wanted
    if is_wanted and (metadata.uuid, metadata.producer_name) == (last.uuid, last.producer_name):
        return run.entries[0][start:]
    return None
