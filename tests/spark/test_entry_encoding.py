from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from pybroker.client import partition_for_key
from pybroker.client.producing.batching import split_batch
from pybroker.errors import NotAllowed
from pybroker.names import TxnId
from pybroker.spark import publish

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
            pa.array(keys or [None] * count, pa.string()),
            pa.array([1_700_000_000_000] * count, pa.int64()),
            pa.array([properties or []] * count, pa.map_(pa.string(), pa.string())),
        ],
        names=["topic", "part", "value", "key", "event_time", "properties"],
    )


def encode(*batches, partitions=PARTITIONS, turn=0):
    return list(publish._encode(batches, partitions, turn))


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


def test_value_time_and_properties_arrive_in_order():
    values = [b"a", b"b", b"c"]
    encoded = rows(values, ["k", "k", "k"], [("color", "red")])
    [(_, _, batch)] = encode(encoded, partitions=UNDIVIDED)
    singles, contents = zip(*messages(batch), strict=True)
    assert list(contents) == values
    assert singles[0].event_time == 1_700_000_000_000
    assert [(pair.key, pair.value) for pair in singles[0].properties] == [("color", "red")]


def test_an_entry_is_full_at_its_limits_of_messages_and_bytes():
    many = publish.MAX_ENTRY_MESSAGES + 1
    assert counts(rows([b"v"] * many)) == [publish.MAX_ENTRY_MESSAGES, 1]
    assert counts(rows([bytes(publish.MAX_ENTRY_BYTES * 2 // 5)] * 3)) == [2, 1]


def test_a_large_message_leaves_by_itself():
    large = bytes(5_150_000)
    assert counts(rows([bytes(200_000), large, b"v", b"v"])) == [1, 1, 2]


def test_properties_fill_an_entry_too():
    encoded = encode(rows([b"v"] * 1000, properties=[("p", "y" * 6000)]), partitions=UNDIVIDED)
    assert max(len(batch.payload) for _, _, batch in encoded) <= publish.MAX_ENTRY_BYTES


def test_a_null_value_and_an_empty_key_stay_what_they_are():
    [(_, _, batch)] = encode(rows([None, b""], ["", None]), partitions=UNDIVIDED)
    (null, _), (empty, _) = messages(batch)
    assert null.null_value and null.partition_key == "" and null.HasField("partition_key")
    assert not empty.null_value and not empty.HasField("partition_key")


def test_entries_tell_which_part_their_rows_are_of():
    """Spark may hand several parts to one task, in any order."""
    parts = [rows([b"third"], part=2), rows([b"first"], part=0), rows([b"second"], part=1)]
    encoded = sorted(encode(*parts, partitions=UNDIVIDED), key=lambda each: each[0])
    contents = [content for _, _, batch in encoded for _, content in messages(batch)]
    assert contents == [b"first", b"second", b"third"]


def test_small_batches_without_keys_take_turns_too():
    places = {encode(rows([b"v"], part=part), turn=turn)[0][1] for part, turn in SMALL}
    assert sorted(places) == PARTITIONS[TOPIC]


def test_messages_without_a_key_take_turns_by_whole_entries():
    many = publish.MAX_ENTRY_MESSAGES * 3
    partitions = [partition for _, partition, _ in encode(rows([b"v"] * many))]
    assert sorted(partitions) == PARTITIONS[TOPIC]


def test_a_task_that_runs_again_refuses_to_publish(monkeypatch):
    task = MagicMock()
    task.attemptNumber.return_value = 1
    monkeypatch.setattr(publish.TaskContext, "get", lambda: task)
    with pytest.raises(NotAllowed, match="in a new transaction"):
        next(publish._send([], "pulsar://nowhere", TxnId(0, 1)))
