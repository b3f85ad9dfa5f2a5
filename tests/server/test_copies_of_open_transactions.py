"""A message comes again, in another transaction or in none, while the first one is open."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.policies.table import PUBLISH_RATE
from pybroker.server.publishing import held_runs
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
_numbers = itertools.count(1)
Connect = Callable[[], RawClient]
OUTCOMES = pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/copies-{next(_numbers)}"


@pytest.fixture
def connect(broker: RunningBroker) -> Iterator[Connect]:
    opened: list[RawClient] = []

    def connect() -> RawClient:
        opened.append(RawClient(broker.service_url))
        return opened[-1]

    yield connect
    for raw in opened:
        raw.close()


class World:
    """A producer "etl" that sends 5 in a transaction. Another connection ends the transaction."""

    def __init__(self, connect: Connect, topic: str) -> None:
        self.topic = topic
        self.owner = connect()
        self.etl = connect()
        self.come_back(self.etl)
        self.first = self.begin()
        assert not dropped(self.publish(b"first 5", 5, self.first))

    def send(self, payload: bytes, number: int, txn_id: TxnId | None = None, **fields: Any) -> None:
        self.etl.start_publish(payload, number, txn_id, producer_name="etl", **fields)

    def begin(self) -> TxnId:
        txn_id = self.owner.new_txn()
        self.owner.add_partition(txn_id, self.topic)
        return txn_id

    def publish(self, payload: bytes, number: int, txn_id: TxnId | None = None) -> Any:
        self.send(payload, number, txn_id)
        return self.etl.receive(_T.SEND_RECEIPT)

    def come_back(self, raw: RawClient) -> None:
        raw.create_producer(self.topic, producer_name="etl", user_provided_producer_name=True)
        self.etl = raw

    def shown(self, connect: Connect, count: int) -> list[bytes]:
        reader = connect()
        reader.subscribe(self.topic, durable=False, subscription="r")
        reader.flow(100)
        shown = []
        for _ in range(count):
            reader.receive(_T.MESSAGE)
            shown.append(reader.entry[-7:])
        assert _T.MESSAGE not in reader.kinds_before_pong()
        return shown


@pytest.fixture
def world(connect: Connect, topic: str) -> World:
    return World(connect, topic)


def dropped(receipt: Any) -> bool:
    return bool(receipt.message_id.entryId == 2**64 - 1)


@OUTCOMES
def test_a_copy_is_answered_when_the_outcome_of_the_first_one_is_known(
    world: World, connect: Connect, commit: bool
) -> None:
    world.send(b"again 5", 5)
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit)
    assert dropped(world.etl.receive(_T.SEND_RECEIPT)) is commit
    assert world.shown(connect, 1) == [b"first 5" if commit else b"again 5"]


@OUTCOMES
def test_what_was_sent_behind_a_copy_does_not_get_ahead_of_it(
    world: World, connect: Connect, commit: bool
) -> None:
    with world.etl.in_one_piece():
        for number in (4, 5, 6, 7):
            world.send(b"again %d" % number, number)
    world.send(b"again 8", 8)
    assert world.etl.receive(_T.SEND_RECEIPT).sequence_id == 4, "a gap below 5 counts as seen"
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit)
    receipts = [world.etl.receive(_T.SEND_RECEIPT) for _ in range(4)]
    assert [receipt.sequence_id for receipt in receipts] == [5, 6, 7, 8]
    assert [dropped(receipt) for receipt in receipts] == [commit, False, False, False]
    first = b"first 5" if commit else b"again 5"
    assert world.shown(connect, 4) == [first, b"again 6", b"again 7", b"again 8"]


@OUTCOMES
def test_a_copy_in_another_transaction_belongs_to_that_one(
    world: World, connect: Connect, commit: bool
) -> None:
    second = world.begin()
    world.send(b"again 5", 5, second)
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit=False)
    assert not dropped(world.etl.receive(_T.SEND_RECEIPT))
    world.owner.end(second, commit)
    assert world.shown(connect, int(commit)) == [b"again 5"] * commit


def test_a_copy_in_the_same_transaction_is_a_duplicate(world: World) -> None:
    assert dropped(world.publish(b"again 5", 5, world.first))


def test_a_copy_whose_own_transaction_ends_first_is_refused_unless_it_is_a_duplicate(
    world: World,
) -> None:
    second = world.begin()
    world.send(b"again 5", 5, second)
    world.owner.end(second, commit=False)
    world.owner.end(world.first, commit=False)
    assert world.etl.receive(_T.SEND_ERROR).sequence_id == 5
    assert not dropped(world.publish(b"third 5", 5))


def test_a_copy_of_a_copy_waits_for_both(world: World, connect: Connect) -> None:
    second = world.begin()
    with world.etl.in_one_piece():
        world.send(b"again 5", 5, second)
        world.send(b"third 5", 5)
    world.owner.end(world.first, commit=False)
    assert not dropped(world.etl.receive(_T.SEND_RECEIPT))
    assert world.etl.kinds_before_pong() == []
    world.owner.end(second, commit=False)
    assert not dropped(world.etl.receive(_T.SEND_RECEIPT))
    assert world.shown(connect, 1) == [b"third 5"]


def test_a_batch_waits_for_any_message_in_it(world: World, connect: Connect) -> None:
    batch = {"num_messages": 3, "highest_sequence_id": 7}
    world.send(b"batch 5", 5, send_fields=batch)
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit=False)
    assert not dropped(world.etl.receive(_T.SEND_RECEIPT))
    assert world.shown(connect, 1) == [b"batch 5"]


def test_when_there_is_no_room_to_wait_the_producer_starts_over_once_it_is_decided(
    world: World, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_runs.HeldRoom, "take", lambda room, size_bytes: False)
    world.send(b"again 5", 5)
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit=False)
    world.etl.receive(_T.CLOSE_PRODUCER)
    world.come_back(world.etl)
    assert not dropped(world.publish(b"again 5", 5))
    assert world.shown(connect, 1) == [b"again 5"]


def test_a_copy_that_waits_too_long_starts_its_producer_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_runs, "HOLD_S", 0.0)
    world.send(b"again 5", 5)
    world.etl.receive(_T.CLOSE_PRODUCER)
    monkeypatch.undo()
    world.come_back(world.etl)
    world.send(b"again 5", 5)
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit=False)
    assert not dropped(world.etl.receive(_T.SEND_RECEIPT))


def test_what_waited_on_a_connection_that_is_gone_is_not_published(
    world: World, connect: Connect
) -> None:
    world.send(b"again 5", 5)
    assert world.etl.kinds_before_pong() == []
    world.etl.close()
    again = connect()
    while isinstance(again.ask_for_producer(world.topic, producer_name="etl"), pb.CommandError):
        pass  # until the broker has noticed that the connection ended
    world.owner.end(world.first, commit=False)
    world.etl = again
    assert not dropped(world.publish(b"third 5", 5))
    assert world.shown(connect, 1) == [b"third 5"]


def test_what_waits_when_its_producer_closes_is_let_go(world: World, connect: Connect) -> None:
    world.send(b"again 5", 5)
    assert isinstance(world.etl.close_producer(), pb.CommandSuccess)
    world.owner.end(world.first, commit=False)
    world.come_back(world.etl)
    assert not dropped(world.publish(b"third 5", 5))
    assert world.shown(connect, 1) == [b"third 5"]


@OUTCOMES
def test_what_waits_when_its_topic_is_unloaded_waits_again(
    world: World, connect: Connect, broker: RunningBroker, commit: bool
) -> None:
    world.send(b"again 5", 5)
    broker.call(lambda inside: inside.topics.unload(TopicName.parse(world.topic)))
    world.etl.receive(_T.CLOSE_PRODUCER)
    world.come_back(world.etl)
    world.send(b"again 5", 5)
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, commit)
    assert dropped(world.etl.receive(_T.SEND_RECEIPT)) is commit
    assert world.shown(connect, 1) == [b"first 5" if commit else b"again 5"]


@OUTCOMES
@pytest.mark.parametrize("kill", [True, False], ids=["killed", "restarted"])
def test_a_copy_waits_over_a_restart(topic: str, commit: bool, kill: bool) -> None:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:

        def connect() -> RawClient:
            return RawClient(broker.service_url)

        world = World(connect, topic)
        if kill:
            broker.kill_and_restart()
        else:
            broker.restart()
        world.come_back(connect())
        world.owner = connect()
        world.send(b"again 5", 5)
        assert world.etl.kinds_before_pong() == []
        world.owner.end(world.first, commit)
        assert dropped(world.etl.receive(_T.SEND_RECEIPT)) is commit
        assert world.shown(connect, 1) == [b"first 5" if commit else b"again 5"]


def test_a_copy_that_came_too_fast_does_not_keep_its_connection_from_being_read(
    world: World, broker: RunningBroker
) -> None:
    """First the copy waits for the publish rate and nothing is read; then for the transaction."""
    one_a_second = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}

    async def limit(running: Any) -> None:
        topic = TopicName.parse(world.topic)
        await running.topics.policies.set_for_topic(topic, PUBLISH_RATE, one_a_second)
        await running.topics.following.told()

    broker.call(limit)
    with world.etl.in_one_piece():
        world.send(b"6", 6)
        world.send(b"5 again" * 20_000, 5)
    assert not dropped(world.etl.receive(_T.SEND_RECEIPT))

    async def is_not_read(running: Any) -> bool:
        return any(session._too_fast for session in running.server.sessions)

    while not broker.call(is_not_read):
        pass
    assert world.etl.kinds_before_pong() == []
    world.owner.end(world.first, True)
    assert dropped(world.etl.receive(_T.SEND_RECEIPT))
