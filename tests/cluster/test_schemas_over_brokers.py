"""Schemas of a topic with partitions on several brokers."""

from collections.abc import Iterator

import pytest
from txn_cluster import TxnCluster

from pybroker.base.errors import IncompatibleSchema
from pybroker.base.names import TopicName
from pybroker.broker.schemas.compatibility import AVRO, StoredSchema

ORDERS = TopicName.parse("orders")
_RECORD = b'{"type": "record", "name": "Order", "fields": [%s]}'
FIRST = StoredSchema("", AVRO, _RECORD % b'{"name": "id", "type": "long"}', {})
WIDER = StoredSchema(
    "",
    AVRO,
    _RECORD % b'{"name": "id", "type": "long"}, {"name": "x", "type": "int", "default": 0}',
    {},
)
OTHER = StoredSchema("", AVRO, _RECORD % b'{"name": "id", "type": "string"}', {})


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0)
    for name in ("one", "two", "three"):
        cluster.start(name)
    yield cluster
    cluster.close()


def added_at_once(cluster: TxnCluster, *schemas: StoredSchema) -> list[object]:
    """Add the schemas concurrently, each at its own broker; returns versions or errors."""
    adding = [
        each.node.create_task(each.broker.topics.schemas.add(ORDERS, schema), name="add")
        for each, schema in zip(cluster.brokers, schemas, strict=True)
    ]
    cluster.until(lambda: all(each.done() for each in adding))
    return [each.exception() or each.result() for each in adding]


def test_producers_of_all_partitions_bring_the_same_schema_at_once(cluster: TxnCluster) -> None:
    assert added_at_once(cluster, FIRST, FIRST, FIRST) == [0, 0, 0]


def test_each_schema_that_comes_at_once_is_compared_with_the_one_before(
    cluster: TxnCluster,
) -> None:
    assert added_at_once(cluster, FIRST, FIRST, FIRST) == [0, 0, 0]
    found = added_at_once(cluster, WIDER, OTHER, WIDER)
    assert (found[0], found[2]) == (1, 1)
    assert isinstance(found[1], IncompatibleSchema)
