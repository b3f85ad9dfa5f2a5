"""Entries whose metadata is parsed only when the application asks for it."""

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.consuming.received import checked_metadata, plain_metadata_ends
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

PLAIN: dict[str, Any] = {"producer_name": "p", "sequence_id": 2**40, "publish_time": 1_700_000_000}


def entry_of(**details: Any) -> bytes:
    return build_entry(pb.MessageMetadata(**PLAIN | details), b"payload")


def plain_metadata_end(entry: bytes) -> int:
    (end,) = plain_metadata_ends([entry])
    return end


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"producer_name": "p" * 127, "uncompressed_size": 1, "sequence_id": 0},
        {"producer_name": ""},
        {"uncompressed_size": 7},
        {"event_time": 2**60},
        {"txnid_most_bits": 1, "txnid_least_bits": 2**63},
        {"uncompressed_size": 7, "event_time": 1, "highest_sequence_id": 9},
    ],
)
def test_plain_ones_end_where_their_payload_begins(details: dict[str, Any]):
    entry = entry_of(**details)
    assert entry[plain_metadata_end(entry) :] == b"payload"


@pytest.mark.parametrize(
    "details",
    [
        {"num_messages_in_batch": 1},
        {"compression": pb.ZLIB},
        {"encryption_keys": [pb.EncryptionKeys(key="k", value=b"v")]},
        {"encryption_param": b"nonce"},
        {"num_chunks_from_msg": 2, "chunk_id": 0},
        {"uuid": "u"},
        {"producer_name": "p" * 200},
    ],
)
def test_all_others_are_looked_through(details: dict[str, Any]):
    assert plain_metadata_end(entry_of(**details)) == 0


@pytest.mark.parametrize("size", [0, 1, 10_000])
def test_their_checksum_is_compared(size: int):
    entry = build_entry(pb.MessageMetadata(**PLAIN), bytes(size))
    assert len(entry) - plain_metadata_end(entry) == size
    for position in (2, 5, len(entry) - 1):
        wrong = bytearray(entry)
        wrong[position] ^= 1
        assert plain_metadata_end(bytes(wrong)) == 0


def test_nor_are_damaged_ones():
    entry = entry_of()
    assert plain_metadata_end(entry[:-1]) == 0
    assert plain_metadata_end(entry[:12]) == 0
    assert plain_metadata_end(b"") == 0


@given(st.binary(max_size=20).map(lambda rest: b"\x0a\x01p\x10\x05\x18\x07" + rest))
def test_what_is_plain_says_nothing_that_matters(metadata: bytes):
    body = len(metadata).to_bytes(4, "big") + metadata
    entry = b"\x0e\x01" + _crc(body) + body
    if end := plain_metadata_end(entry):
        parsed, payload = checked_metadata(entry)
        assert payload == entry[end:]
        assert not parsed.HasField("num_messages_in_batch")
        assert not (parsed.compression or parsed.encryption_keys or parsed.chunk_id)


def _crc(body: bytes) -> bytes:
    return crc32c(body).to_bytes(4, "big")
