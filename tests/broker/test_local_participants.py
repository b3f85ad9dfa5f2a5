"""Ends of transactions for topics that must be loaded first."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from pybroker.base.errors import PersistenceError, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.broker.transactions.txn_participants import LocalParticipants
from pybroker.transaction.coordinator.ends.participants import TransactionEnd
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction


class LateTopic:
    """A topic that is not loaded yet; its end fails once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    def serving(self, name: Any) -> None:
        return None

    def exists(self, name: Any) -> bool:
        return True

    def unloading(self, name: Any) -> bool:
        return False

    async def get(self, name: Any) -> "LateTopic":
        return self

    async def end_transaction(self, *_: Any) -> None:
        await self.go.wait()
        raise PersistenceError("no room")


def test_an_end_that_nobody_waits_for_any_more_leaves_no_failure_behind() -> None:
    unheard: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        topic: Any = LateTopic()
        ending = LocalParticipants(topic).end_on_partition(
            TransactionEnd(TxnId(0, 1), TxnAction.COMMIT, 0), "persistent://public/default/late"
        )
        assert ending is not None
        waiting = asyncio.ensure_future(ending)
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        topic.go.set()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(scenario())
    assert unheard == []


class FullTopic(LateTopic):
    """A topic whose end is a future, which fails."""

    def end_transaction(self, *_: Any) -> Any:
        ending = asyncio.get_running_loop().create_future()
        ending.set_exception(PersistenceError("no room"))
        return ending


class ClosingTopic(LateTopic):
    """A topic that refuses ends at once."""

    def end_transaction(self, *_: Any) -> Any:
        raise PersistenceError("it closes")


@pytest.mark.parametrize("kind", [FullTopic, ClosingTopic])
def test_the_failure_of_an_end_keeps_no_topic(kind: type[LateTopic]) -> None:
    async def scenario() -> None:
        loaded: list[Any] = [kind()]
        topics: Any = LateTopic()
        topics.get = lambda name: get()

        async def get() -> Any:
            return loaded.pop()

        there = weakref.ref(loaded[0])
        ending = LocalParticipants(topics).end_on_partition(
            TransactionEnd(TxnId(0, 1), TxnAction.COMMIT, 0), "persistent://public/default/full"
        )
        assert ending is not None
        (failure,) = await asyncio.gather(ending, return_exceptions=True)
        assert isinstance(failure, PersistenceError)
        del ending
        await asyncio.sleep(0)
        assert there() is None

    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


class NotingTopic:
    """Notes the order in which ends begin; loaded once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun: list[TxnId] = []

    def serving(self, name: Any) -> Any:
        return self if self.go.is_set() else None

    def exists(self, name: Any) -> bool:
        return True

    def unloading(self, name: Any) -> bool:
        return False

    async def get(self, name: Any) -> Any:
        await self.go.wait()
        for _ in range(3):  # waiters of a load continue some turns later
            await asyncio.sleep(0)
        return self

    def end_transaction(self, txn_id: TxnId, *_: Any) -> None:
        self.begun.append(txn_id)


def _end(participants: LocalParticipants, local_id: int, not_later: bool = False) -> Any:
    topic = "persistent://public/default/late"
    end = TransactionEnd(TxnId(0, local_id), TxnAction.COMMIT, 0)
    return participants.end_on_partition(end, topic, not_later)


def test_an_end_does_not_overtake_those_that_wait_for_the_topic_to_be_loaded() -> None:
    async def scenario() -> None:
        topic: Any = NotingTopic()
        participants = LocalParticipants(topic)
        first, second = _end(participants, 2), _end(participants, 3)
        await asyncio.sleep(0)
        topic.go.set()  # the topic is loaded, and its waiters have not continued yet
        with pytest.raises(WouldWait):
            _end(participants, 1, not_later=True)
        third = _end(participants, 1)
        await asyncio.gather(first, second, third)
        assert [each.least for each in topic.begun] == [2, 3, 1]
        assert _end(participants, 4) is None  # at once: nothing waits any more

    asyncio.run(scenario())


def test_ends_that_wait_for_a_topic_fail_when_the_broker_stops() -> None:
    async def scenario() -> None:
        topic: Any = NotingTopic()
        participants = LocalParticipants(topic)
        endings = [_end(participants, 1), _end(participants, 2)]
        await participants.close()
        failures = await asyncio.gather(*endings, return_exceptions=True)
        assert all(isinstance(each, ServiceNotReady) for each in failures)

    asyncio.run(scenario())


def test_ends_for_a_topic_that_cannot_be_loaded_fail_and_the_next_one_tries_again() -> None:
    async def scenario() -> None:
        topic: Any = NotingTopic()
        topic.get = lambda name: fail()
        participants = LocalParticipants(topic)

        async def fail() -> None:
            raise PersistenceError("no room")

        for _ in range(2):
            failures = await asyncio.gather(
                _end(participants, 1), _end(participants, 2), return_exceptions=True
            )
            assert [str(each) for each in failures] == ["no room"] * 2

    asyncio.run(scenario())


class UnloadedTopic(NotingTopic):
    """It is being closed until `closed` is set; then it can be loaded again."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()
        self.go.set()

    def serving(self, name: Any) -> Any:
        return self if self.closed.is_set() else None

    def unloading(self, name: Any) -> bool:
        return not self.closed.is_set()

    async def settled(self, name: Any) -> None:
        await self.closed.wait()


def test_ends_that_come_while_their_topic_is_closed_fail_then() -> None:
    """An earlier one, interrupted by the closing, must be repeated before them."""

    async def scenario() -> None:
        topic: Any = UnloadedTopic()
        participants = LocalParticipants(topic)
        endings = [_end(participants, number) for number in (2, 3)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(each.done() for each in endings)
        with pytest.raises(WouldWait):
            _end(participants, 4, not_later=True)
        topic.closed.set()
        failures = await asyncio.gather(*endings, return_exceptions=True)
        assert all(isinstance(each, ServiceNotReady) for each in failures)
        assert topic.begun == []
        for number in 1, 2, 3:
            _end(participants, number)
        assert [each.least for each in topic.begun] == [1, 2, 3]

    asyncio.run(scenario())
