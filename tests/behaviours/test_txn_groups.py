"""`client.new_transactions(n)`: several transactions that end as one."""

import asyncio

import pytest
from scenario import assert_nothing_more, drain, subscribe

from pybroker.client import (
    Client,
    InvalidConfiguration,
    InvalidTxnStatus,
    TransactionAborted,
    TxnState,
    aio,
)


def test_all_of_a_group_commit_at_the_end_of_the_block(client: Client, topic: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with client.new_transactions(3) as group:
        for number, txn in enumerate(group):
            producer.send(b"%d" % number, txn=txn)
        assert_nothing_more(consumer)
    assert sorted(drain(consumer, 3)) == [b"0", b"1", b"2"]  # in commit order the first is last
    assert [txn.state for txn in group] == [TxnState.COMMITTED] * 3


def test_an_exception_aborts_all_of_a_group(client: Client, topic: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with pytest.raises(ZeroDivisionError), client.new_transactions(2) as (first, second):
        producer.send(b"a", txn=first)
        producer.send(b"b", txn=second)
        raise ZeroDivisionError
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]
    assert [first.state, second.state] == [TxnState.ABORTED] * 2


def test_a_group_with_one_that_was_aborted_meanwhile_does_not_commit(
    client: Client, topic: str
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with pytest.raises(InvalidTxnStatus, match="ABORTED"), client.new_transactions(2) as group:
        for txn in group:
            producer.send(b"a", txn=txn)
        client.attach_transaction(group[1].txn_id).abort()
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]
    assert [txn.state for txn in group] == [TxnState.ABORTED] * 2


def test_a_group_with_one_that_has_ended_by_itself_is_aborted(client: Client) -> None:
    with pytest.raises(InvalidTxnStatus, match="is committed"), client.new_transactions(3) as group:
        group[1].commit()
    aborted, committed = TxnState.ABORTED, TxnState.COMMITTED
    assert [txn.state for txn in group] == [aborted, committed, aborted]


def test_a_failed_operation_of_one_aborts_the_group(client: Client, topic: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    refused = pytest.raises(TransactionAborted, match="2 transactions")
    with refused, client.new_transactions(2) as (first, second):
        producer.send(b"a", txn=first)
        client.attach_transaction(second.txn_id).commit()
        producer.send_async(b"b", txn=second)
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]


def test_a_group_that_ended_in_its_block_is_left_alone(client: Client) -> None:
    with client.new_transactions(2) as group:
        group.commit()
    with client.new_transactions(2) as other:
        other.abort()
    states = [TxnState.COMMITTED] * 2, [TxnState.ABORTED] * 2
    assert ([txn.state for txn in group], [txn.state for txn in other]) == states


def test_what_was_begun_beside_each_other_commits_together(client: Client, topic: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    first = client.new_transaction()
    second = client.new_transaction(beside=first.txn_id)
    for txn in (first, second):
        producer.send(b"a", txn=txn)
    client.commit_together([first, second, first])
    assert drain(consumer, 2) == [b"a", b"a"]
    client.commit_together([])


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_a_group_of_no_size_is_refused(client: Client, count: int) -> None:
    with pytest.raises(InvalidConfiguration, match="1 to 1000"):
        client.new_transactions(count)


def test_a_group_is_the_same_for_asyncio(client: Client, shared_broker: object, topic: str) -> None:
    consumer = subscribe(client, topic)

    async def work() -> list[TxnState]:
        async with aio.Client(shared_broker.service_url) as core:  # type: ignore[attr-defined]
            producer = await core.create_producer(topic)
            async with await core.new_transactions(2) as group:
                for txn in group:
                    await producer.send(b"a", txn=txn)
            with pytest.raises(ZeroDivisionError):
                async with await core.new_transactions(1) as (alone,):
                    await producer.send(b"b", txn=alone)
                    raise ZeroDivisionError
            return [txn.state for txn in [*group, alone]]

    assert asyncio.run(work()) == [TxnState.COMMITTED] * 2 + [TxnState.ABORTED]
    assert drain(consumer, 2) == [b"a", b"a"]
