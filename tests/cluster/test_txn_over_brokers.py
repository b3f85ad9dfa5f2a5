"""A transaction over topics of two brokers commits everywhere or nowhere."""

from collections.abc import Iterator
from typing import Any

import pytest
from txn_cluster import TxnCluster


@pytest.fixture(params=range(1))
def cluster(request: Any) -> Iterator[TxnCluster]:
    cluster = TxnCluster(request.param)
    yield cluster
    cluster.close()


def test_a_commit_is_seen_on_the_topics_of_both_brokers(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(one)
    here, there = cluster.topic_of(one), cluster.topic_of(two)

    async def pay() -> None:
        txn = await cluster.begin(one)
        await cluster.send(one, here, b"invoice", txn)
        await cluster.send(two, there, b"debit", txn)
        assert await cluster.read(two, there, "before") == []
        await txn.commit()
        assert await cluster.read(one, here) == [b"invoice"]
        assert await cluster.read(two, there) == [b"debit"]

    cluster.call(pay())
