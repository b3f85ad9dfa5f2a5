"""Bytes on the wire, on bookies and in ZooKeeper, as Apache BookKeeper's own code writes them."""

import itertools

import pytest

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.entry_body import DamagedBody, master_key, pack, unpack
from managed_ledger.storage.bookkeeper.entry_header import Entry, decode, encode
from managed_ledger.storage.bookkeeper.errors import BadLedgerMetadata, BookieFailed
from managed_ledger.storage.bookkeeper.key_paths import key_of, path_of
from managed_ledger.storage.bookkeeper.metadata_record import (
    DigestType,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from managed_ledger.storage.bookkeeper.metadata_record import decode as decode_metadata
from managed_ledger.storage.bookkeeper.metadata_record import encode as encode_metadata
from managed_ledger.storage.bookkeeper.protocol import (
    Response,
    Responses,
    add_request,
    batch_bodies,
    batch_read_request,
    read_request,
)
from managed_ledger.storage.bookkeeper.quorums import Quorums

KEY = bytes.fromhex("b7c7c4ccf5a8b8a3a0a6b4a0ee6cce4c2b93c8a4")


def test_an_add_is_the_master_key_and_the_body():
    body = pack(7, 2, 1, 30, b"payload")
    assert add_request(KEY, body) == (
        (4 + 20 + len(body)).to_bytes(4, "big") + bytes.fromhex("02010000") + KEY + body
    )
    assert add_request(KEY, body, is_recovery=True)[4:8] == bytes.fromhex("02010002")


def test_a_read_has_the_master_key_only_when_it_fences():
    assert read_request(7, -1).hex() == "00000014020200000000000000000007ffffffffffffffff"
    assert read_request(7, 3, KEY).hex() == (
        "000000280202000100000000000000070000000000000003" + KEY.hex()
    )


def test_a_batch_read_names_count_and_bytes():
    assert batch_read_request(7, 3, 100, 65536).hex() == (
        "0000002802070000000000000000000700000000000000030000000000000000000000640000000000010000"
    )


def test_a_body_has_its_numbers_a_checksum_and_the_payload():
    body = pack(7, 2, 1, 30, b"payload")
    assert body.hex() == (
        "0000000000000007"
        "0000000000000002"
        "0000000000000001"
        "000000000000001e"
        "0a491aa9" + b"payload".hex()
    )
    assert unpack(body, 7, 2) == (2, 1, 30, b"payload")


def test_the_master_key_of_pulsars_empty_password():
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@pytest.mark.parametrize("at", range(0, 43, 3))
def test_a_damaged_body_is_noticed(at):
    body = bytearray(pack(7, 2, 1, 30, b"payload"))
    body[at] ^= 1
    with pytest.raises(DamagedBody):
        unpack(bytes(body), 7, 2)


def test_another_entry_is_not_taken_for_the_one_asked_for():
    with pytest.raises(DamagedBody, match="entry 2 of ledger 7"):
        unpack(pack(7, 2, 1, 30, b"payload"), 7, 3)
    with pytest.raises(DamagedBody, match="too few"):
        unpack(b"short", 7, 2)


def frame(first: int, code: int, ledger: int, entry: int, rest: bytes = b"") -> bytes:
    content = b"".join(
        (
            first.to_bytes(4, "big"),
            code.to_bytes(4, "big"),
            ledger.to_bytes(8, "big", signed=True),
            entry.to_bytes(8, "big", signed=True),
            rest,
        )
    )
    return len(content).to_bytes(4, "big") + content


def test_responses_are_found_however_the_stream_is_split():
    stream = frame(0x02010000, 0, 7, 2) + frame(0x02020000, 0, 7, -1, b"body" * 9)
    stream += frame(0x02010000, 104, 8, 0)
    expected = [
        Response(1, 0, 7, 2, b""),
        Response(2, 0, 7, -1, b"body" * 9),
        Response(1, 104, 8, 0, b""),
    ]
    for size in range(1, len(stream) + 1):
        responses = Responses()
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        found = itertools.chain.from_iterable(map(responses.receive, chunks))
        assert list(found) == expected


@pytest.mark.parametrize("size", [0, 23, 1 << 30, 0xFFFFFFFF])
def test_a_size_from_the_wire_sizes_no_memory(size):
    with pytest.raises(BookieFailed, match="maxMessageSize"):
        list(Responses().receive(size.to_bytes(4, "big") + b"xx"))


def test_the_entries_of_a_batch_follow_the_request_id():
    entries = b"\0\0\0\3abc\0\0\0\0\0\0\0\1d"
    assert batch_bodies(Response(7, 0, 1, 0, bytes(8) + entries)) == [b"abc", b"", b"d"]
    for end in range(9, 8 + len(entries)):
        if end not in (15, 19):
            with pytest.raises(BookieFailed, match="ends within"):
                batch_bodies(Response(7, 0, 1, 0, (bytes(8) + entries)[:end]))


METADATA = LedgerMetadata(
    quorums=Quorums(3, 2, 2),
    segments=(Segment(0, ("a:1", "b:2", "c:3")), Segment(17, ("a:1", "d:4", "c:3"))),
    created_ms=1_700_000_000_000,
    custom=(("application", b"pulsar"),),
)


@pytest.mark.parametrize(
    "metadata",
    [
        METADATA,
        METADATA.with_ensemble(17, ("e:5", "d:4", "c:3")),
        LedgerMetadata(
            Quorums(1, 1, 1), (Segment(0, ("a:1",)),), LedgerState.CLOSED, 41, 4100,
            DigestType.HMAC, b"secret",
        ),
    ],
)  # fmt: skip
def test_metadata_is_read_as_it_was_written(metadata):
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_metadata_has_the_format_in_its_first_line():
    written = encode_metadata(LedgerMetadata(Quorums(1, 1, 1), (Segment(0, ("a:1",)),)))
    assert written == (
        b"BookieMetadataFormatVersion\t3\n"
        b"\x22\x08\x01\x10\x01\x18\x00\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x28\x01"
        b"\x32\x07\x0a\x03a:1\x10\x00\x38\x03\x42\x00\x48\x01"
    )


def test_fields_of_a_later_version_are_kept():
    value = encode_metadata(METADATA)
    preamble, size, message = value[:30], value[30], value[31:]
    assert size == len(message) < 100
    later = message + bytes.fromhex("60057a03616263")
    found = decode_metadata(preamble + bytes([len(later)]) + later)
    assert found.unknown == bytes.fromhex("60057a03616263")
    assert encode_metadata(found).endswith(found.unknown)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t3\n\x05\x08",
        b"BookieMetadataFormatVersion\t3\n\x08\x08\x02\x10\x02\x18\x00\x28\x01",
        b"BookieMetadataFormatVersion\t3\n\x02\x0d\x00",
    ],
)
def test_what_is_no_metadata_is_refused_by_its_name(value):
    with pytest.raises(BadLedgerMetadata):
        decode_metadata(value)


@pytest.mark.parametrize(("count", "tag"), [(1, b""), (0, b"t"), (1 << 40, b"x" * 65_535)])
def test_counts_and_tags_come_back_from_before_the_payload(count, tag):
    assert decode(encode(count, tag) + b"payload", len) == Entry(b"payload", count, tag)


def test_an_entry_of_another_writer_is_counted_by_its_payload():
    assert decode(b"\x0e\x01payload", lambda _: 5) == Entry(b"\x0e\x01payload", 5, b"")
    of_interceptors = b"\x0e\x02\0\0\0\4\x08\x05\x10\x07payload"
    assert decode(of_interceptors, len) == Entry(b"payload", 7, b"")


@pytest.mark.parametrize(
    "stored", [b"\x0e\x02", b"\x0e\x02\xff\xff\xff\xffx", b"\x0e\x02\0\0\0\1\x0d"]
)
def test_a_torn_header_is_corruption(stored):
    with pytest.raises(CorruptStorage):
        decode(stored, len)


@pytest.mark.parametrize(
    "key", ["a", "a/b", "a//b", "", "/", ".", "a/../b", "a=", "ü/%/=", "a b~+"]
)
def test_keys_are_found_again_from_their_paths(key):
    path = path_of("/root", key)
    assert key_of("/root", path) == key
    parts = path.split("/")[1:]
    assert all(parts)
    assert not {".", ".."} & set(parts)


def test_paths_without_a_value_are_no_keys():
    assert key_of("/root", "/root/a") is None
    assert key_of("/root", "/other/a=") is None
    assert key_of("/root", "/root") is None
