"""Several transactions that commit by one decision: all become visible, or none does."""

from typing import Any

import pytest
from raw_client import RawClient
from scenario import assert_nothing_more, drain, subscribe

from pybroker.base import errors
from pybroker.base.names import TxnId
from pybroker.client import Client, InvalidTxnStatus, Transaction
from pybroker.server.transactions.on_transaction import MAX_TOGETHER
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb


def three(client: Client, topic: str) -> list[Transaction]:
    """Three transactions; each has sent one message."""
    first = client.new_transaction()
    txns = [first, *(client.new_transaction(beside=first.txn_id) for _ in range(2))]
    producer = client.create_producer(topic)
    for number, txn in enumerate(txns):
        producer.send(b"%d" % number, txn=txn)
    return txns


def ids(txns: list[Transaction]) -> list[TxnId]:
    return [txn.txn_id for txn in txns]


def test_the_broker_says_that_it_can(client: Client) -> None:
    assert client.commits_together()


def test_all_of_them_become_visible(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    leader, *others = three(client, topic)
    leader.commit(together_with=ids(others))
    assert sorted(drain(consumer, 3)) == [b"0", b"1", b"2"]  # in commit order the leader is last


def test_one_that_was_aborted_keeps_all_from_committing(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    leader, aborted, other = three(client, topic)
    aborted.abort()
    with pytest.raises(InvalidTxnStatus, match="ABORTED"):
        leader.commit(together_with=ids([aborted, other]))
    leader.abort()  # it is still open, not taken for aborted
    other.abort()
    client.create_producer(topic).send(b"plain")
    assert drain(consumer, 1) == [b"plain"]
    assert_nothing_more(consumer)


def test_one_that_has_committed_before_keeps_the_rest_from_it(client: Client, topic: str) -> None:
    leader, hasty, other = three(client, topic)
    hasty.commit()
    with pytest.raises(InvalidTxnStatus, match="cannot commit together any more"):
        leader.commit(together_with=ids([hasty, other]))
    client.attach_transaction(leader.txn_id).abort()
    other.abort()


def test_the_same_commit_twice_succeeds_twice(client: Client, topic: str) -> None:
    leader, *others = three(client, topic)
    leader.commit(together_with=ids(others))
    client.attach_transaction(leader.txn_id).commit(together_with=ids(others))
    client.attach_transaction(others[0].txn_id).commit()


def test_each_is_committed_after_it(client: Client, shared_broker: Any, topic: str) -> None:
    leader, *others = three(client, topic)
    leader.commit(together_with=ids([*others, leader, others[0]]))

    async def statuses(running: Any) -> set[TxnStatus | None]:
        return {running.coordinators.status(txn_id) for txn_id in ids([leader, *others])}

    assert shared_broker.call(statuses) == {TxnStatus.COMMITTED}


def test_those_of_other_coordinators_commit_with_it(client: Client, topic: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txns = [client.new_transaction() for _ in range(4)]
    assert len({txn.txn_id.most for txn in txns}) == 4
    for txn in txns:
        producer.send(b"a", txn=txn)
    client.commit_together(txns)
    assert drain(consumer, 4) == [b"a"] * 4
    client.attach_transaction(txns[0].txn_id).commit(together_with=ids(txns[1:]))


def test_one_of_another_coordinator_that_was_aborted_keeps_all_from_committing(
    client: Client, topic: str
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txns = [client.new_transaction() for _ in range(3)]
    for txn in txns:
        producer.send(b"a", txn=txn)
    client.attach_transaction(txns[1].txn_id).abort()
    with pytest.raises(InvalidTxnStatus, match="ABORTED"):
        client.commit_together(txns)
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]


@pytest.mark.parametrize("least", [[1, 2], []])
def test_names_of_which_half_is_missing_are_refused(raw: RawClient, least: list[int]) -> None:
    txn_id = raw.new_txn()
    body = pb.CommandEndTxn(
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        txn_action=pb.COMMIT,
        together_with=least,
        together_with_most=[1],
    )
    raw.start_request(pb.BaseCommand.END_TXN, "endTxn", body)
    answer = raw.receive(pb.BaseCommand.END_TXN_RESPONSE)
    assert answer.error == errors.NotAllowed.code
    assert not raw.end(txn_id, commit=False).HasField("error")


def end_together(raw: RawClient, txn_id: TxnId, others: list[int], action: Any) -> Any:
    body = pb.CommandEndTxn(
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
        txn_action=action,
        together_with=others,
    )
    raw.start_request(pb.BaseCommand.END_TXN, "endTxn", body)
    return raw.receive(pb.BaseCommand.END_TXN_RESPONSE)


def test_they_do_not_abort_together(raw: RawClient) -> None:
    txn_id, other = raw.new_txn(), raw.new_txn()
    assert end_together(raw, txn_id, [other.least], pb.ABORT).error == errors.NotAllowed.code


def test_too_many_are_refused(raw: RawClient) -> None:
    many = list(range(MAX_TOGETHER + 1))
    answer = end_together(raw, raw.new_txn(), many, pb.COMMIT)
    assert answer.error == errors.NotAllowed.code


def test_an_unknown_one_is_not_found_and_nothing_commits(raw: RawClient) -> None:
    txn_id = raw.new_txn()
    answer = end_together(raw, txn_id, [2**40], pb.COMMIT)
    assert answer.error == errors.TransactionNotFound.code
    assert not raw.end(txn_id, commit=False).HasField("error")
