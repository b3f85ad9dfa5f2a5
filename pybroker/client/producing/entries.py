"""Builds entries to publish: MessageMetadata for one message or a batch, and the SEND frame."""

from dataclasses import dataclass
from typing import Final

from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock
from pybroker.client.compression import packed
from pybroker.client.errors import MessageTooBig
from pybroker.client.messages import Outgoing
from pybroker.client.options import CompressionType, TopicSchema
from pybroker.client.producing.batching import EncodedBatch, key_values
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import FRAME_OVERHEAD_BYTES, encode_frame
from pybroker.wire.message_metadata import build_entry

_NOWHERE_ELSE: Final = "__local__"
# The chunk fields of an entry's metadata, with their protobuf tags.
_CHUNK_OVERHEAD_BYTES: Final = 128
# The maximum overhead of a frame: the command, the checksum and the sizes.
_COMMAND_BYTES: Final = 128


@dataclass(slots=True)
class EntryWriter:
    """Builds a producer's entries; the broker chooses `producer_name` if it is not set."""

    producer_id: int
    producer_name: str
    compression_type: CompressionType
    clock: Clock
    # The version of the producer's schema; empty without one.
    schema_version: bytes = b""

    def single(
        self,
        message: Outgoing,
        sequence_id: int,
        txn_id: TxnId | None,
        compression_type: CompressionType | None = None,
    ) -> tuple[pb.MessageMetadata, bytes]:
        """Compresses with the producer's type or `compression_type`, if that saves bytes."""
        if compression_type is None:
            compression_type = self.compression_type
        metadata = self._metadata(sequence_id, txn_id, message)
        metadata.properties.extend(key_values(message.properties))
        if message.event_timestamp:
            metadata.event_time = message.event_timestamp
        if message.null_value:
            metadata.null_value = True
        if message.deliver_at_ms is not None:
            metadata.deliver_at_time = message.deliver_at_ms
        payload, done = packed(message.content, compression_type)
        _describe_payload(metadata, done, len(message.content))
        return metadata, payload

    def batch(
        self,
        batch: EncodedBatch,
        first_sequence_id: int,
        last_sequence_id: int,
        txn_id: TxnId | None,
        key_source: Outgoing,
    ) -> tuple[pb.MessageMetadata, bytes]:
        """Key_Shared uses the entry's key, so the key of `key_source` applies to all messages."""
        metadata = self._metadata(first_sequence_id, txn_id, key_source)
        metadata.highest_sequence_id = last_sequence_id
        metadata.num_messages_in_batch = batch.message_count
        _describe_payload(metadata, batch.compression_type, batch.uncompressed_size)
        return metadata, batch.payload

    def fits(self, metadata: pb.MessageMetadata, payload_bytes: int, max_bytes: int) -> bool:
        """Whether a broker with the limit `max_bytes` accepts this entry."""
        frame_bytes = payload_bytes + metadata.ByteSize() + _COMMAND_BYTES
        return payload_bytes <= max_bytes and frame_bytes <= max_bytes + FRAME_OVERHEAD_BYTES

    def chunk_bytes(self, metadata: pb.MessageMetadata, max_bytes: int) -> int:
        """How many bytes of content fit into an entry of this size beside the metadata. Raises
        MessageTooBig."""
        overhead = metadata.ByteSize() + len(self.producer_name) + _CHUNK_OVERHEAD_BYTES
        if overhead >= max_bytes:
            raise MessageTooBig(
                f"The key and properties take {overhead} bytes, but one entry has room for only "
                f"{max_bytes}"
            )
        return max_bytes - overhead

    def _metadata(
        self, sequence_id: int, txn_id: TxnId | None, key_source: Outgoing
    ) -> pb.MessageMetadata:
        metadata = pb.MessageMetadata(
            producer_name=self.producer_name,
            sequence_id=sequence_id,
            publish_time=self.clock.now_ms(),
            partition_key=key_source.partition_key,
            ordering_key=key_source.ordering_key,
        )
        if key_source.partition_key_b64_encoded:
            metadata.partition_key_b64_encoded = True
        if key_source.disable_replication:
            metadata.replicate_to.append(_NOWHERE_ELSE)
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if txn_id is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = txn_id
        return metadata

    def frame(
        self, metadata: pb.MessageMetadata, payload: bytes, topic: str, max_bytes: int
    ) -> bytes:
        """The SEND frame for a broker with the limit `max_bytes`. Raises MessageTooBig."""
        if len(payload) > max_bytes:
            raise MessageTooBig(
                f"{topic} accepts {max_bytes} bytes in one entry, not {len(payload)}"
            )
        send = pb.CommandSend(producer_id=self.producer_id, sequence_id=metadata.sequence_id)
        if metadata.HasField("chunk_id"):
            send.is_chunk = True
        if metadata.HasField("num_messages_in_batch"):
            send.num_messages = metadata.num_messages_in_batch
            send.highest_sequence_id = metadata.highest_sequence_id
        if metadata.HasField("txnid_most_bits"):
            send.txnid_most_bits = metadata.txnid_most_bits
            send.txnid_least_bits = metadata.txnid_least_bits
        command = pb.BaseCommand(type=pb.BaseCommand.SEND, send=send)
        frame = encode_frame(command, build_entry(metadata, payload))
        if len(frame) > max_bytes + FRAME_OVERHEAD_BYTES:
            # The broker would close the connection each time this is sent.
            raise MessageTooBig(
                f"{topic} accepts {max_bytes} bytes in one entry; this one has {len(frame)} "
                "including key and properties"
            )
        return frame


def _describe_payload(
    metadata: pb.MessageMetadata, compression_type: CompressionType, uncompressed_size: int
) -> None:
    metadata.uncompressed_size = uncompressed_size
    if compression_type:
        metadata.compression = compression_type.value  # type: ignore[assignment]


def described(schema: TopicSchema | None) -> pb.Schema | None:
    if schema is None:
        return None
    definition = schema.definition
    return pb.Schema(
        name=schema.name,
        schema_data=definition.encode() if isinstance(definition, str) else definition,
        type=schema.type.value,  # type: ignore[arg-type]
        properties=key_values(dict(schema.properties)),
    )
