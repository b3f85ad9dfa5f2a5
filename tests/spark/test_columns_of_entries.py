"""Columns built by vectors against objects: the same entries, message by message."""

import base64
import contextlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.names import TopicName
from pybroker.client import CompressionType, Outgoing, encode_batch
from pybroker.client.compression import codec
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.spark.columns import batches
from pybroker.spark.columns.arrays import message_ids, times
from pybroker.spark.columns.fields import NotParsed, read_fields, varints
from pybroker.spark.columns.shape import Origin, Shape, default_schema
from pybroker.spark.columns.slab import DamagedEntry, read_heads, slab_of
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

TOPIC = TopicName.parse("persistent://public/default/t-partition-3")
SHAPE = Shape.of(default_schema())
NOW_MS = 1_700_000_000_000


def batch_entry(messages, compression=CompressionType.NONE, **fields):
    batch = encode_batch(messages, compression)
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=NOW_MS,
        num_messages_in_batch=len(messages),
        uncompressed_size=batch.uncompressed_size,
        compression=int(batch.compression_type),
        **fields,
    )
    return build_entry(metadata, batch.payload)


def plain_entry(message, compression=CompressionType.NONE):
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS)
    if message.partition_key is not None:
        metadata.partition_key = message.partition_key
    if message.event_timestamp:
        metadata.event_time = message.event_timestamp
    if message.null_value:
        metadata.null_value = True
    for key, value in (message.properties or {}).items():
        metadata.properties.add(key=key, value=value)
    payload = message.content
    if compression is not CompressionType.NONE:
        metadata.compression = int(compression)
        metadata.uncompressed_size = len(payload)
        payload = codec(compression).compress(payload)
    return build_entry(metadata, payload)


def stored(entries):
    return [StoredEntry(7, 300 + number, data) for number, data in enumerate(entries)]


def one_batch(shape, slab):
    return shape.batch(slab, Origin.one(TOPIC, slab))


def rows_of(entries):
    heads = read_heads(stored(entries))
    batch = one_batch(SHAPE, slab_of(heads, [None] * len(entries)))
    batch.validate(full=True)
    return batch.to_pylist()


def row(message, entry, index, size):
    place = pb.MessageIdData(ledgerId=7, entryId=300 + entry, partition=3)
    if index >= 0:
        place.batch_index, place.batch_size = index, size
    key, event = message.partition_key, message.event_timestamp
    return {
        "value": None if message.null_value and not message.content else message.content,
        "__key": None if key is None else key.encode(),
        "__topic": str(TOPIC),
        "__messageId": place.SerializeToString(),
        "__publishTime": pa.scalar(NOW_MS * 1000, pa.timestamp("us", "UTC")).as_py(),
        "__eventTime": pa.scalar(event * 1000, pa.timestamp("us", "UTC")).as_py()
        if event
        else None,
        "__messageProperties": sorted((message.properties or {}).items()),
    }


messages = st.builds(
    Outgoing,
    st.binary(max_size=300),
    partition_key=st.none() | st.text(max_size=20),
    properties=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=3),
    event_timestamp=st.none() | st.integers(1, 2**45),
    sequence_id=st.none() | st.integers(0, 2**60),
    null_value=st.booleans(),
    partition_key_b64_encoded=st.just(False),  # base64 has its own tests
)
compressions = st.sampled_from([CompressionType.NONE, CompressionType.ZLib])
entries = st.lists(
    st.tuples(st.just("plain"), messages, compressions)
    | st.tuples(st.just("batch"), st.lists(messages, min_size=1, max_size=60), compressions),
    min_size=1,
    max_size=8,
)


@given(entries)
@pytest.mark.slow
def test_rows_are_what_the_objects_say(entries):
    data, wanted = [], []
    for number, (kind, content, compression) in enumerate(entries):
        if kind == "plain":
            data.append(plain_entry(content, compression))
            wanted.append(row(content, number, -1, 0))
        else:
            data.append(batch_entry(content, compression))
            size = len(content)
            wanted += [row(each, number, index, size) for index, each in enumerate(content)]
    found = rows_of(data)
    for each in found:
        each["__messageProperties"].sort()
    assert found == wanted


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_a_long_batch_of_one_shape_with_numbers_that_grow(size):
    sent = [Outgoing(bytes([n % 251]) * size, sequence_id=n * 40) for n in range(1000)]
    assert [each["value"] for each in rows_of([batch_entry(sent)])] == [m.content for m in sent]


def test_a_long_batch_of_many_shapes():
    sent = [Outgoing(b"x" * (n % 7), partition_key="k" * (n % 200 + 1)) for n in range(5000)]
    found = rows_of([batch_entry(sent)])
    assert [each["value"] for each in found] == [each.content for each in sent]
    assert [each["__key"].decode() for each in found] == [each.partition_key for each in sent]


def test_keys_in_base64_are_bytes():
    key = base64.b64encode(b"\x00\xff").decode()
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS)
    metadata.partition_key, metadata.partition_key_b64_encoded = key, True
    assert [each["__key"] for each in rows_of([build_entry(metadata, b"v")])] == [b"\x00\xff"]


def test_of_equal_property_names_the_last_counts():
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS)
    for value in ("1", "2"):
        metadata.properties.add(key="a", value=value)
    [found] = rows_of([build_entry(metadata, b"v")])
    assert found["__messageProperties"] == [("a", "2")]


def test_what_a_compaction_took_out_of_a_batch_is_no_row():
    parts = []
    for value, gone in ((b"a", False), (b"b", True), (b"c", False)):
        single = pb.SingleMessageMetadata(payload_size=len(value), compacted_out=gone)
        encoded = single.SerializeToString()
        parts += [len(encoded).to_bytes(4, "big"), encoded, value]
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=NOW_MS, num_messages_in_batch=3
    )
    found = rows_of([build_entry(metadata, b"".join(parts))])
    assert [each["value"] for each in found] == [b"a", b"c"]


def test_an_entry_without_a_checksum_is_read():
    assert [each["value"] for each in rows_of([plain_entry(Outgoing(b"v"))[6:]])] == [b"v"]


def test_a_query_gets_the_columns_that_it_asks_for():
    shape = Shape(("key", "message_id", "value"))
    entry = batch_entry([Outgoing(b"v", partition_key="k")])
    batch = one_batch(shape, slab_of(read_heads(stored([entry])), [None]))
    assert batch.to_pylist() == [{"key": "k", "message_id": "7:300:0", "value": b"v"}]


# --- hostile bytes -------------------------------------------------------------------------------


def test_a_wrong_checksum_names_its_entry():
    entry = bytearray(plain_entry(Outgoing(b"v")))
    entry[-1] ^= 1
    with pytest.raises(DamagedEntry, match=r"entry 7:300 has a wrong checksum"):
        rows_of([bytes(entry)])


@pytest.mark.parametrize("size", [0, -5, 2_000_000_000])
def test_a_batch_of_an_absurd_size_names_its_entry(size):
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=NOW_MS, num_messages_in_batch=size
    )
    with pytest.raises(DamagedEntry, match="7:300 is a batch of"):
        rows_of([build_entry(metadata, b"v")])


def test_an_absurd_size_of_what_is_compressed_names_its_entry():
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=NOW_MS,
        compression=2,
        uncompressed_size=2**31,
    )
    with pytest.raises(DamagedEntry, match="an uncompressed size of"):
        rows_of([build_entry(metadata, b"v")])


@given(st.binary(max_size=200), st.integers(1, 50))
def test_any_bytes_for_a_batch_are_rows_or_an_error(payload, count):
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=NOW_MS, num_messages_in_batch=count
    )
    good = batch_entry([Outgoing(b"good")])
    try:
        found = rows_of([good, build_entry(metadata, payload), good])
    except DamagedEntry as error:
        assert "7:301" in str(error)
    else:
        assert len(found) <= count + 2


@given(st.binary(max_size=100))
def test_any_bytes_for_an_entry_are_rows_or_an_error(data):
    good = plain_entry(Outgoing(b"good"))
    try:
        rows_of([good, data, good])
    except DamagedEntry as error:
        assert "7:301" in str(error)


@given(st.integers(1, 3), st.data())
def test_a_batch_cut_or_changed_anywhere_is_rows_or_an_error(count, data):
    sent = [Outgoing(b"abc", partition_key="k", properties={"p": "q"})] * count * 20
    payload = bytearray(encode_batch(sent).payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=NOW_MS, num_messages_in_batch=len(sent)
    )
    with contextlib.suppress(DamagedEntry):
        rows_of([build_entry(metadata, bytes(payload[: data.draw(st.integers(0, 2000))]))])


# --- parts ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1), st.integers(-1, 5))
def test_message_ids_are_javas(numbers, partition):
    count = len(numbers)
    ledger = np.array(numbers)
    entry, index = ledger[::-1].copy(), ledger % 1000 - 1
    size = np.where(index >= 0, 1000, 0)
    partitions = np.full(count, partition)
    ids = message_ids(ledger, entry, partitions, index, size).to_pylist()
    for number in range(count):
        wanted = pb.MessageIdData(ledgerId=int(ledger[number]), entryId=int(entry[number]))
        if partition >= 0:
            wanted.partition = partition
        if index[number] >= 0:
            wanted.batch_index, wanted.batch_size = int(index[number]), 1000
        assert ids[number] == wanted.SerializeToString()


def test_a_varint_without_an_end_is_no_varint():
    with pytest.raises(NotParsed):
        varints(np.full(32, 0xFF, np.uint8), np.array([0]))


def test_a_string_that_reaches_beyond_its_message_is_refused():
    data = np.frombuffer(bytes([0x0A, 9, 65]) + bytes(32), np.uint8)
    with pytest.raises(NotParsed, match="beyond the end"):
        read_fields(data, np.array([0]), np.array([3]), numbers={}, slices=(1,))


def test_runs_of_one_shape_are_found_with_one_comparison():
    payload = encode_batch([Outgoing(b"abc")] * 500).payload
    blob = payload + bytes(16)
    data = np.frombuffer(blob, np.uint8)
    stride = len(payload) // 500
    assert batches.message_starts(blob, data, 0, len(payload), 500).tolist() == [
        stride * number for number in range(501)
    ]


@pytest.mark.parametrize("present", [None, np.array([True, True, True, False])])
def test_a_time_that_spark_has_none_for_is_null_and_no_other_time(present):
    last_ms = (2**63 - 1) // 1000
    found = times(np.array([1, last_ms, last_ms + 1, 2**63 - 1]), present)
    assert found.is_valid().to_pylist() == [True, True, False, False]
    assert found.cast(pa.int64()).to_pylist()[:2] == [1000, last_ms * 1000]
