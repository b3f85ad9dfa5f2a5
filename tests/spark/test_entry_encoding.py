from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from pybroker.client import partition_for_key
from pybroker.client.batching import split_batch
from pybroker.errors import NotAllowed
from pybroker.names import TxnId
from pybroker.spark import publish

TOPIC = "persistent://public/default/out"
PARTITIONS = {TOPIC: [f"{TOPIC}-partition-{index}" for index in range(3)]}


def rows(values, keys=None, properties=None):
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([TOPIC] * count, pa.string()),
            pa.array(values, pa.binary()),
            pa.array(keys or [None] * count, pa.string()),
            pa.array([1_700_000_000_000] * count, pa.int64()),
            pa.array([properties or []] * count, pa.map_(pa.string(), pa.string())),
        ],
        names=["topic", "value", "key", "event_time", "properties"],
    )


def messages(batch):
    return list(split_batch(batch.payload, batch.message_count))


def test_a_key_always_goes_to_the_partition_of_its_hash():
    keys = [f"account-{number % 7}" for number in range(50)]
    encoded = list(publish._encode([rows([b"v"] * 50, keys)], PARTITIONS))
    for partition, batch in encoded:
        for single, _ in messages(batch):
            index = partition_for_key(single.partition_key, 3)
            assert partition == PARTITIONS[TOPIC][index]
    assert sum(batch.message_count for _, batch in encoded) == 50


def test_value_time_and_properties_arrive_in_order():
    values = [b"a", b"b", b"c"]
    encoded = rows(values, ["k", "k", "k"], [("color", "red")])
    [(_, batch)] = publish._encode([encoded], {TOPIC: [TOPIC]})
    singles, contents = zip(*messages(batch), strict=True)
    assert list(contents) == values
    assert singles[0].event_time == 1_700_000_000_000
    assert [(pair.key, pair.value) for pair in singles[0].properties] == [("color", "red")]


def test_an_entry_is_full_at_its_limits_of_messages_and_bytes():
    many = publish.MAX_ENTRY_MESSAGES + 1
    counts = [
        batch.message_count for _, batch in publish._encode([rows([b"v"] * many)], {TOPIC: [TOPIC]})
    ]
    assert counts == [publish.MAX_ENTRY_MESSAGES, 1]
    large = [bytes(publish.MAX_ENTRY_BYTES // 2)] * 3
    counts = [batch.message_count for _, batch in publish._encode([rows(large)], {TOPIC: [TOPIC]})]
    assert counts == [2, 1]


def test_messages_without_a_key_take_turns_by_whole_entries():
    many = publish.MAX_ENTRY_MESSAGES * 3
    partitions = [partition for partition, _ in publish._encode([rows([b"v"] * many)], PARTITIONS)]
    assert sorted(partitions) == PARTITIONS[TOPIC]


def test_a_task_that_runs_again_refuses_to_publish(monkeypatch):
    task = MagicMock()
    task.attemptNumber.return_value = 1
    monkeypatch.setattr(publish.TaskContext, "get", lambda: task)
    with pytest.raises(NotAllowed, match="in a new transaction"):
        next(publish._send([], "pulsar://nowhere", TxnId(0, 1)))
