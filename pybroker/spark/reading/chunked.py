"""Joins messages that their producers split into chunks.

A message is at the position of its last chunk. A task searches for chunks before its entries.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.base.errors import PulsarError
from pybroker.client import Timeout
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.spark.columns.slab import DamagedEntry, Heads, read_heads
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position
from pybroker.spark.reading.entries import QUIET_S, Entries
from pybroker.spark.session import PATIENCE_S

log = logging.getLogger("pybroker.spark")

# How many incomplete messages are kept; the oldest is dropped for another.
_MAX_INCOMPLETE: Final = 100
# Chunks of other producers may lie between: search this many entries per chunk first.
_ENTRIES_EACH: Final = 8


@dataclass(slots=True)
class _Incomplete:
    parts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class Chunks:
    def __init__(self, endpoint: Endpoint, topic: str) -> None:
        self._endpoint = endpoint
        self._topic = topic
        self._incomplete: dict[str, _Incomplete] = {}

    def add(self, heads: Heads, index: int) -> bytes | None:
        """Returns the whole message, still compressed, with its last chunk; otherwise None."""
        number = int(heads.number("chunk_id")[index])
        uuid = _uuid(heads, index)
        if number > 0 and uuid not in self._incomplete:
            self._look_back(heads, index, uuid, number)
        return self._append(heads, index, uuid, number)

    def _append(self, heads: Heads, index: int, uuid: str, number: int) -> bytes | None:
        if number == 0:
            # The message is sent again from its beginning, or another one has the same uuid.
            self._incomplete.pop(uuid, None)
            while len(self._incomplete) >= _MAX_INCOMPLETE:
                self._give_up(next(iter(self._incomplete)), "too many are incomplete at once")
            self._incomplete[uuid] = _Incomplete()
        message = self._incomplete.get(uuid)
        if message is None:
            log.warning(
                "%s: chunk %d of %s came without the chunks before it", self._topic, number, uuid
            )
            return None
        if number < len(message.parts):
            return None  # sent twice
        message.parts.append(heads.payload_of(index))
        message.size_bytes += len(message.parts[-1])
        if number >= len(message.parts):
            self._give_up(uuid, f"its chunk {len(message.parts) - 1} is missing")
        elif message.size_bytes > int(heads.number("total_chunk_msg_size")[index]):
            self._give_up(uuid, "its chunks are larger than the declared size")
        elif len(message.parts) == int(heads.number("num_chunks_from_msg")[index]):
            del self._incomplete[uuid]
            return b"".join(message.parts)
        return None

    def _give_up(self, uuid: str, reason: str) -> None:
        del self._incomplete[uuid]
        log.warning("%s: message %s was skipped: %s", self._topic, uuid, reason)

    def _look_back(self, heads: Heads, index: int, uuid: str, number: int) -> None:
        """Collects the chunks before this one, from nearby or else from the topic's beginning."""
        entry = heads.entries[index]
        place = Position(entry.ledger_id, entry.entry_id)
        nearby = Position(place.ledger_id, max(-1, place.entry_id - _ENTRIES_EACH * number - 1))
        for after in (nearby, Position(-1, -1)):
            try:
                for each, at in self._before(after, place):
                    if each.is_chunk[at] and _uuid(each, at) == uuid:
                        self._append_early(each, at, uuid)
            except PulsarError:
                self._incomplete.pop(uuid, None)  # A retry searches all of them again.
                raise
            if uuid in self._incomplete and len(self._incomplete[uuid].parts) == number:
                return
            self._incomplete.pop(uuid, None)

    def _append_early(self, heads: Heads, index: int, uuid: str) -> None:
        number = int(heads.number("chunk_id")[index])
        if number == 0 or uuid in self._incomplete:
            self._append(heads, index, uuid, number)

    def _before(self, after: Position, place: Position) -> Iterator[tuple[Heads, int]]:
        """The entries before `place`, which is deliverable. Raises Timeout if they do not come."""
        silent_s = 0.0
        with Entries(self._endpoint, self._topic, after) as entries:
            while True:
                taken = entries.take(place)
                silent_s = 0.0 if taken else silent_s + QUIET_S
                damaged = len(taken)
                for heads in _whole(taken):
                    damaged -= len(heads.entries)
                    entries.unpacked(int(heads.number("num_messages_in_batch").clip(1).sum()))
                    for index, entry in enumerate(heads.entries):
                        if entry[:2] >= place:
                            return
                        yield heads, index
                entries.unpacked(damaged)
                if not taken and entries.last_position() < place:
                    return  # The entry at `place` was deleted in the meantime.
                if silent_s >= PATIENCE_S:
                    raise Timeout(f"{self._topic} does not deliver the messages before {place}")


def _whole(taken: Sequence[StoredEntry]) -> Iterator[Heads]:
    """The entries without damaged ones, which cause an error only in the task that reads them."""
    if not taken:
        return
    try:
        yield read_heads(taken)
    except DamagedEntry as damage:
        index = taken.index(damage.entry)
        log.warning("%s", damage)
        yield from _whole(taken[:index])
        yield from _whole(taken[index + 1 :])


def _uuid(heads: Heads, index: int) -> str:
    found = heads.slices("uuid")
    start, length = int(found.start[index]), int(found.length[index])
    return heads.blob[start : start + length].decode(errors="replace") if length > 0 else ""
