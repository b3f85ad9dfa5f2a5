"""Turns the MESSAGE commands of one topic into messages.

Entries are examined in order of arrival, as many as one read from the socket held. The permits of
messages that the application does not get (sent before a seek, before the start, a chunk,
unreadable) are returned here; those of other messages are returned when they are taken.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from pybroker.client.chunks import ChunkAssembler
from pybroker.client.consuming.acknowledger import Acknowledger
from pybroker.client.consuming.acks import EntryKey, all_bits
from pybroker.client.consuming.given import Given
from pybroker.client.consuming.received import (
    CorruptEntry,
    check_size,
    checked_batch_size,
    checked_metadata,
    decompressed,
    messages_in,
    permits_of,
    plain_metadata_ends,
    unacked_indexes,
)
from pybroker.client.encryption import Decryption
from pybroker.client.errors import CryptoError
from pybroker.client.messages import Message, OrderKey, PlainMessage, ReceivedEntry, UnpackedMessage
from pybroker.client.options import ConsumerCryptoFailureAction, ConsumerOptions
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_run import MessageRun

log = logging.getLogger("pybroker.client")


class Receiver(Protocol):
    """The owner of the messages."""

    topic: str
    partition: int

    def owe_permits(self, count: int) -> None: ...
    def on_taken(self, messages: Sequence[Message]) -> None: ...
    def give_up(self, message: pb.CommandMessage, corruption: CorruptEntry) -> None: ...
    def not_delivered(self, keys: Iterable[EntryKey]) -> None: ...


class Intake:
    def __init__(
        self,
        receiver: Receiver,
        options: ConsumerOptions,
        acks: Acknowledger,
        keeps: bool,
        most_bytes: int,
    ) -> None:
        """`keeps`: whether to remember what came. `most_bytes`: of a message, uncompressed and
        whole. Raises CryptoError.
        """
        self._most_bytes = most_bytes
        # What came in the present pass.
        self.given = Given(object(), 0, keeps)
        # Counts full redeliveries, to recognise messages that were sent before.
        self.epoch = 0
        self._seeks = 0
        self.seeking = False
        # The part of the first entry that lies before the start.
        self.left_out: OrderKey | None = None
        # Whether wanted chunks may arrive before that.
        self.amid_chunks = False
        # The last entry that arrived without completing a message: a chunk.
        self.incomplete: EntryKey | None = None
        self._receiver = receiver
        self._acks = acks
        self._decryption = Decryption(options.crypto_key_reader, options.crypto_failure_action)
        self.chunks = ChunkAssembler(
            options.max_pending_chunked_message,
            options.expire_time_of_incomplete_chunked_message_ms,
            self._dropped_chunks,
        )
        acks.incomplete = self.chunks

    def begin_again(self) -> None:
        """Called when everything unacknowledged will be sent again."""
        self.chunks.clear()
        self.incomplete = None

    @property
    def session(self) -> int:
        return self.given.session

    def begin_pass(self, session: int, moved: bool) -> Given:
        """Returns the pass that is over. `moved`: after a seek."""
        over = self.given
        self._seeks += moved
        self.given = Given(over.owner, session, over.is_kept, (self.epoch, self._seeks))
        if over.since == self.given.since:
            self.given.goes_on(over)
        return over

    def messages_of(self, run: MessageRun) -> list[Message]:
        """Raises UnsupportedCompression if the codec's package is missing, MessageTooBig."""
        messages: list[Message] = []
        receiver, given, usual = self._receiver, self.given, self._is_usual
        ends = plain_metadata_ends(run.entries)
        places = [message.message_id for message in run.messages]
        noted = not given.is_kept or (usual and all(ends) and _arrived_in_order(given, places))
        for message, place, entry, end in zip(run.messages, places, run.entries, ends, strict=True):
            if (
                end
                and usual
                and (noted or given.arrived(place.ledgerId, place.entryId, place.entryId))
            ):
                plain = PlainMessage(
                    place.ledgerId,
                    place.entryId,
                    0,
                    message.redelivery_count,
                    entry[10:end],
                    receiver,
                    given,
                    entry[end:],
                )
                messages.append(plain)
                continue
            before = len(messages)
            try:
                self._add(message, entry, messages)
            except CorruptEntry as corruption:
                del messages[before:]
                receiver.give_up(message, corruption)
                receiver.owe_permits(permits_of(message, entry))
            usual = self._is_usual
        return messages

    @property
    def _is_usual(self) -> bool:
        """Whether every message that arrives is wanted, and needs no further check."""
        return not (self.epoch or self.seeking or self.left_out or self.chunks.awaits_some_again)

    def _add(self, message: pb.CommandMessage, entry: bytes, messages: list[Message]) -> None:
        """Adds the wanted messages of an entry; returns the permits of the others."""
        metadata, payload = checked_metadata(entry)
        size, place = checked_batch_size(metadata), message.message_id
        received = ReceivedEntry(
            place.ledgerId,
            place.entryId,
            size,
            message.redelivery_count,
            metadata,
            self._receiver,
            self.given,
        )
        before = len(messages)
        sent = unacked_indexes(message, size)
        if not self._is_stale(message):
            self.chunks.reached(received.key)
            unacked = sent & ~self._before_start(received)
            if size:
                self._acks.delivered(received.key, sent, unacked, size)
            if metadata.num_chunks_from_msg <= 1:
                unacked = self.given.new_of(received.key, unacked)
            if unacked:
                self._add_unpacked(received, payload, unacked, messages)
            if len(messages) > before:
                self.given.entry_arrived(received.key, unacked, received.batch_size)
        # The broker uses no permits for messages of a batch that are already acknowledged.
        missing = sent.bit_count() - len(messages) + before
        if missing > 0:
            self._receiver.owe_permits(missing)

    def _is_stale(self, message: pb.CommandMessage) -> bool:
        """Whether it was sent before a seek, or before a full redelivery, which sends it again."""
        old = message.HasField("consumer_epoch") and message.consumer_epoch < self.epoch
        return self.seeking or old

    def _before_start(self, received: ReceivedEntry) -> int:
        """The part of the entry before the start, as bits."""
        left_out, size = self.left_out, received.batch_size or 1
        if left_out is None:
            return 0
        if self.amid_chunks and received.key < left_out[:2]:
            return 0 if self.chunks.goes_on_with(received.metadata) else all_bits(size)
        self.left_out, self.amid_chunks = None, False
        if left_out[:2] != received.key:
            return 0
        return all_bits(max(0, min(left_out[2] + 1, size)))

    def _add_unpacked(
        self, received: ReceivedEntry, payload: bytes, unacked: int, messages: list[Message]
    ) -> None:
        metadata = received.metadata
        if metadata.encryption_keys:
            plain = self._decrypted(received, payload)
            if plain is None:
                return
            if plain is payload:  # The application wants it still encrypted.
                received.batch_size = 0
                messages.append(UnpackedMessage(received, -1, payload, None))
                return
            payload = plain
        if metadata.num_chunks_from_msg > 1:
            check_size(metadata.total_chunk_msg_size, self._most_bytes)
            whole = self.chunks.add(metadata, received.key, payload)
            if whole is None:
                self.incomplete = received.key
                return
            payload, keys = whole
            if not self.given.new_of(received.key, unacked):
                return
            received.first_chunk = keys[0]
            self._acks.chunked(received.key, keys)
        if metadata.compression:
            payload = decompressed(metadata, payload, self._most_bytes)
        if received.batch_size:
            messages.extend(messages_in(received, payload, unacked))
        else:
            messages.append(UnpackedMessage(received, -1, payload, None))

    def _decrypted(self, received: ReceivedEntry, payload: bytes) -> bytes | None:
        """None if the entry is not delivered; the payload unchanged if it stays encrypted."""
        try:
            return self._decryption.decrypt(received.metadata, payload)
        except CryptoError as error:
            action = self._decryption.failure_action
            if action is ConsumerCryptoFailureAction.CONSUME:
                return payload
            if action is ConsumerCryptoFailureAction.DISCARD:
                raise CorruptEntry(str(error), pb.CommandAck.DecryptionError) from error
            log.error(
                "Entry %d:%d of %s is not delivered and stays unacknowledged: %s",
                *received.key,
                self._receiver.topic,
                error,
            )
            self._receiver.not_delivered([received.key])
            return None

    def _dropped_chunks(self, keys: Iterable[EntryKey], reason: str) -> None:
        log.warning("%s: %s", self._receiver.topic, reason)
        self._receiver.not_delivered(keys)


def _arrived_in_order(given: Given, places: Sequence[pb.MessageIdData]) -> bool:
    """Notes the entries, single messages, if they are consecutive and none of them is in hand."""
    ledger_id, first, count = places[0].ledgerId, places[0].entryId, len(places)
    in_order = [place.entryId for place in places] == list(range(first, first + count))
    if not in_order or places[-1].ledgerId != ledger_id:
        return False
    return given.arrived(ledger_id, first, first + count - 1)
