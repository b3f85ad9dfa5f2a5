"""A producer whose connection was lost comes back to a topic that was terminated meanwhile."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TopicName
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

_T = pb.BaseCommand
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        yield broker


class World:
    """A topic with the messages 0 and 1 of the producer "shop", which is terminated."""

    def __init__(self, broker: RunningBroker, stack: ExitStack) -> None:
        self.topic = f"persistent://public/default/ended-{next(_numbers)}"
        self._broker, self._stack = broker, stack
        self.first = self.connect()
        self.first.create_producer(self.topic, producer_name="shop")
        for number in (0, 1):
            self.first.publish(b"x", number)

    def terminate(self) -> None:
        name = TopicName.parse(self.topic)

        async def work(running: object) -> None:
            topic = await running.topics.get(name)  # type: ignore[attr-defined]
            await topic.terminate()

        self._broker.call(work)

    def connect(self) -> RawClient:
        return self._stack.enter_context(RawClient(self._broker.service_url))

    def comes_back(self) -> RawClient:
        raw = self.connect()
        assert raw.create_producer(self.topic, producer_name="shop") == "shop"
        return raw


@pytest.fixture
def world(broker: RunningBroker) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(broker, stack)


def sends(raw: RawClient, *numbers: int) -> None:
    with raw.in_one_piece():
        for number in numbers:
            raw.start_publish(b"x", number)


def test_it_gets_receipts_for_what_is_stored_and_is_closed_with_the_first_other_message(
    world: World,
) -> None:
    world.first.close()
    world.terminate()
    raw = world.comes_back()
    sends(raw, 0, 1, 2, 3)
    receipts = [raw.receive(_T.SEND_RECEIPT).sequence_id for _ in range(2)]
    assert receipts == [0, 1]
    assert raw.receive(_T.CLOSE_PRODUCER).producer_id == 1
    assert _T.SEND_ERROR not in raw.kinds_before_pong()
    again = raw.ask_for_producer(world.topic, producer_name="shop")
    assert again.error == pb.TopicTerminatedError, "this connection knows"


def test_it_may_come_back_again_and_again(world: World) -> None:
    world.first.close()
    world.terminate()
    for _ in range(3):
        with world.comes_back() as raw:
            sends(raw, 1)
            assert raw.receive(_T.SEND_RECEIPT).sequence_id == 1


def test_who_heard_of_the_end_is_refused(world: World) -> None:
    world.terminate()
    assert world.first.receive(_T.CLOSE_PRODUCER).producer_id == 1
    answer = world.first.ask_for_producer(world.topic, producer_name="shop")
    assert answer.error == pb.TopicTerminatedError


@pytest.mark.parametrize("name", ["other", ""])
def test_who_never_wrote_there_is_refused(world: World, name: str) -> None:
    world.terminate()
    answer = world.connect().ask_for_producer(world.topic, producer_name=name)
    assert answer.error == pb.TopicTerminatedError


@pytest.mark.parametrize("commits", [True, False])
def test_a_copy_of_a_message_in_an_open_transaction_waits_for_its_end(
    world: World, commits: bool
) -> None:
    """Committed, it is stored; aborted, it is not, and the topic takes no other copy."""
    raw = world.first
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, world.topic)
    raw.publish(b"in a transaction", 2, txn_id)
    raw.close_producer()
    world.terminate()
    later = world.comes_back()
    sends(later, 2)
    assert not {_T.SEND_RECEIPT, _T.CLOSE_PRODUCER} & set(later.kinds_before_pong())
    raw.end(txn_id, commits)
    if commits:
        assert later.receive(_T.SEND_RECEIPT).sequence_id == 2
    else:
        assert later.receive(_T.CLOSE_PRODUCER).producer_id == 1
