"""Entries encoded by columns equal those of the client's producers, message by message."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.base.errors import NotAllowed
from pybroker.client import BatchingType, Outgoing, encode_batch, partition_for_key
from pybroker.spark.writing import byte_columns, entries
from pybroker.spark.writing.entries import EntryEncoder, encode_messages
from pybroker.spark.writing.routes import partitions_for_keys
from pybroker.wire.single_messages import split_batch

TOPIC = "persistent://public/default/out"
PARTITIONS = {TOPIC: [f"{TOPIC}-partition-{index}" for index in range(3)]}
UNDIVIDED = {TOPIC: [TOPIC]}
SMALL = [(0, 7), (0, 8), (1, 8)]


def rows(values, keys=None, properties=None, part=0):
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([TOPIC] * count, pa.string()),
            pa.array([part] * count, pa.int32()),
            pa.array(values, pa.binary()),
            keys if isinstance(keys, pa.Array) else pa.array(keys or [None] * count, pa.string()),
            pa.array([1_700_000_000_000] * count, pa.int64()),
            pa.array([properties or []] * count, pa.map_(pa.string(), pa.string())),
        ],
        names=["topic", "part", "value", "key", "event_time", "properties"],
    )


def encode(*batches, partitions=PARTITIONS, turn=0):
    encoder = EntryEncoder(partitions, turn)
    return [each for batch in batches for each in encoder.encode(batch)]


def counts(batch):
    return [entry.message_count for _, _, entry in encode(batch, partitions=UNDIVIDED)]


def messages(batch):
    return list(split_batch(batch.payload, batch.message_count))


def test_a_key_always_goes_to_the_partition_of_its_hash():
    keys = [f"account-{number % 7}" for number in range(50)]
    encoded = encode(rows([b"v"] * 50, keys))
    for _, partition, batch in encoded:
        for single, _ in messages(batch):
            index = partition_for_key(single.partition_key, 3)
            assert partition == PARTITIONS[TOPIC][index]
    assert sum(batch.message_count for _, _, batch in encoded) == 50


def test_a_key_that_is_no_text_is_base64_as_official_clients_have_it():
    keys = pa.array([b"\xff\xfe", None, b"k", b""] * 10, pa.binary())
    batch = rows([b"v"] * 40, keys)
    found = {
        (single.partition_key, single.partition_key_b64_encoded, partition)
        for _, partition, entry in encode(batch)
        for single, _ in messages(entry)
        if single.HasField("partition_key")
    }
    assert found == {
        (key, key == "//4=", PARTITIONS[TOPIC][partition_for_key(key, 3)])
        for key in ("//4=", "k", "")
    }


def test_a_key_based_entry_has_one_key_in_its_order_and_says_it():
    """The text key //4= differs from the bytes key whose base64 form it is."""
    keys = pa.array([b"//4=", b"\xff\xfe", None, b"", b"k"] * 600, pa.binary())
    values = [b"%d" % number for number in range(3000)]
    encoder = EntryEncoder(UNDIVIDED, batching_type=BatchingType.KeyBased)
    found = {}
    for _, _, entry in encoder.encode(rows(values, keys)):
        key = entry.partition_key, entry.partition_key_b64_encoded
        for single, content in messages(entry):
            own = single.partition_key if single.HasField("partition_key") else None
            assert (own, single.partition_key_b64_encoded) == key
            found.setdefault(key, []).append(int(content))
    expected = [("//4=", False), ("//4=", True), (None, False), ("", False), ("k", False)]
    assert found == {key: [*range(first, 3000, 5)] for first, key in enumerate(expected)}


def test_a_key_based_entry_is_full_at_its_limits_too():
    encoder = EntryEncoder(UNDIVIDED, batching_type=BatchingType.KeyBased)
    many = entries.MAX_ENTRY_MESSAGES + 1
    encoded = list(encoder.encode(rows([b"v"] * many, ["k"] * many)))
    counted = [(entry.partition_key, entry.message_count) for _, _, entry in encoded]
    assert counted == [("k", entries.MAX_ENTRY_MESSAGES), ("k", 1)]


def test_value_time_and_properties_arrive_in_order():
    values = [b"a", b"b", b"c"]
    encoded = rows(values, ["k", "k", "k"], [("color", "red")])
    [(_, _, batch)] = encode(encoded, partitions=UNDIVIDED)
    singles, contents = zip(*messages(batch), strict=True)
    assert list(contents) == values
    assert singles[0].event_time == 1_700_000_000_000
    assert [(pair.key, pair.value) for pair in singles[0].properties] == [("color", "red")]


def test_an_entry_is_full_at_its_limits_of_messages_and_bytes():
    many = entries.MAX_ENTRY_MESSAGES + 1
    assert counts(rows([b"v"] * many)) == [entries.MAX_ENTRY_MESSAGES, 1]
    assert counts(rows([bytes(entries.MAX_ENTRY_BYTES * 2 // 5)] * 3)) == [2, 1]


def test_a_large_message_leaves_by_itself():
    large = bytes(5_150_000)
    assert counts(rows([bytes(200_000), large, b"v", b"v"])) == [1, 1, 2]


def test_properties_fill_an_entry_too():
    encoded = encode(rows([b"v"] * 1000, properties=[("p", "y" * 6000)]), partitions=UNDIVIDED)
    assert max(len(batch.payload) for _, _, batch in encoded) <= entries.MAX_ENTRY_BYTES


def test_a_null_value_and_an_empty_key_stay_what_they_are():
    [(_, _, batch)] = encode(rows([None, b""], ["", None]), partitions=UNDIVIDED)
    (null, _), (empty, _) = messages(batch)
    assert null.null_value and null.partition_key == "" and null.HasField("partition_key")
    assert not empty.null_value and not empty.HasField("partition_key")


def test_entries_tell_which_part_their_rows_are_of():
    """Spark may give one task several parts, in any order."""
    parts = [rows([b"third"], part=2), rows([b"first"], part=0), rows([b"second"], part=1)]
    encoded = sorted(encode(*parts, partitions=UNDIVIDED), key=lambda each: each[0])
    contents = [content for _, _, batch in encoded for _, content in messages(batch)]
    assert contents == [b"first", b"second", b"third"]


def test_small_batches_without_keys_take_turns_too():
    places = {encode(rows([b"v"], part=part), turn=turn)[0][1] for part, turn in SMALL}
    assert sorted(places) == PARTITIONS[TOPIC]


def test_messages_without_a_key_take_turns_by_whole_entries():
    many = entries.MAX_ENTRY_MESSAGES * 3
    partitions = [partition for _, partition, _ in encode(rows([b"v"] * many))]
    assert sorted(partitions) == PARTITIONS[TOPIC]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
row = st.tuples(
    st.none() | st.binary(max_size=300),
    st.none() | texts,
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.dictionaries(texts, texts, max_size=3),
)


def arrays(given_rows):
    values, keys, times, maps = zip(*given_rows, strict=True)
    pairs = [None if each is None else list(each.items()) for each in maps]
    return (
        pa.array(values, pa.binary()),
        pa.array(keys, pa.string()),
        pa.array(times, pa.int64()),
        pa.array(pairs, pa.map_(pa.string(), pa.string())),
    )


@pytest.mark.slow
@given(st.lists(row, min_size=1, max_size=30), st.integers(0, 5))
def test_each_message_is_what_a_producer_would_have_made(given_rows, dropped):
    made = encode_messages(*(array[dropped:] for array in arrays(given_rows)))
    for message, (value, key, time, properties) in zip(made, given_rows[dropped:], strict=True):
        outgoing = Outgoing(value or b"", properties or None, key, None, None, time or None)
        [(single, content)] = split_batch(message.as_py(), 1)
        expected = outgoing._replace(null_value=value is None)
        [(wanted, _)] = split_batch(encode_batch([expected]).payload, 1)
        assert (single, content) == (wanted, value or b"")


@given(st.lists(texts, min_size=1, max_size=20), st.integers(1, 9))
def test_keys_go_where_the_client_sends_them(keys, count):
    found = partitions_for_keys(byte_columns.of(pa.array(keys, pa.string())), count)
    assert list(found) == [partition_for_key(key, count) for key in keys]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_varints_are_protobufs(values):
    from pybroker.wire.varint import encode as varint

    column = byte_columns.varints(pa.array(values).to_numpy())
    if isinstance(column, bytes):
        assert column == varint(values[0]) and len(set(values)) == 1
    else:
        assert column.to_pylist() == list(map(varint, values))


def test_an_event_time_before_1970_is_refused():
    with pytest.raises(NotAllowed, match="before 1970"):
        encode_messages(*arrays([(b"v", None, None, None)])[:2], pa.array([-1]), pa.nulls(1))


def test_a_property_that_is_null_is_left_out():
    kind = pa.map_(pa.string(), pa.string())
    maps = pa.array([[("a", None), ("b", "1")], None, [("c", None)], [("d", "2")]], kind)
    for some in (maps, maps.slice(1), pa.concat_arrays([maps.slice(3), maps])):
        made = encode_messages(*arrays([(b"v", None, None, None)] * len(some))[:3], some)
        singles = [next(split_batch(message.as_py(), 1))[0] for message in made]
        found = [[(each.key, each.value) for each in single.properties] for single in singles]
        assert found == [
            [(name, text) for name, text in row or () if text is not None]
            for row in some.to_pylist()
        ]


def test_a_null_map_that_has_contents_is_none():
    maps = pa.MapArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), pa.array(["a", "b"]), pa.array(["1", "2"])
    )
    hollow = pa.Array.from_buffers(
        maps.type, 2, [pa.py_buffer(b"\x02"), maps.buffers()[1]], children=[maps.values]
    )
    made = encode_messages(*arrays([(b"v", None, None, None)] * 2)[:3], hollow)
    singles = [next(split_batch(message.as_py(), 1))[0] for message in made]
    assert [len(single.properties) for single in singles] == [0, 1]


def test_large_batches_are_encoded_in_slices(monkeypatch):
    monkeypatch.setattr(entries, "_MAX_SLICE_BYTES", 4096)
    batch = rows([b"%d" % number for number in range(500)])
    contents = [
        content
        for _, _, made in encode(batch, partitions=UNDIVIDED)
        for _, content in messages(made)
    ]
    assert contents == [b"%d" % number for number in range(500)]


def partitioned(*partitions, keys=None):
    batch = rows([b"v"] * len(partitions), keys)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return pa.RecordBatch.from_pydict(columns | {"partition": pa.array(partitions, pa.int64())})


def test_a_row_goes_to_the_partition_that_it_chooses_whatever_its_key():
    batch = partitioned(2, 0, None, 2, keys=["a", "a", "a", "b"])
    found = {topic: entry.message_count for _, topic, entry in encode(batch)}
    by_key = PARTITIONS[TOPIC][partition_for_key("a", 3)]
    wanted = {PARTITIONS[TOPIC][2]: 2, PARTITIONS[TOPIC][0]: 1}
    wanted[by_key] = wanted.get(by_key, 0) + 1
    assert found == wanted


def test_rows_without_a_choice_are_distributed_as_ever():
    assert encode(partitioned(None, None, None)) == encode(rows([b"v"] * 3))


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_the_topic_does_not_have_is_an_error(partition):
    with pytest.raises(NotAllowed, match=f"for partition {partition} of .*, which has 3"):
        encode(partitioned(0, partition))


def test_a_topic_without_partitions_has_the_first_one_only():
    [(_, topic, entry)] = encode(partitioned(0, None), partitions=UNDIVIDED)
    assert (topic, entry.message_count) == (TOPIC, 2)
    with pytest.raises(NotAllowed, match=r"for partition 1 of .*, which has 1"):
        encode(partitioned(1), partitions=UNDIVIDED)
