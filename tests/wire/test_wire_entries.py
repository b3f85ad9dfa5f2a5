"""Entries: metadata, then payload, and a checksum over both."""

import base64

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import (
    MARKER_TXN_ABORT,
    BadEntry,
    build_entry,
    has_sticky_key,
    marker_entry,
    origin,
    parse_metadata,
    payload_of,
    sticky_key,
    transaction_of,
)


def metadata(**fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)  # type: ignore[arg-type]


@given(st.binary(max_size=500), st.dictionaries(st.text(), st.text(), max_size=4))
def test_an_entry_gives_back_metadata_and_payload(
    payload: bytes, properties: dict[str, str]
) -> None:
    sent = metadata(properties=[pb.KeyValue(key=k, value=v) for k, v in properties.items()])
    entry = build_entry(sent, payload)
    assert parse_metadata(entry) == sent
    assert payload_of(entry) == payload
    assert int.from_bytes(entry[2:6], "big") == crc32c(entry[6:])


def test_an_entry_without_a_checksum_reads_the_same() -> None:
    entry = build_entry(metadata(), b"payload")
    assert parse_metadata(entry[6:]) == metadata()
    assert payload_of(entry[6:]) == b"payload"


@pytest.mark.parametrize("size", range(9))
def test_an_entry_without_room_for_metadata_is_refused(size: int) -> None:
    with pytest.raises(BadEntry):
        parse_metadata(build_entry(metadata(), b"")[:size])


def test_metadata_longer_than_its_entry_is_refused() -> None:
    with pytest.raises(BadEntry, match="claims"):
        parse_metadata((1000).to_bytes(4, "big") + bytes(10))


def test_metadata_that_does_not_parse_is_refused() -> None:
    with pytest.raises(BadEntry, match="does not parse"):
        parse_metadata((2).to_bytes(4, "big") + b"\x0a\x7f")


def test_a_marker_names_its_transaction_and_has_no_payload() -> None:
    entry = marker_entry(TxnId(0, 7), MARKER_TXN_ABORT, publish_time_ms=5)
    marker = parse_metadata(entry)
    assert (marker.marker_type, transaction_of(marker)) == (MARKER_TXN_ABORT, TxnId(0, 7))
    assert payload_of(entry) == b""


def test_transaction_zero_of_coordinator_zero_is_a_transaction() -> None:
    assert transaction_of(metadata(txnid_most_bits=0, txnid_least_bits=0)) == TxnId(0, 0)
    assert transaction_of(metadata()) is None


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, b""),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        (
            {
                "partition_key": base64.b64encode(b"\xff\x00").decode(),
                "partition_key_b64_encoded": True,
            },
            b"\xff\x00",
        ),
        ({"partition_key": "!", "partition_key_b64_encoded": True}, b"!"),
    ],
)
def test_the_sticky_key_is_the_ordering_key_then_the_partition_key(
    fields: dict[str, object], key: bytes
) -> None:
    assert sticky_key(metadata(**fields)) == key
    assert has_sticky_key(metadata(**fields)) == bool(fields)


def test_an_empty_key_is_a_key() -> None:
    assert has_sticky_key(metadata(partition_key=""))
    assert origin(metadata()) == b"p-1"
