"""PRODUCER with its access modes, SEND and its receipts, CLOSE_PRODUCER."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from managed_ledger.errors import StorageFull
from pybroker.base.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
Connect = Callable[..., RawClient]
EXCLUSIVE, WAIT = pb.Exclusive, pb.WaitForExclusive
FENCING = pb.ExclusiveWithFencing


def start_producer(raw: RawClient, topic: str, producer_id: int = 1, **fields: Any) -> int:
    body = pb.CommandProducer(topic=topic, producer_id=producer_id, **fields)
    return raw.start_request(_T.PRODUCER, "producer", body)


# -- PRODUCER


def test_a_producer_is_named_and_told_that_it_may_write(raw: RawClient, topic: str) -> None:
    answer = raw.ask_for_producer(topic)
    assert answer.producer_name
    assert answer.last_sequence_id == -1
    assert answer.producer_ready
    assert raw.ask_for_producer(topic, 2, producer_name="mine").producer_name == "mine"


def test_names_that_the_broker_gives_are_short_and_do_not_repeat_over_restarts(topic: str) -> None:
    names = []
    with pybroker.testing.broker() as broker:
        for _ in range(3):
            with RawClient(broker.service_url) as raw:
                names.append(raw.create_producer(topic))
            broker.kill_and_restart()
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 21


def test_names_that_the_broker_gives_do_not_repeat(connect: Connect, topic: str) -> None:
    names = [connect().create_producer(topic) for _ in range(3)]
    assert len(set(names)) == 3


def test_a_name_in_use_is_busy(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic, producer_name="p")
    assert second.ask_for_producer(topic, producer_name="p").error == pb.ProducerBusy
    assert first.ask_for_producer(topic, 2, producer_name="p").error == pb.ProducerBusy
    assert isinstance(first.publish(b"still there", 0), pb.CommandSendReceipt)


def test_a_reconnection_of_a_higher_epoch_takes_the_name_over(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic, producer_name="p", epoch=0)
    second.create_producer(topic, producer_name="p", epoch=1)
    assert first.receive(_T.CLOSE_PRODUCER).producer_id == 1
    assert isinstance(second.publish(b"x", 0), pb.CommandSendReceipt)


def test_a_name_is_free_once_its_connection_is_gone(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    first, second = connect(), connect()
    first.create_producer(topic, producer_name="p")
    first.close()
    wire_broker.wait_until(lambda: not producers_of(wire_broker, topic))
    assert second.create_producer(topic, producer_name="p") == "p"


def producers_of(broker: Any, topic: str) -> int:
    async def count(running: Any) -> int:
        return len((await running.topics.get(topic)).producers)

    return int(broker.call(count))


def test_an_initial_subscription_is_there_before_the_first_message(
    raw: RawClient, topic: str
) -> None:
    raw.create_producer(topic, initial_subscription_name="raw")
    raw.publish(b"first", 0)
    raw.subscribe(topic, initialPosition=pb.CommandSubscribe.Latest)
    raw.flow(1)
    assert raw.receive(_T.MESSAGE).message_id.entryId == 0


def test_an_initial_subscription_begins_with_the_earliest_message(
    connect: Connect, topic: str
) -> None:
    """The earliest of the existing ones: another subscription keeps it."""
    first, second = connect(), connect()
    first.subscribe(topic, subscription="keeps")
    first.create_producer(topic)
    first.publish(b"early", 0)
    second.create_producer(topic, initial_subscription_name="late")
    second.subscribe(topic, subscription="late", initialPosition=pb.CommandSubscribe.Latest)
    second.flow(1)
    assert second.receive(_T.MESSAGE).message_id.entryId == 0


def test_an_initial_subscription_is_created_where_subscribing_may_create_one(topic: str) -> None:
    settings = {"allow_auto_subscription_creation": False}
    with pybroker.testing.broker(**settings) as broker, RawClient(broker.service_url) as raw:
        refused = raw.ask_for_producer(topic, initial_subscription_name="late")
        assert refused.error == pb.NotAllowedError
        assert raw.subscribe(topic, subscription="late").error == pb.SubscriptionNotFound


def test_a_topic_that_keeps_nothing_has_no_initial_subscription(
    raw: RawClient, wire_broker: Any
) -> None:
    topic = "non-persistent://public/default/initial"
    raw.create_producer(topic, initial_subscription_name="late")

    async def subscriptions(running: Any) -> list[str]:
        return list((await running.topics.served(topic)).subscriptions)

    assert wire_broker.call(subscriptions) == []


def test_an_empty_initial_subscription_is_none(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    """The Go client sends an empty name with every producer."""
    raw.create_producer(topic, initial_subscription_name="")

    async def subscriptions(running: Any) -> list[str]:
        return list((await running.topics.get(topic)).subscriptions)

    assert wire_broker.call(subscriptions) == []


# -- access modes


def test_exclusive_against_any_other_producer_is_fenced(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic)
    answer = second.ask_for_producer(topic, producer_access_mode=EXCLUSIVE)
    assert answer.error == pb.ProducerFenced


def test_shared_against_an_exclusive_one_is_busy(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic, producer_access_mode=EXCLUSIVE)
    assert second.ask_for_producer(topic).error == pb.ProducerBusy


def test_the_topic_epoch_counts_exclusive_owners(raw: RawClient, topic: str) -> None:
    for epoch in range(3):
        answer = raw.ask_for_producer(topic, producer_access_mode=EXCLUSIVE)
        assert answer.HasField("topic_epoch")
        assert answer.topic_epoch == epoch
        raw.close_producer()


def test_an_exclusive_one_that_was_away_too_long_is_fenced(raw: RawClient, topic: str) -> None:
    exclusive = {"producer_access_mode": EXCLUSIVE}
    for _ in range(2):
        raw.ask_for_producer(topic, **exclusive)
        raw.close_producer()
    assert raw.ask_for_producer(topic, topic_epoch=0, **exclusive).error == pb.ProducerFenced
    assert raw.ask_for_producer(topic, topic_epoch=1, **exclusive).topic_epoch == 2


def test_the_epoch_that_a_shared_one_sends_does_not_matter(raw: RawClient, topic: str) -> None:
    """The Go client always sends 0."""
    for _ in range(2):
        raw.ask_for_producer(topic, producer_access_mode=EXCLUSIVE)
        raw.close_producer()
    assert raw.ask_for_producer(topic, topic_epoch=0).producer_ready


def test_who_waits_hears_twice_under_one_request_id(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic)
    request_id = start_producer(second, topic, producer_access_mode=WAIT)
    waiting = second.answer_to(request_id)
    assert not waiting.producer_ready
    first.close_producer()
    granted = second.answer_to(request_id)
    assert granted.producer_ready
    assert granted.producer_name == waiting.producer_name
    assert granted.HasField("topic_epoch")


def test_who_waits_cannot_publish(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic, producer_access_mode=EXCLUSIVE)
    second.ask_for_producer(topic, producer_access_mode=WAIT)
    assert second.publish(b"too early", 0).error == pb.ProducerFenced


def test_who_waits_and_asks_again_still_waits(connect: Connect, topic: str) -> None:
    first, second = connect(), connect()
    first.create_producer(topic)
    second.ask_for_producer(topic, producer_access_mode=WAIT)
    assert not second.ask_for_producer(topic, producer_access_mode=WAIT).producer_ready


def test_who_waits_and_leaves_is_passed_over(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    first, gone, third = connect(), connect(), connect()
    first.create_producer(topic)
    gone.ask_for_producer(topic, producer_access_mode=WAIT)
    request_id = start_producer(third, topic, producer_access_mode=WAIT)
    assert not third.answer_to(request_id).producer_ready
    gone.close()
    first.close_producer()
    assert third.answer_to(request_id).producer_ready


def test_a_fencing_producer_replaces_the_owner_and_the_waiters(
    connect: Connect, topic: str
) -> None:
    owner, waiting, newest = connect(), connect(), connect()
    epoch = owner.ask_for_producer(topic, producer_access_mode=EXCLUSIVE).topic_epoch
    request_id = start_producer(waiting, topic, producer_access_mode=WAIT)
    assert not waiting.answer_to(request_id).producer_ready
    assert newest.ask_for_producer(topic, producer_access_mode=FENCING).producer_ready
    assert owner.receive(_T.CLOSE_PRODUCER).producer_id == 1
    fenced = waiting.answer_to(request_id)
    assert isinstance(fenced, pb.CommandError)
    assert fenced.error == pb.ProducerFenced
    returning = owner.ask_for_producer(topic, 2, producer_access_mode=EXCLUSIVE, topic_epoch=epoch)
    assert returning.error == pb.ProducerFenced


# -- SEND


def test_receipts_name_producer_sequence_and_place(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    for number in range(3):
        receipt = raw.publish(b"x", 10 + number)
        assert (receipt.producer_id, receipt.sequence_id) == (1, 10 + number)
        assert receipt.message_id.entryId == number


def test_a_receipt_repeats_the_highest_sequence_id_of_a_batch(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    batch = {"num_messages": 5, "highest_sequence_id": 14}
    receipt = raw.publish(b"x", 10, send_fields=batch, num_messages_in_batch=5)
    assert receipt.highest_sequence_id == 14


def test_a_transaction_zero_of_coordinator_zero_is_a_transaction(
    raw: RawClient, topic: str
) -> None:
    """The presence of the fields counts: even (0,0) is refused if it was never opened."""
    with pybroker.testing.broker() as broker, RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        fields = {"txnid_most_bits": 0, "txnid_least_bits": 0}
        assert isinstance(raw.publish(b"x", 0, send_fields=fields), pb.CommandSendError)
        assert isinstance(raw.publish(b"x", 1), pb.CommandSendReceipt)


def terminate(broker: Any, topic: str) -> Any:
    async def work(running: Any) -> Any:
        return await (await running.topics.get(topic)).terminate()

    return broker.call(work)


def test_a_terminated_topic_takes_no_messages_and_no_producers(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    raw = connect()
    raw.create_producer(topic)
    last = raw.publish(b"last", 0).message_id
    assert terminate(wire_broker, topic) == (last.ledgerId, last.entryId)
    assert raw.receive(_T.CLOSE_PRODUCER).producer_id == 1
    assert raw.ask_for_producer(topic).error == pb.TopicTerminatedError
    assert connect().ask_for_producer(topic).error == pb.TopicTerminatedError


def test_who_waits_for_a_topic_that_is_terminated_is_told_so(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    first, waiting = connect(), connect()
    first.create_producer(topic)
    request_id = start_producer(waiting, topic, producer_access_mode=WAIT)
    assert not waiting.answer_to(request_id).producer_ready
    terminate(wire_broker, topic)
    assert waiting.answer_to(request_id).error == pb.TopicTerminatedError
    assert _T.CLOSE_PRODUCER not in waiting.kinds_before_pong()


def unload(wire_broker: Any, topic: str) -> None:
    name = TopicName.parse(topic)
    wire_broker.call(lambda running: running.topics.unload(name))


def test_who_waits_for_a_topic_that_is_unloaded_is_told_to_try_again(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    first, waiting = connect(), connect()
    first.create_producer(topic, producer_access_mode=EXCLUSIVE)
    request_id = start_producer(waiting, topic, producer_access_mode=WAIT)
    assert not waiting.answer_to(request_id).producer_ready
    unload(wire_broker, topic)
    answer = waiting.answer_to(request_id)
    assert (answer.error, "is being unloaded" in answer.message) == (pb.ServiceNotReady, True)
    assert _T.CLOSE_PRODUCER not in waiting.kinds_before_pong()
    assert waiting.ask_for_producer(topic, producer_access_mode=WAIT).producer_ready


def test_who_waits_with_the_java_client_comes_back_when_it_is_closed(
    connect: Connect, wire_broker: Any, topic: str
) -> None:
    first, waiting = connect(), connect(client_version="Pulsar-Java-v4.2.0")
    first.create_producer(topic, producer_access_mode=EXCLUSIVE)
    assert not waiting.ask_for_producer(topic, producer_access_mode=WAIT).producer_ready
    unload(wire_broker, topic)
    assert waiting.receive(_T.CLOSE_PRODUCER).producer_id == 1
    assert _T.ERROR not in waiting.kinds_before_pong()


def test_a_deleted_topic_closes_its_producers(raw: RawClient, wire_broker: Any, topic: str) -> None:
    raw.create_producer(topic)
    name = TopicName.parse(topic)
    wire_broker.call(lambda running: running.topics.delete(name, force=True))
    assert raw.receive(_T.CLOSE_PRODUCER).request_id == 2**64 - 1


@pytest.mark.parametrize("log", ["orders-s__transaction_pending_ack", "__transaction_log_0"])
def test_the_broker_s_own_logs_are_no_topics(raw: RawClient, log: str) -> None:
    for namespace in ("public/default", "pulsar/system"):
        topic = f"persistent://{namespace}/{log}"
        assert raw.ask_for_producer(topic).error == pb.NotAllowedError
        assert raw.subscribe(topic).error == pb.NotAllowedError


# -- deduplication


@pytest.fixture
def deduplicating() -> Iterator[RawClient]:
    with (
        pybroker.testing.broker(broker_deduplication_enabled=True) as broker,
        RawClient(broker.service_url) as raw,
    ):
        raw.create_producer("dedup", producer_name="raw")
        yield raw


def is_dropped(receipt: Any) -> bool:
    place = receipt.message_id
    return (place.ledgerId, place.entryId) == (2**64 - 1, 2**64 - 1)


def test_the_receipt_of_a_duplicate_names_no_message(deduplicating: RawClient) -> None:
    first = deduplicating.publish(b"x", 5)
    again = deduplicating.publish(b"x", 5)
    assert not is_dropped(first)
    assert is_dropped(again)
    assert again.sequence_id == 5


def test_a_batch_is_a_duplicate_when_its_highest_id_was_seen(deduplicating: RawClient) -> None:
    batch = {"num_messages": 3, "highest_sequence_id": 12}
    assert not is_dropped(deduplicating.publish(b"x", 10, send_fields=batch))
    again = deduplicating.publish(b"x", 10, send_fields=batch)
    assert is_dropped(again)
    assert again.highest_sequence_id == 12
    assert is_dropped(deduplicating.publish(b"x", 11))
    assert not is_dropped(deduplicating.publish(b"x", 13))


def test_duplicates_are_answered_in_the_order_they_were_sent(deduplicating: RawClient) -> None:
    """A client that sets its own sequence ids may go back. Unordered receipts would confuse it."""
    deduplicating.publish(b"x", 5)
    with deduplicating.in_one_piece():
        for sequence_id in (6, 5, 7, 7, 3, 8):
            deduplicating.start_publish(b"x", sequence_id)
    receipts = [deduplicating.receive(_T.SEND_RECEIPT) for _ in range(6)]
    assert [receipt.sequence_id for receipt in receipts] == [6, 5, 7, 7, 3, 8]
    assert list(map(is_dropped, receipts)) == [False, True, False, True, True, False]


def test_chunks_share_a_sequence_id_and_are_no_duplicates(deduplicating: RawClient) -> None:
    def send(chunk: int) -> bool:
        fields = {"chunk_id": chunk, "num_chunks_from_msg": 3, "uuid": "u"}
        receipt = deduplicating.publish(b"x", 7, send_fields={"is_chunk": True}, **fields)
        return is_dropped(receipt)

    assert [send(0), send(1)] == [False, False]
    assert [send(0), send(1)] == [True, True], "resent after a reconnection"
    assert [send(2), send(2)] == [False, True]
    assert [send(0), send(1), send(2)] == [True, True, True]


def test_a_producer_that_comes_back_learns_its_last_sequence_id(
    deduplicating: RawClient,
) -> None:
    deduplicating.publish(b"x", 41)
    deduplicating.close_producer()
    again = deduplicating.ask_for_producer("dedup", producer_name="raw")
    assert again.last_sequence_id == 41


def test_what_was_refused_while_waiting_is_no_duplicate_later(topic: str) -> None:
    with (
        pybroker.testing.broker(broker_deduplication_enabled=True) as broker,
        RawClient(broker.service_url) as owner,
        RawClient(broker.service_url) as waiting,
    ):
        owner.create_producer(topic)
        request_id = start_producer(waiting, topic, producer_name="w", producer_access_mode=WAIT)
        waiting.answer_to(request_id)
        assert isinstance(waiting.publish(b"too early", 0), pb.CommandSendError)
        owner.close_producer()
        waiting.answer_to(request_id)
        assert not is_dropped(waiting.publish(b"now", 0))


# -- CLOSE_PRODUCER


def test_a_closed_producer_hears_of_all_it_sent_first(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    with raw.in_one_piece():
        for number in range(50):
            raw.start_publish(b"x", number)
        body = pb.CommandCloseProducer(producer_id=1)
        closing = raw.start_request(_T.CLOSE_PRODUCER, "close_producer", body)
    raw.answer_to(closing)
    assert raw.kinds_before_pong() == [_T.SEND_RECEIPT] * 50


def test_an_unload_tells_what_was_written_before_it_closes_producers(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.create_producer(topic)
    for number in range(50):
        raw.start_publish(b"x", number)

    async def unload(running: Any) -> int:
        closing = await running.topics.get(topic)
        await running.topics.unload(closing.name)
        return int(closing.messages_in)

    written = wire_broker.call(unload)
    raw.receive(_T.CLOSE_PRODUCER)
    assert raw.kinds_before_pong() == [_T.SEND_RECEIPT] * written


# -- a write that fails


def test_what_comes_behind_a_failed_write_does_not_get_ahead_of_it(
    raw: RawClient, wire_broker: Any, topic: str
) -> None:
    raw.create_producer(topic)

    async def fill_the_disk(running: Any) -> None:
        ledger = (await running.topics.get(topic)).ledger

        def fail(entries: Any, counts: Any, done: Any, tag: bytes) -> None:
            del ledger.append  # from now on there is room
            done(None, StorageFull("no space left"))

        ledger.append = fail

    wire_broker.call(fill_the_disk)
    raw.start_publish(b"first", 0)
    raw.receive(_T.CLOSE_PRODUCER)
    raw.start_publish(b"second", 1)
    assert raw.kinds_before_pong() == []
    raw.create_producer(topic)
    for sequence_id, content in enumerate([b"first", b"second"]):
        assert raw.publish(content, sequence_id).message_id.entryId == sequence_id
