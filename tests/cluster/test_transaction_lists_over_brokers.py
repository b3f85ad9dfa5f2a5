"""Lists of transactions from any broker: complete, but each role sees only its own."""

import asyncio
from collections.abc import Iterator

import pytest
from rest import Rest
from starlette.requests import Request
from txn_cluster import TxnCluster

from pybroker.admin.routes import live_transaction
from pybroker.base.names import COORDINATOR_ASSIGN, TxnId

pytestmark = pytest.mark.slow  # two brokers


@pytest.fixture
def cluster() -> Iterator[TxnCluster]:
    cluster = TxnCluster(0, serves_http=True, transaction_coordinators=3)
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


def test_a_page_is_made_of_no_more_than_it_needs_of_each_broker(
    cluster: TxnCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    for number, broker in enumerate((one, two, one)):
        cluster.take(broker, COORDINATOR_ASSIGN.partition_at(number))

    async def begin() -> list[str]:
        found = []
        for number in (0, 1, 2, 1, 0):
            coordinator = await (two if number == 1 else one).coordinators.get(number)
            found.append(str(await coordinator.new_transaction(60_000, None)))
            await asyncio.sleep(1)
        return found

    async def abort(txn_id: str) -> None:
        found = TxnId(*map(int, txn_id.strip("()").split(",")))
        broker = two if found.most == 1 else one
        await (await broker.coordinators.get(found.most)).abort(found, "")
        await asyncio.sleep(1)

    asked: list[str] = []
    paging = live_transaction.paging

    def watched(request: Request) -> tuple[int, int]:
        asked.append(request.query_params["limit"])
        return paging(request)

    by_age = cluster.world.call(one.node, begin())
    by_id = sorted(by_age)
    monkeypatch.setattr(live_transaction, "paging", watched)
    for rest in (Rest(cluster, one), Rest(cluster, two)):
        for page in (1, 2, 3):
            part = slice(2 * page - 2, 2 * page)
            for sort, order, whole in (("age", "asc", by_age[::-1]), ("id", "asc", by_id)):
                query = {"sort": sort, "order": order, "limit": 2, "page": page}
                asked.clear()
                found = rest.get("v3/transactions/live", **query)
                assert [each["txnId"] for each in found["transactions"]] == whole[part]
                assert found["matching"] == 5
                assert asked == [str(2 * page)] * 2
                assert "keys" not in found
    for txn_id in by_age:
        cluster.world.call((two if txn_id.startswith("(1,") else one).node, abort(txn_id))
    asked.clear()
    found = Rest(cluster, one).get("v3/transactions/ended", limit=2, page=2)
    assert [each["txnId"] for each in found["transactions"]] == by_age[::-1][2:4]
    assert asked == ["4", "4"]


def test_transactional_ids_are_listed_with_the_open_transactions_of_all_brokers(
    cluster: TxnCluster,
) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    cluster.serve_coordinator(two)
    topic = cluster.topic_of(one)
    session = {"txn.transactional.id": "billing/1", "txn.session": "first"}

    async def begin() -> str:
        producer = await cluster.client_at(one).create_producer(topic, properties=session)
        txn = await cluster.begin(two)
        await producer.send(b"invoice", txn=txn)
        return str(txn.txn_id)

    txn_id = cluster.call(begin())
    for rest in (Rest(cluster, one), Rest(cluster, two)):
        (listed,) = rest.get("v3/transactions/transactionalIds")
        assert (listed["transactionalId"], listed["epoch"]) == ("billing/1", 1)
        assert listed["openTransactions"] == [txn_id]
        assert rest.get("v3/transactions/transactionalIds/billing%2F1") == listed
        assert rest.ask("GET", "v3/transactions/transactionalIds/other").status == 404
