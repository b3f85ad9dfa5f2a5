"""`txn.prepare()`: from then on only its owner's decision ends a transaction, of any process."""

import itertools
from typing import Any

import pytest
from raw_client import RawClient
from scenario import (
    IN_LOG_ORDER,
    SINGLE,
    SOON_MS,
    assert_nothing_more,
    drain,
    publish,
    receive,
    subscribe,
)

import pybroker.testing
from pybroker.base.names import TopicName
from pybroker.client import (
    Client,
    ConsumerType,
    InvalidTxnStatus,
    PreparedTransaction,
    TransactionAborted,
    TransactionConflict,
    TxnState,
    aio,
)
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """By which the test finds its own prepared transactions."""
    return f"name-{next(_numbers)}"


def other_client(broker: Any, **options: Any) -> Client:
    return Client(broker.service_url, enable_transaction=True, **options)


def found(client: Client, name: str) -> PreparedTransaction:
    (only,) = client.prepared_transactions(name)
    return only


def test_nothing_is_visible_before_the_commit_and_all_is_after(
    client: Client, topic: str, name: str
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)
    txn.prepare(name)
    assert txn.state is TxnState.PREPARED
    assert_nothing_more(consumer)
    txn.commit()
    assert drain(consumer, 1) == [b"a"]
    assert client.prepared_transactions(name) == []


def test_an_abort_shows_nothing(client: Client, topic: str, name: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)
    txn.prepare(name)
    txn.abort()
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]


@pytest.mark.parametrize("commits", [True, False])
def test_another_process_finds_what_a_dead_one_left_and_decides(
    shared_broker: Any, client: Client, topic: str, name: str, commits: bool
) -> None:
    consumer = subscribe(client, topic)
    with other_client(shared_broker) as dying:
        txn = dying.new_transaction(abort_on_disconnect=True)
        dying.create_producer(topic).send(b"a", txn=txn)
        txn.prepare(name)
    left = found(client, name)
    assert (left.txn_id, left.name, left.owner) == (txn.txn_id, name, None)
    assert left.age_ms >= 0 and left.prepared_ms > 0
    attached = client.attach_transaction(left.txn_id)
    if commits:
        attached.commit()
        assert drain(consumer, 1) == [b"a"]
    else:
        attached.abort()
        assert_nothing_more(consumer)
    assert client.prepared_transactions(name) == []


def test_leaving_its_block_decides_nothing(client: Client, topic: str, name: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with client.new_transaction() as txn:
        producer.send(b"a", txn=txn)
        txn.prepare(name)
    with pytest.raises(ZeroDivisionError), client.attach_transaction(txn.txn_id) as again:
        again.prepare(name)
        raise ZeroDivisionError
    assert_nothing_more(consumer)
    assert found(client, name).txn_id == txn.txn_id
    txn.commit()
    assert drain(consumer, 1) == [b"a"]


def test_its_timeout_does_not_end_it(topic: str, name: str) -> None:
    with pybroker.testing.broker() as broker, other_client(broker) as client:
        consumer, producer = subscribe(client, topic), client.create_producer(topic)
        prepared, left = client.new_transaction(), client.new_transaction()
        producer.send(b"a", txn=prepared)
        prepared.prepare(name)
        producer.send(b"left", txn=left)
        broker.clock.advance("1h")
        with pytest.raises(InvalidTxnStatus, match="ABORTED"):
            left.commit()
        prepared.commit()
        assert drain(consumer, 1) == [b"a"]


def test_what_it_acknowledged_is_held_and_comes_again_after_an_abort(
    shared_broker: Any, client: Client, topic: str, name: str
) -> None:
    client.create_producer(topic).send(b"in")
    with other_client(shared_broker) as dying:
        consumer = subscribe(dying, topic, consumer_type=ConsumerType.Shared)
        message = consumer.receive(timeout_millis=SOON_MS)
        txn = dying.new_transaction()
        consumer.acknowledge(message, txn=txn)
        txn.prepare(name)
    successor = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    assert_nothing_more(successor)
    client.attach_transaction(txn.txn_id).abort()
    assert drain(successor, 1) == [b"in"]


def test_no_more_can_be_done_in_it(client: Client, topic: str, name: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)
    txn.prepare(name)
    with pytest.raises(InvalidTxnStatus, match="is prepared: begin a new one"):
        producer.send(b"late", txn=txn)
    attached = client.attach_transaction(txn.txn_id)
    with pytest.raises(InvalidTxnStatus, match="PREPARED, not OPEN"):
        producer.send(b"late", txn=attached)
    txn.commit()
    assert drain(consumer, 1) == [b"a"]
    assert_nothing_more(consumer)


def test_a_message_that_was_refused_prevents_it(client: Client, topic: str, name: str) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"a", txn=txn)
    txn.core.refused(ValueError("it was too big"))
    with pytest.raises(TransactionAborted, match=r"instead of prepared .* it was too big"):
        txn.prepare(name)
    assert client.prepared_transactions(name) == []
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]


def test_a_prepare_waits_for_everything_that_was_sent(
    client: Client, topic: str, name: str
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    txn = client.new_transaction()
    for number in range(100):
        producer.send_async(b"%d" % number, None, txn=txn)
    txn.prepare(name)
    client.attach_transaction(txn.txn_id).commit()
    assert len(drain(consumer, 100)) == 100


def test_it_can_be_asked_for_again_until_it_has_ended(client: Client, name: str) -> None:
    txn = client.new_transaction()
    for _ in range(3):
        txn.prepare(name)
    with pytest.raises(InvalidTxnStatus, match=f"prepared with the name '{name}', not 'other'"):
        client.attach_transaction(txn.txn_id).prepare("other")
    txn.commit()
    with pytest.raises(InvalidTxnStatus, match="COMMITTED: only an OPEN one can be prepared"):
        client.attach_transaction(txn.txn_id).prepare(name)


def test_only_those_of_a_name_are_listed_however_many_there_are(client: Client, name: str) -> None:
    transactions = [client.new_transaction() for _ in range(20)]
    for number, txn in enumerate(transactions):
        txn.prepare(name if number % 2 else f"{name}-other")
    wanted = {txn.txn_id for txn in transactions[1::2]}
    assert {each.txn_id for each in client.prepared_transactions(name)} == wanted
    assert wanted < {each.txn_id for each in client.prepared_transactions()}
    for txn in transactions:
        txn.abort()


def test_a_long_list_comes_in_several_answers(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pybroker.server.transactions import on_prepare

    monkeypatch.setattr(on_prepare, "_MOST_LISTED", 2)
    first = client.new_transaction()
    transactions = [first, *(client.new_transaction(beside=first.txn_id) for _ in range(6))]
    for txn in transactions:
        txn.prepare(name)
    listed = [each.txn_id for each in client.prepared_transactions(name)]
    assert listed == sorted(txn.txn_id for txn in transactions)
    for txn in transactions:
        txn.abort()


def test_a_newer_client_of_its_transactional_id_leaves_it(
    shared_broker: Any, client: Client, topic: str, name: str
) -> None:
    consumer = subscribe(client, topic)
    with other_client(shared_broker, transactional_id=topic) as older:
        producer = older.create_producer(topic)
        kept, lost = older.new_transaction(), older.new_transaction()
        producer.send(b"kept", txn=kept)
        producer.send(b"lost", txn=lost)
        kept.prepare(name)
        with other_client(shared_broker, transactional_id=topic) as newer:
            newer.create_producer(topic)
            with pytest.raises(InvalidTxnStatus, match="fenced by a newer session"):
                lost.commit()
            newer.attach_transaction(found(newer, name).txn_id).commit()
    assert drain(consumer, 1) == [b"kept"]


def test_a_fenced_client_cannot_prepare(shared_broker: Any, topic: str, name: str) -> None:
    with other_client(shared_broker, transactional_id=topic) as older:
        txn = older.new_transaction()
        with other_client(shared_broker, transactional_id=topic) as newer:
            newer.create_producer(topic)
            with pytest.raises(InvalidTxnStatus, match="fenced by a newer session"):
                txn.prepare(name)


@pytest.mark.parametrize("killed", [False, True])
def test_it_survives_restarts(topic: str, name: str, killed: bool) -> None:
    with pybroker.testing.broker() as broker, other_client(broker) as client:
        consumer, producer = subscribe(client, topic), client.create_producer(topic)
        producer.send(b"in")
        txn = client.new_transaction()
        consumer.acknowledge(consumer.receive(timeout_millis=SOON_MS), txn=txn)
        producer.send(b"out", txn=txn)
        txn.prepare(name)
        for _ in range(2):
            if killed:
                broker.kill_and_restart()
            else:
                broker.restart()
            assert found(client, name).txn_id == txn.txn_id
            assert_nothing_more(consumer)
        client.attach_transaction(txn.txn_id).commit()
        assert drain(consumer, 1, acknowledge=False) == [b"out"]
        broker.restart()
        assert drain(consumer, 1) == [b"out"], "the input is consumed"
        assert_nothing_more(consumer)


@IN_LOG_ORDER
def test_a_group_is_prepared_as_a_whole(
    shared_broker: Any, client: Client, topic: str, name: str
) -> None:
    consumer = subscribe(client, topic)
    with other_client(shared_broker) as dying, dying.new_transactions(3) as group:
        producer = dying.create_producer(topic)
        for number, txn in enumerate(group):
            producer.send(b"%d" % number, txn=txn)
        group.prepare(name)
    first, *others = client.prepared_transactions(name)
    client.attach_transaction(first.txn_id).commit([each.txn_id for each in others])
    assert sorted(drain(consumer, 3)) == [b"0", b"1", b"2"]


def test_a_group_with_one_that_cannot_be_prepared_is_aborted(client: Client, name: str) -> None:
    group = client.new_transactions(3)
    client.attach_transaction(group[1].txn_id).abort()
    with pytest.raises(InvalidTxnStatus, match="ABORTED: only an OPEN one can be prepared"):
        group.prepare(name)
    assert [txn.state for txn in group] == [TxnState.ABORTED] * 3
    assert client.prepared_transactions(name) == []


def test_with_asyncio(shared_broker: Any, topic: str, name: str) -> None:
    async def scenario() -> None:
        async with aio.Client(shared_broker.service_url, enable_transaction=True) as client:
            producer = await client.create_producer(topic)
            async with await client.new_transaction() as txn:
                await producer.send(b"a", txn=txn)
                await txn.prepare(name)
            (left,) = await client.prepared_transactions(name)
            await client.attach_transaction(left.txn_id).commit()

    import asyncio

    asyncio.run(scenario())


# -- on the wire


def prepare(raw: RawClient, txn_id: tuple[int, int], **fields: Any) -> Any:
    most, least = txn_id
    command = pb.CommandPrepareTxn(txnid_most_bits=most, txnid_least_bits=least, **fields)
    return raw.request(_T.PREPARE_TXN, "prepareTxn", command)


def test_a_message_behind_prepare_is_refused(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    assert not prepare(raw, txn_id).HasField("error")
    assert isinstance(raw.publish(b"late", 0, txn_id), pb.CommandSendError)
    assert raw.add_partition(txn_id, f"{topic}-2").error == pb.InvalidTxnStatus
    assert not raw.end(txn_id, commit=True).HasField("error")


def test_what_cannot_be_prepared_is_refused_in_a_sentence(raw: RawClient) -> None:
    unknown = prepare(raw, (0, 10**12))
    assert unknown.error == pb.TransactionNotFound
    assert "does not exist" in unknown.message
    assert prepare(raw, (10**6, 1)).error == pb.TransactionCoordinatorNotFound
    long = prepare(raw, raw.new_txn(), name="n" * 201)
    assert long.error == pb.NotAllowedError
    assert "has 201 characters; it may have 200" in long.message
    listing = pb.CommandListPreparedTxns(tc_id=10**6)
    refused = raw.request(_T.LIST_PREPARED_TXNS, "listPreparedTxns", listing)
    assert refused.error == pb.TransactionCoordinatorNotFound


# -- another transaction of the same consumer


@SINGLE
@pytest.mark.parametrize("comes_again", [False, True])
def test_it_is_not_aborted_to_find_out_what_it_holds(
    shared_broker: Any, client: Client, topic: str, name: str, kind: Any, comes_again: bool
) -> None:
    """A cumulative acknowledgement that goes further is refused until it is decided."""
    publish(client, topic, 3)
    consumer = subscribe(client, topic, consumer_type=kind)
    messages = receive(consumer, 3)
    txn, further = client.new_transaction(), client.new_transaction()
    consumer.acknowledge_cumulative(messages[0], txn=txn)
    txn.prepare(name)
    if comes_again:
        shared_broker.call(lambda running: running.topics.unload(TopicName.parse(topic)))
        messages = receive(consumer, 3)
    with pytest.raises(TransactionConflict):
        consumer.acknowledge_cumulative(messages[2], txn=further)
    further.abort()
    txn.commit()
    consumer.redeliver_unacknowledged_messages()
    with client.new_transaction() as last:
        consumer.acknowledge_cumulative(receive(consumer, 2)[-1], txn=last)
    consumer.close()
    assert_nothing_more(subscribe(client, topic, consumer_type=kind))


def test_an_addition_to_it_is_refused_as_undecided_and_to_an_ended_one_is_not(
    client: Client, raw: RawClient, topic: str, name: str
) -> None:
    subscribe(client, topic)
    txn = client.new_transaction()
    txn.prepare(name)
    refusal = raw.add_subscription(txn.txn_id, topic, "sub")
    assert (refusal.error, refusal.undecided) == (pb.InvalidTxnStatus, True)
    txn.commit()
    refusal = raw.add_subscription(txn.txn_id, topic, "sub")
    assert (refusal.error, refusal.undecided) == (pb.InvalidTxnStatus, False)
