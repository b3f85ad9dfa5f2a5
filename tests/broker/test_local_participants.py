"""Ends of transactions for topics that must be loaded first."""

import asyncio
import gc
import weakref
from typing import Any

from pybroker.base.errors import PersistenceError
from pybroker.base.names import TxnId
from pybroker.broker.txn_participants import LocalParticipants
from pybroker.transaction.txn_status import TxnAction


class LateTopic:
    """A topic that is not loaded yet; its end fails once `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    def serving(self, name: Any) -> None:
        return None

    def exists(self, name: Any) -> bool:
        return True

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
            TxnId(0, 1), "persistent://public/default/late", TxnAction.COMMIT, 0
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


def test_the_failure_of_an_end_keeps_no_topic() -> None:
    async def scenario() -> None:
        loaded: list[Any] = [FullTopic()]
        topics: Any = LateTopic()
        topics.get = lambda name: get()

        async def get() -> Any:
            return loaded.pop()

        there = weakref.ref(loaded[0])
        ending = LocalParticipants(topics).end_on_partition(
            TxnId(0, 1), "persistent://public/default/full", TxnAction.COMMIT, 0
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
