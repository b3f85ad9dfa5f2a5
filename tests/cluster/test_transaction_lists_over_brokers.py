"""Lists of transactions, of whatever broker: all of them, and to each role its own."""

from collections.abc import Iterator

import pytest
from rest import Rest
from txn_cluster import TxnCluster

from pybroker.base.names import TxnId

pytestmark = pytest.mark.slow  # two brokers


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, serves_http=True)
    yield cluster
    cluster.close()


def test_lists_of_transactions_are_of_all_brokers(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(two)
    on_one, on_two = cluster.topic_of(one), cluster.topic_of(two)

    async def begin() -> list[TxnId]:
        txns = [await cluster.begin(two) for _ in range(2)]
        await cluster.send(two, on_two, b"lamp", txns[0])
        await cluster.send(one, on_one, b"lamp", txns[0])
        await cluster.send(one, on_one, b"chair", txns[0])
        await cluster.send(one, on_one, b"waits")
        await txns[1].abort()
        return [each.txn_id for each in txns]

    live, ended = map(str, cluster.call(begin()))
    for rest in (Rest(cluster, one), Rest(cluster, two)):
        found = rest.get("v3/transactions/live", sort="blocked")
        assert (found["live"], found["matching"]) == (1, 1)
        (shown,) = found["transactions"]
        assert (shown["txnId"], shown["messages"], shown["topicCount"]) == (live, 3, 2)
        assert shown["blockedTopics"] == 2
        assert shown["blockedEntries"] == 4
        assert shown["blockingMs"] is not None
        assert "elsewhere" not in found
        over = rest.get("v3/transactions/ended")
        assert [each["txnId"] for each in over["transactions"]] == [ended]
        blocking = rest.get("v3/transactions/blocking")
        assert blocking["blockedTopics"] == 2
        assert [each["topic"] for each in blocking["topics"]] == [on_one, on_two]
        worst = rest.get("v3/transactions/blocking", limit=1)
        assert [each["topic"] for each in worst["topics"]] == [on_one]
        assert rest.get("v3/transactions/live", page=2, limit=1)["transactions"] == []
        assert rest.ask("GET", "v3/transactions/live", page=6, limit=100).status == 400
        assert rest.ask("GET", "v3/transactions/live", sort="colour").status == 400
