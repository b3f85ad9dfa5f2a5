"""Messages that cross from one protocol to the other arrive whole, in both directions."""

import asyncio
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_batches import batch_records

from pybroker.kafka.conversion.converted import Converted
from pybroker.kafka.conversion.entries import batch_start, kafka_entry
from pybroker.kafka.conversion.headers import as_headers, as_properties
from pybroker.kafka.conversion.to_kafka import ENCRYPTED, ORDERING_KEY, UNREADABLE, for_kafka
from pybroker.kafka.conversion.to_pulsar import for_pulsar
from pybroker.kafka.records import compression
from pybroker.kafka.records.batch import LOG_APPEND_TIME, build_batch, checked, header_of
from pybroker.kafka.records.compression import compressed
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import at_once
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.decompression import decompressed
from pybroker.wire.message_metadata import (
    build_entry,
    last_batch_index,
    message_count,
    split_entry,
    sticky_key,
    with_broker_metadata,
)
from pybroker.wire.single_messages import split_batch

NOW = 1_700_000_000_000
TRICKY = ["a", "b", "a;1", "a;2", "a;2;base64", "a;null", "a;base64", "a;null;2", ";2", "", "a;2;2"]
NAMES = st.sampled_from(TRICKY) | st.text(max_size=4)
VALUES = (
    st.none() | st.sampled_from([b"\xff", b"", b"/w==", b"YWJj", b"x"]) | st.binary(max_size=30)
)
TEXTS = st.sampled_from(["", "/w==", "YWJj", "x"]) | st.text(max_size=3)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5)
RECORDS = st.lists(
    st.tuples(VALUES, VALUES, HEADERS, st.integers(0, 2**40)), min_size=1, max_size=8
).map(
    lambda each: [
        Record(at, time, key, value, headers) for at, (key, value, headers, time) in enumerate(each)
    ]
)
CODECS = st.sampled_from(
    [compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]
)


def kafka_batch(records: list[Record], codec: int = 0, **fields: Any) -> bytes:
    data = compressed(codec, at_once(write_records(records)))
    fields = {"base_timestamp": NOW, "max_timestamp": NOW, **fields}
    attributes = codec | fields.pop("attributes", 0)
    return build_batch(data, len(records), len(records) - 1, attributes=attributes, **fields)


def stored(batch: bytes, base_offset: int = 100) -> bytes:
    return kafka_entry(batch, header_of(batch), base_offset, 3, NOW + 7)


def plain(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(*each[:4], list(each.headers)) for each in records]


def singles(entry: bytes) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    metadata, start = split_entry(entry)
    data = decompressed(metadata.compression, entry[start:], metadata.uncompressed_size)
    return list(split_batch(data, metadata.num_messages_in_batch))


def pulsar_entry(payload: bytes = b"payload", **fields: Any) -> bytes:
    metadata = pb.MessageMetadata(producer_name="theirs", sequence_id=4, publish_time=NOW, **fields)
    return build_entry(metadata, payload)


@given(HEADERS)
def test_headers_come_back_from_properties(headers: list[tuple[str, bytes | None]]) -> None:
    properties = list(as_properties(headers))
    assert len({name for name, _ in properties}) == len(properties)
    assert list(as_headers(properties)) == headers


@given(st.dictionaries(NAMES, TEXTS, max_size=6))
def test_properties_come_back_from_headers(properties: dict[str, str]) -> None:
    assert list(as_properties(as_headers(properties.items()))) == list(properties.items())


def test_a_header_of_text_is_the_property_of_its_name() -> None:
    headers = [("trace", b"one"), ("trace", b"two"), ("trace", b"\xff"), ("none", None)]
    assert list(as_properties(headers)) == [
        ("trace", "one"),
        ("trace;2", "two"),
        ("trace;base64", "/w=="),
        ("none;null", ""),
    ]


@given(RECORDS, CODECS)
def test_records_come_back_from_pulsars_messages(records: list[Record], codec: int) -> None:
    entry = at_once(for_pulsar(stored(kafka_batch(records, codec))))
    batch = at_once(for_kafka(entry, 100, len(records), 3))
    header, found = batch_records(batch)
    times = [header.base_timestamp + each.timestamp_delta for each in found]
    assert times == [NOW + each.timestamp_delta for each in records]
    without_times = [each._replace(timestamp_delta=0) for each in found]
    assert plain(without_times) == plain([each._replace(timestamp_delta=0) for each in records])
    assert checked(batch) == header
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (
        100,
        99 + len(records),
        3,
    )


@given(RECORDS, CODECS)
def test_a_stored_batch_is_as_it_came_but_for_its_place(records: list[Record], codec: int) -> None:
    batch = kafka_batch(records, codec)
    for entry in (stored(batch), with_broker_metadata(stored(batch), NOW, 5)):
        found = entry[batch_start(entry) :]
        assert found[16:] == batch[16:]
        assert checked(found).base_offset == 100 and checked(found).leader_epoch == 3
        assert message_count(entry) == len(records)
        assert last_batch_index(entry) == len(records) - 1


@given(RECORDS)
def test_pulsars_clients_see_the_fields_of_a_record(records: list[Record]) -> None:
    entry = at_once(for_pulsar(stored(kafka_batch(records))))
    metadata, _ = split_entry(entry)
    assert (metadata.publish_time, metadata.sequence_id) == (NOW + 7, 100)
    assert not metadata.properties
    for (single, value), record in zip(singles(entry), records, strict=True):
        assert value == (record.value or b"") and single.null_value == (record.value is None)
        assert single.event_time == NOW + record.timestamp_delta
        assert single.HasField("partition_key") == (record.key is not None)
        assert sticky_key(single) == (record.key or b"")


def test_the_metadata_of_the_broker_stays_in_front() -> None:
    entry = with_broker_metadata(stored(kafka_batch([Record(0, 0, None, b"v")])), NOW, 5)
    converted = at_once(for_pulsar(entry))
    assert converted[:15] == entry[:15]
    assert singles(converted)[0][1] == b"v"


def test_a_batch_of_one_key_has_the_key() -> None:
    same = [Record(at, 0, b"k", b"v") for at in range(3)]
    assert split_entry(at_once(for_pulsar(stored(kafka_batch(same)))))[0].partition_key == "k"
    mixed = [*same, Record(3, 0, b"l", b"v")]
    assert not split_entry(at_once(for_pulsar(stored(kafka_batch(mixed)))))[0].HasField(
        "partition_key"
    )


def test_log_append_time_is_no_event_time() -> None:
    batch = kafka_batch([Record(0, 0, None, b"v")], attributes=LOG_APPEND_TIME)
    assert not singles(at_once(for_pulsar(stored(batch))))[0][0].HasField("event_time")


def test_records_without_a_time_have_no_event_time() -> None:
    batch = kafka_batch([Record(0, 0, None, b"v")], base_timestamp=-1)
    assert not singles(at_once(for_pulsar(stored(batch))))[0][0].HasField("event_time")


@pytest.mark.parametrize(
    "batch",
    [
        build_batch(b"no records", 3, 2),
        build_batch(b"\x02\xff" * 20, 5, 4, attributes=compression.GZIP),
        build_batch(at_once(write_records([Record(0, 0, b"k", b"v")])), 9, 8),
    ],
)
def test_records_that_are_none_stay_as_they_are(batch: bytes) -> None:
    assert at_once(for_pulsar(stored(batch))) == stored(batch)


def test_without_the_library_records_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = stored(kafka_batch([Record(0, 0, None, b"v" * 100)], compression.LZ4))

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(compression.importlib, "import_module", absent)
    assert at_once(for_pulsar(entry)) == entry


def test_entries_of_pulsars_clients_stay_as_they_are() -> None:
    entry = pulsar_entry(properties=[pb.KeyValue(key="entry.format", value="kafka")])
    assert at_once(for_pulsar(entry)) == entry
    assert at_once(for_pulsar(b"")) == b"" and at_once(for_pulsar(b"\x0e\x02")) == b"\x0e\x02"


@given(st.binary(max_size=60))
def test_any_bytes_are_no_batch(data: bytes) -> None:
    assert at_once(for_pulsar(data)) == data


# -- what Pulsar's clients wrote


def only_record(entry: bytes, messages: int = 1) -> Record:
    (record,) = batch_records(at_once(for_kafka(entry, 0, messages)))[1]
    return record


@given(st.dictionaries(NAMES, TEXTS, max_size=4), st.text(max_size=5), st.integers(1, 2**40))
def test_a_message_becomes_a_record(properties: dict[str, str], key: str, time: int) -> None:
    pairs = [pb.KeyValue(key=name, value=text) for name, text in properties.items()]
    entry = pulsar_entry(properties=pairs, partition_key=key, event_time=time)
    header, (record,) = batch_records(at_once(for_kafka(entry, 8, 1)))
    assert (record.key, record.value) == (key.encode(), b"payload")
    assert list(as_properties(record.headers)) == list(properties.items())
    assert header.base_timestamp == header.max_timestamp == time
    assert header.base_offset == header.last_offset == 8


def test_a_key_of_bytes_is_decoded() -> None:
    entry = pulsar_entry(partition_key="/w==", partition_key_b64_encoded=True)
    assert only_record(entry).key == b"\xff"
    entry = pulsar_entry(partition_key="no base64", partition_key_b64_encoded=True)
    assert only_record(entry).key == b"no base64"


def test_a_null_value_is_a_tombstone() -> None:
    assert only_record(pulsar_entry(b"", null_value=True, partition_key="k")).value is None
    assert only_record(pulsar_entry(b"", partition_key="k")).value == b""


def test_an_ordering_key_is_a_header() -> None:
    assert only_record(pulsar_entry(ordering_key=b"o")).headers == [(ORDERING_KEY, b"o")]


def test_the_publish_time_stands_in_for_the_event_time() -> None:
    assert header_of(at_once(for_kafka(pulsar_entry(), 0, 1))).base_timestamp == NOW


def test_a_compressed_message_is_compressed_for_kafka() -> None:
    text = b"again and again " * 50
    entry = pulsar_entry(zlib.compress(text), compression=pb.ZLIB, uncompressed_size=len(text))
    batch = at_once(for_kafka(entry, 0, 1))
    assert header_of(batch).attributes == compression.GZIP and len(batch) < len(text)
    assert only_record(entry).value == text


def test_removed_messages_of_a_batch_leave_their_offsets_empty() -> None:
    parts = []
    for out in (True, False, True):
        single = pb.SingleMessageMetadata(payload_size=1, compacted_out=out).SerializeToString()
        parts.append(len(single).to_bytes(4, "big") + single + b"x")
    batch = at_once(for_kafka(pulsar_entry(b"".join(parts), num_messages_in_batch=3), 10, 3))
    header, (record,) = batch_records(batch)
    assert (header.last_offset, record.offset_delta) == (12, 1)


def test_an_encrypted_message_is_passed_as_it_is() -> None:
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    entry = pulsar_entry(b"secret", encryption_keys=keys, num_messages_in_batch=3)
    record = only_record(entry, 3)
    assert record.value == b"secret" and record.headers == [(ENCRYPTED, b"unnamed")]
    assert header_of(at_once(for_kafka(entry, 5, 3))).last_offset == 7


@pytest.mark.parametrize(
    ("entry", "messages"),
    [
        (pulsar_entry(b"no zlib", compression=pb.ZLIB, uncompressed_size=9), 1),
        (pulsar_entry(b"bomb", compression=pb.LZ4, uncompressed_size=2**31 - 1), 1),
        (pulsar_entry(b"no batch", num_messages_in_batch=2), 2),
        (pulsar_entry(b"", num_messages_in_batch=2**31 - 1), 2**31 - 1),
        (pulsar_entry(b"", num_messages_in_batch=2**31 - 1), 3),
        (b"neither", 1),
    ],
)
def test_what_cannot_be_read_says_so_and_stops_nobody(entry: bytes, messages: int) -> None:
    record = only_record(entry, messages)
    assert record.headers[-1][0] == UNREADABLE and record.headers[-1][1]
    assert checked(at_once(for_kafka(entry, 0, messages))).last_offset == messages - 1


def test_so_much_is_kept_of_what_was_converted() -> None:
    made: list[bytes] = []

    def twice(data: bytes) -> Any:
        made.append(data)
        yield from ()
        return data * 2

    kept = Converted(twice, 10_000)
    of_one = 0
    for each in (b"a" * 1_000, b"b" * 1_000, b"a" * 1_000):
        assert asyncio.run(kept.of(each)) == each * 2
        of_one = of_one or kept.size_bytes
    assert len(made) == 2
    assert 3_000 < of_one < 3_500 and kept.size_bytes == 2 * of_one
    for each in (b"c" * 1_000, b"d" * 1_000, b"a" * 1_000):
        asyncio.run(kept.of(each))
    assert kept.size_bytes == 3 * of_one and len(made) == 4, "b was the oldest"
    asyncio.run(kept.of(b"x" * 10_000))
    assert kept.size_bytes == 0
