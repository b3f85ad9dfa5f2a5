"""Entries: metadata in front, payload behind, a checksum over both."""

import base64

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pybroker.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import (
    MARKER_TXN_ABORT,
    BadEntry,
    build_entry,
    marker_entry,
    naming_transaction,
    parse_metadata,
    payload_of,
    sticky_key,
    transaction_fields,
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


TXN = TxnId(0, 300)
SPELLED = {"txnid_most_bits": TXN.most, "txnid_least_bits": TXN.least, "highest_sequence_id": 1}
NAMED = build_entry(metadata(**SPELLED), b"payload")
FIELDS = transaction_fields(TXN)
FIELDS_AT = NAMED.index(FIELDS)


def without_checksum_looking_like_named() -> bytes:
    """Its producer's name stands where NAMED has its metadata's size."""
    disguised = metadata()
    disguised.producer_name = NAMED[6:10].decode()
    start = FIELDS_AT + 6 - len(build_entry(disguised, b""))
    return build_entry(disguised, bytes(start) + FIELDS + b"payload")[6:]


# What a run may hold: some are of NAMED's size, or have the same bytes where it has its fields.
ENTRIES = {
    "named": NAMED,
    "not named": build_entry(metadata(), b"payload"),
    "not named, of one size": build_entry(
        metadata(ordering_key=b"1234", highest_sequence_id=1), b"payload"
    ),
    "not named, the payload has the bytes": build_entry(metadata(), FIELDS + b"payload"),
    "another's": build_entry(metadata(**SPELLED | {"txnid_least_bits": 301}), b"payload"),
    "not named, without a checksum": without_checksum_looking_like_named(),
    "named, without a checksum": NAMED[6:],
    "named, another payload": build_entry(metadata(**SPELLED), bytes(1000)),
    "named, more metadata": build_entry(metadata(partition_key="k", **SPELLED), b"payload"),
}


def test_the_entries_are_as_alike_as_they_should_be() -> None:
    sizes = {what: len(entry) for what, entry in ENTRIES.items()}
    assert sizes["not named, of one size"] == sizes["another's"] == len(NAMED)
    assert ENTRIES["not named, the payload has the bytes"].index(FIELDS) == FIELDS_AT
    disguised = ENTRIES["not named, without a checksum"]
    assert disguised[6:10] == NAMED[6:10]
    assert disguised.index(FIELDS) == FIELDS_AT


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("odd", ENTRIES)
@pytest.mark.parametrize("usual", ENTRIES)
def test_every_entry_of_a_transaction_names_it_in_the_end(usual: str, odd: str, count: int) -> None:
    for position in (0, count // 2, count - 1):
        entries = [ENTRIES[usual]] * count
        entries[position] = ENTRIES[odd]
        check_named(entries)


def check_named(entries: list[bytes]) -> None:
    named = naming_transaction(entries, FIELDS)
    for before, after in zip(entries, named, strict=True):
        if transaction_of(parse_metadata(before)) == TXN and before.startswith(b"\x0e\x01"):
            assert after is before
        expected = parse_metadata(before)
        expected.MergeFrom(pb.MessageMetadata.FromString(FIELDS))
        assert parse_metadata(after) == expected
        assert payload_of(after) == payload_of(before)
        assert int.from_bytes(after[2:6], "big") == crc32c(after[6:])


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("size", range(len(NAMED) - len(b"payload")))
def test_an_entry_cut_within_its_metadata_is_refused(size: int, count: int) -> None:
    for position in (0, count // 2, count - 1):
        entries = [NAMED] * count
        entries[position] = NAMED[:size]
        with pytest.raises(BadEntry):
            naming_transaction(entries, FIELDS)


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
