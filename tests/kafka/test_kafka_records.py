"""RecordBatches against kafka-python's own, and what damaged and hostile ones are answered."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from pybroker.kafka.records import compression
from pybroker.kafka.records.batch import (
    CONTROL,
    HEADER_BYTES,
    LAST_SEQUENCE,
    TRANSACTIONAL,
    build_batch,
    checked,
    checked_from_client,
    header_of,
    placed_at,
    sequence_after,
    stamped,
)
from pybroker.kafka.records.compression import compressed, decompress
from pybroker.kafka.records.errors import (
    BadRecords,
    CorruptBatch,
    TooManyBytes,
    UnsupportedCompression,
    UnsupportedFormat,
)
from pybroker.kafka.records.placeholder import placeholder
from pybroker.kafka.records.record import Record, read_records, write_records
from pybroker.kafka.records.steps import at_once
from pybroker.kafka.records.varints import read_varint, write_varint

CODECS = [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]
SOME_BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-(2**40), 2**40),
        SOME_BYTES,
        SOME_BYTES,
        st.lists(st.tuples(st.text(max_size=8), SOME_BYTES), max_size=4),
    ),
    min_size=1,
    max_size=12,
).map(lambda each: [record._replace(offset_delta=at) for at, record in enumerate(each)])


def sent_batch(count: int = 2, **fields: Any) -> bytes:
    records = at_once(write_records([Record(at, 0, None, b"value") for at in range(count)]))
    return build_batch(records, count, count - 1, **fields)


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_comes_back(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert read_varint(bytes(out), 0) == (value, len(out))


def test_a_varint_has_at_most_ten_bytes() -> None:
    with pytest.raises(BadRecords, match="ten bytes"):
        read_varint(b"\xff" * 100, 0)


@given(RECORDS)
def test_records_come_back(records: list[Record]) -> None:
    found = list(read_records(at_once(write_records(records)), len(records)))
    assert [(*each[:4], list(each.headers)) for each in found] == [
        (*each[:4], list(each.headers)) for each in records
    ]


@given(RECORDS, st.sampled_from([0, *CODECS]))
def test_another_client_reads_what_is_written(records: list[Record], codec: int) -> None:
    batch = build_batch(
        compressed(codec, at_once(write_records(records))),
        len(records),
        len(records) - 1,
        attributes=codec,
        base_offset=40,
        base_timestamp=1_000,
    )
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    found = list(theirs)
    assert [(each.key, each.value) for each in found] == [
        (each.key, each.value) for each in records
    ]
    assert [each.offset for each in found] == [40 + at for at in range(len(records))]
    assert [each.timestamp for each in found] == [1_000 + each.timestamp_delta for each in records]
    assert [list(each.headers) for each in found] == [list(each.headers) for each in records]


@given(RECORDS, st.sampled_from([0, *CODECS]))
def test_what_another_client_writes_is_read(records: list[Record], codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, True, 7, 1, 5, 1 << 20)
    for record in records:
        headers = [(key, value) for key, value in record.headers]
        at, time = record.offset_delta, 2**41 + record.timestamp_delta
        builder.append(at, time, record.key, record.value, headers)
    batch = bytes(builder.build())
    header = checked_from_client(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)
    assert header.is_transactional and not header.is_control
    codec = header.attributes & 7  # kafka-python compresses only if that is shorter
    found = list(
        read_records(at_once(decompress(codec, batch[HEADER_BYTES:])), header.record_count)
    )
    assert [(each.key, each.value) for each in found] == [
        (each.key, each.value) for each in records
    ]
    assert [list(each.headers) for each in found] == [list(each.headers) for each in records]


def test_the_place_in_the_log_leaves_the_checksum() -> None:
    header = checked(placed_at(sent_batch(), 1_000, 3))
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1_000, 1_001, 3)


def test_log_append_time_has_a_new_checksum() -> None:
    batch = stamped(sent_batch(base_timestamp=5, max_timestamp=9), 77)
    assert checked(batch).max_timestamp == 77
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc() and [each.timestamp for each in theirs] == [77, 77]


def test_sequences_begin_anew_after_the_last() -> None:
    assert sequence_after(LAST_SEQUENCE, 1) == 0
    assert header_of(sent_batch(3, base_sequence=LAST_SEQUENCE)).last_sequence == 1


def test_a_changed_byte_is_noticed() -> None:
    batch = bytearray(sent_batch())
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        checked(bytes(batch))


def test_an_old_message_format_is_refused_with_advice() -> None:
    batch = bytearray(sent_batch())
    batch[16] = 1
    with pytest.raises(UnsupportedFormat, match="format 2"):
        checked(bytes(batch))


@pytest.mark.parametrize(
    "batch",
    [
        build_batch(b"", 0, -1),
        build_batch(at_once(write_records([Record(0, 0, None, b"")])), 1, 4),
        placeholder(0, 4),
        sent_batch(attributes=CONTROL),
        sent_batch(attributes=TRANSACTIONAL),
        sent_batch(attributes=6),
        build_batch(b"", 1, 0),
        build_batch(bytes(700), 101, 100),
        build_batch(bytes(7_000_007), 1_000_001, 1_000_000),
        build_batch(
            compressed(compression.GZIP, b""), 2**31 - 1, 2**31 - 2, attributes=compression.GZIP
        ),
        sent_batch(producer_id=1, producer_epoch=0, base_sequence=-1),
        sent_batch(producer_id=1, producer_epoch=-1, base_sequence=0),
    ],
)
def test_no_producer_sends_such_a_batch(batch: bytes) -> None:
    with pytest.raises(BadRecords):
        checked_from_client(batch)


@given(st.binary(max_size=200), st.integers(0, 2**31 - 1))
def test_any_bytes_are_read_or_refused(data: bytes, count: int) -> None:
    try:
        found = list(read_records(data, count))
    except BadRecords:
        return
    assert len(found) == count


@given(st.binary(max_size=300), st.integers(0, 7))
def test_any_bytes_decompress_or_are_refused(data: bytes, codec: int) -> None:
    with suppress(BadRecords):
        assert len(at_once(decompress(codec, data, 1_000))) <= 1_000


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_its_memory_is_taken(codec: int) -> None:
    bomb = compressed(codec, bytes(4 << 20))
    with pytest.raises(TooManyBytes, match="more than 1048576 bytes"):
        at_once(decompress(codec, bomb, 1 << 20))


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_records_come_back(codec: int) -> None:
    data = bytes(range(256)) * 1_000
    assert at_once(decompress(codec, compressed(codec, data))) == data


def test_one_block_of_snappy_without_a_header_is_read() -> None:
    import snappy

    assert at_once(decompress(compression.SNAPPY, snappy.compress(b"alone" * 9))) == b"alone" * 9


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_compression_is_refused(codec: int) -> None:
    records = at_once(write_records([Record(at, 0, None, bytes(range(256))) for at in range(300)]))
    data = compressed(codec, records)
    with pytest.raises(BadRecords):  # zstd's library ends early, without an error
        list(read_records(at_once(decompress(codec, data[: len(data) // 2])), 300))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compression.importlib, "import_module", absent)
    with pytest.raises(UnsupportedCompression, match=r"lz4: pip install 'pybroker\[compression\]'"):
        at_once(decompress(compression.LZ4, b"x"))


def test_a_placeholder_has_offsets_and_no_records() -> None:
    header = checked(placeholder(10, 14))
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 14, 0)
    assert list(DefaultRecordBatch(placeholder(10, 14))) == []


@pytest.mark.parametrize("codec", [compression.SNAPPY, compression.LZ4, compression.ZSTD])
def test_a_codec_without_its_package_is_named(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ImportError(name)

    with monkeypatch.context() as patched:
        patched.setattr(compression.importlib, "import_module", fails)
        with pytest.raises(UnsupportedCompression):
            compression.compressed(codec, b"x")
        with pytest.raises(UnsupportedCompression):
            at_once(compression.decompress(codec, b"x"))


def test_nothing_follows_the_last_record() -> None:
    data = at_once(write_records([Record(0, 0, None, b"a"), Record(1, 0, None, b"b")]))
    assert len(list(read_records(data, 2))) == 2
    with pytest.raises(BadRecords, match="1 bytes follow"):
        list(read_records(data + b"x", 2))
    with pytest.raises(BadRecords, match="follow"):
        list(read_records(data, 1))


@pytest.mark.parametrize("head", [b"", b"\x82SNAPPY\0" + bytes(8) + b"\0\0\0\5"])
def test_what_claims_to_be_large_is_not_decompressed(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would allocate it."""
    monkeypatch.setattr(compression, "_of_block", lambda *_: pytest.fail("it was decompressed"))
    with pytest.raises(TooManyBytes):
        at_once(decompress(compression.SNAPPY, head + b"\xff\xff\xff\xff\x0f"))
