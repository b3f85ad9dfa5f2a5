"""Sends acknowledgements. Plain ones of one turn of the event loop are sent together.

A chunked message is acknowledged with all of its entries.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pybroker.base.errors import NotAllowed
from pybroker.base.names import TxnId
from pybroker.client.chunks import ChunkAssembler
from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.connection import Connection
from pybroker.client.consuming.acks import (
    NOTHING,
    AckGroup,
    AckId,
    EntryKey,
    Place,
    all_bits,
    cumulatively,
    individually,
    write_ids,
)
from pybroker.client.consuming.message_set import MessageSet
from pybroker.wire import pulsar_api_pb2 as pb

# Chunked messages without an acknowledgement; beyond this number the oldest are forgotten.
_MAX_CHUNKED: Final = 10_000
# Per command. Brokers accept 1 MiB, and close the connection above that.
_MAX_BYTES: Final = 512 * 1024
_ID_BYTES: Final = 50  # at most, besides the words of an ack set
_BITS_A_BYTE: Final = 5  # at least: 64 in at most 11 bytes
_MAX_IDS: Final = 10_000  # pybroker's limit for one command in a transaction


class Acknowledger:
    """Plain acknowledgements made without a connection are sent in the next session."""

    def __init__(self, consumer_id: int, attachment: Attachment, by_batch_index: bool) -> None:
        self._consumer_id = consumer_id
        self._attachment = attachment
        self._group = AckGroup(by_batch_index)
        self._scheduled = False
        # The entries of chunked messages, by the last of them.
        self._chunks: dict[EntryKey, Sequence[EntryKey]] = {}
        self.incomplete: ChunkAssembler | None = None

    def delivered(self, key: EntryKey, sent: int, unacked: int, batch_size: int) -> None:
        self._group.delivered(key, sent, unacked, batch_size)

    def given_back(self, keys: Iterable[EntryKey]) -> None:
        self._group.given_back(keys)

    def all_given_back(self) -> None:
        self._group.all_given_back()

    def chunked(self, key: EntryKey, chunks: Sequence[EntryKey]) -> None:
        """A message arrived in several entries; `key` is the last of them."""
        if len(self._chunks) >= _MAX_CHUNKED:
            del self._chunks[next(iter(self._chunks))]
        self._chunks[key] = chunks

    def forget_chunked(self) -> None:
        """Later entries may begin in the middle of a message that was complete before."""
        self._chunks.clear()

    def entries_of(self, key: EntryKey) -> Sequence[EntryKey]:
        """All entries of a message, by its last or only one."""
        return self._chunks.get(key, (key,)) if self._chunks else (key,)

    def add(self, places: Sequence[Place]) -> list[EntryKey]:
        """Returns the entries with nothing left to acknowledge; of a chunked message, the last."""
        self._schedule()
        if self._chunks:
            for place in places:
                self._group.add((*chunk, -1, 0) for chunk in self._chunks.pop(place[:2], ()))
        return self._group.add(places)

    def add_cumulative(self, place: Place) -> None:
        self._schedule()
        begun = self.begun_before(place[:2])
        covered = [chunks for key, chunks in self._chunks.items() if key <= place[:2]]
        self._chunks = {key: chunks for key, chunks in self._chunks.items() if key > place[:2]}
        if begun is None:
            self._group.add_cumulative(*place)
            return
        # The first chunks of a later message lie before this one: they stay unacknowledged.
        if begun[1] > 0:
            self._group.add_cumulative(begun[0], begun[1] - 1, -1, 0)
        self._group.add((*chunk, -1, 0) for chunks in covered for chunk in chunks)
        self._group.add([place])

    def refuse_amid_chunks(self, key: EntryKey) -> None:
        """Raises NotAllowed if a later message begins at or before this entry."""
        begun = self.begun_before(key)
        if begun is not None:
            raise NotAllowed(
                f"A chunked message begins at entry {begun[0]}:{begun[1]}, before this one, and "
                "ends after it: acknowledge each message individually, or wait for the chunked "
                "message and acknowledge up to it"
            )

    def begun_before(self, key: EntryKey) -> EntryKey | None:
        """The first entry of a message that begins before `key` and ends after it, if any."""
        begun = [chunks[0] for last, chunks in self._chunks.items() if last > key]
        if self.incomplete is not None:
            begun += self.incomplete.first_keys
        first = min(begun, default=key)
        return first if first < key else None

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        connection = self._attachment.connection
        if connection is not None and not connection.closed:
            self.send_over(connection)

    def send_over(self, connection: Connection) -> None:
        individual, cumulative = self._group.take()
        if individual:
            for command in self._commands(individual, cumulative=False):
                connection.post(command)
        if cumulative is not None:
            for command in self._commands([cumulative], cumulative=True):
                connection.post(command)

    def in_transaction(self, txn_id: TxnId, places: Iterable[Place]) -> list[pb.CommandAck]:
        ids = [ack for place in places for ack in self._individually(place)]
        commands = list(self._commands(ids, cumulative=False))
        for command in commands:
            command.txnid_most_bits, command.txnid_least_bits = txn_id
        return commands

    def up_to(self, txn_id: TxnId, place: Place, covered: MessageSet | None) -> pb.CommandAck:
        """In a transaction. Without `covered`, the broker has to conclude what is meant."""
        command = self._command([cumulatively(*place)], cumulative=True)
        command.txnid_most_bits, command.txnid_least_bits = txn_id
        if covered:
            named = self._with_chunks(covered) if self._chunks else covered
            if named.size < _MAX_IDS:
                self._name(named, command.covered)
            if command.ByteSize() > _MAX_BYTES:
                command.ClearField("covered")
        return command

    def _with_chunks(self, covered: MessageSet) -> MessageSet:
        named = covered.copy()
        for last, chunks in self._chunks.items():
            if covered.bits_of(last):
                for ledger_id, entry_id in chunks:
                    named.add_run(ledger_id, entry_id, entry_id)
        return named

    def _name(self, covered: MessageSet, command: pb.CoveredMessages) -> None:
        for ledger_id, first, last in covered.runs:
            command.runs.add(ledgerId=ledger_id, firstEntryId=first, lastEntryId=last)
        parts = [
            (key, (all_bits(size) & ~(bits | self._group.unsent(key, size)), size))
            for key, (bits, size) in covered.parts.items()
        ]
        write_ids(parts, command.parts)

    def _individually(self, place: Place) -> list[AckId]:
        if place[:2] in self._chunks:
            return [(key, NOTHING) for key in self._chunks[place[:2]]]
        return [individually(*place)]

    def _commands(self, ids: Sequence[AckId], cumulative: bool) -> Iterator[pb.CommandAck]:
        """Yields several commands if one would be too large for a broker."""
        command = self._command(ids, cumulative)
        if len(ids) == 1 or (len(ids) <= _MAX_IDS and command.ByteSize() <= _MAX_BYTES):
            yield command
            return
        for some in _split(ids):
            yield self._command(some, cumulative)

    def _command(self, ids: Sequence[AckId], cumulative: bool) -> pb.CommandAck:
        command = pb.CommandAck(
            consumer_id=self._consumer_id,
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        )
        write_ids(ids, command.message_id)
        return command


def _split(ids: Sequence[AckId]) -> Iterator[list[AckId]]:
    some, size_bytes = list[AckId](), 0
    for each in ids:
        most_bytes = _ID_BYTES + each[1][0].bit_length() // _BITS_A_BYTE
        if some and (len(some) >= _MAX_IDS or size_bytes + most_bytes > _MAX_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append(each)
        size_bytes += most_bytes
    yield some
