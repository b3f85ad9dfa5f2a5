"""Ends that a participant did not complete are repeated in the order of decision."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from unittest.mock import patch

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, in_aside_world, soon
from txn_world import ended
from virtual_loop import run_virtually

from managed_ledger.errors import LedgerClosed
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.transaction.buffer.commit_order import commit_order_buffer
from pybroker.transaction.buffer.commit_order.side_log import SideLog
from pybroker.transaction.coordinator.ends.participants import (
    CannotParticipate,
    ParticipantEnds,
    TransactionEnd,
)
from pybroker.transaction.coordinator.metadata_store import TransactionMetadata
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction

TOPIC, OTHER = "t", "other"


class Topics:
    """Each topic fails while it is `away`; `ended` says what ended there, in order."""

    def __init__(self) -> None:
        self.away = {TOPIC}
        self.tried: list[tuple[str, int]] = []
        self.ended: dict[str, list[int]] = {}
        self.poisoned: dict[int, Exception] = {}  # by local id
        self.in_flight: dict[int, asyncio.Future[None]] = {}  # held by the test

    def end_on_partition(
        self, end: TransactionEnd, topic: str, not_later: bool = False
    ) -> Awaitable[object] | None:
        txn_id = end.txn_id
        if not_later:
            raise WouldWait
        self.tried.append((topic, txn_id.least))
        if (held := self.in_flight.pop(txn_id.least, None)) is not None:
            return held
        if (poison := self.poisoned.get(txn_id.least)) is not None:
            raise poison
        if topic in self.away:
            raise OSError("it is away")
        self.ended.setdefault(topic, []).append(txn_id.least)
        return None

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, not_later: bool = False
    ) -> Awaitable[object] | None:
        return self.end_on_partition(end, f"{topic}/{subscription}", not_later)


class World:
    def __init__(self) -> None:
        self.topics, self.tasks = Topics(), Tasks("test")
        self.ends = ParticipantEnds(self.topics, self.tasks, lambda: 0)
        self.followed: dict[int, float] = {}

    def end(self, number: int, *names: str, action: TxnAction = COMMIT) -> None:
        transaction = TransactionMetadata(TxnId(0, number), 1000, 0, None)
        for topic, _, subscription in (name.partition("/") for name in names or (TOPIC,)):
            if subscription:
                transaction.subscriptions[topic, subscription] = None
            else:
                transaction.partitions[topic] = None
        now_s = asyncio.get_running_loop().time
        self.ends.begin_everywhere(transaction, action, -1)
        self.ends.end_everywhere(
            transaction, action, -1, lambda: self.followed.update({number: round(now_s(), 2)})
        )


@pytest.mark.parametrize("name", [TOPIC, f"{TOPIC}/sub"])
def test_later_ends_do_not_overtake_one_that_is_repeated(name: str) -> None:
    async def scenario() -> None:
        world = World()
        world.topics.away = {name}
        world.end(1, name)
        await asyncio.sleep(0.01)
        world.topics.away.clear()
        for number in 2, 3:
            world.end(number, name)
        assert world.topics.ended == {}
        await asyncio.sleep(1)
        world.end(4, name)
        assert world.topics.ended == {name: [1, 2, 3, 4]}
        assert list(world.followed) == [1, 2, 3, 4]
        assert (world.ends.retries(), len(world.tasks)) == ([], 0)

    run_virtually(scenario())


def test_an_end_whose_failure_comes_later_still_goes_first() -> None:
    """It was on its way to the storage when the topic was unloaded."""

    async def scenario() -> None:
        world = World()
        world.topics.in_flight[1] = interrupted = asyncio.get_running_loop().create_future()
        for number in 1, 2, 3:
            world.end(number)
        interrupted.set_exception(OSError("it was interrupted"))
        await soon()
        world.topics.away.clear()
        await asyncio.sleep(1)
        assert world.topics.ended == {TOPIC: [1, 2, 3]}

    run_virtually(scenario())


def test_only_the_first_is_tried_while_it_fails() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(1000):
            world.end(number)
        await asyncio.sleep(30)
        assert {number for _, number in world.topics.tried} == {0}
        assert len(world.ends.retries()) == 1000
        waiting = [each for each in world.ends.retries() if not each.attempts]
        assert len(waiting) == 999
        assert {each.last_error for each in waiting} == {
            "waits for earlier ends, which are being repeated"
        }

    run_virtually(scenario())


def test_many_follow_soon_once_the_first_has_ended() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(1000):
            world.end(number)
        world.topics.away.clear()
        await asyncio.sleep(0.1)
        assert world.topics.ended == {TOPIC: list(range(1000))}

    run_virtually(scenario())


def test_one_that_fails_in_the_middle_stops_those_behind_it() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(10):
            world.end(number)
        world.topics.away.clear()
        world.topics.poisoned[5] = OSError("not this one")
        await asyncio.sleep(1)
        assert world.topics.ended == {TOPIC: list(range(5))}
        world.topics.poisoned.clear()
        await asyncio.sleep(10)
        assert world.topics.ended == {TOPIC: list(range(10))}

    run_virtually(scenario())


@pytest.mark.parametrize("failure", [asyncio.CancelledError(), OSError("not this one")])
def test_one_that_fails_later_is_repeated_before_those_that_come(failure: BaseException) -> None:
    async def scenario() -> None:
        world = World()
        held = asyncio.get_running_loop().create_future()
        for number in 1, 2, 3:
            world.end(number)
        world.topics.away.clear()
        world.topics.in_flight[3] = held
        await asyncio.sleep(0.2)
        world.end(4)
        if isinstance(failure, asyncio.CancelledError):
            held.cancel()
        else:
            held.set_exception(failure)
        await asyncio.sleep(1)
        assert world.topics.ended == {TOPIC: [1, 2, 3, 4]}

    run_virtually(scenario())


def test_other_topics_do_not_wait() -> None:
    async def scenario() -> None:
        world = World()
        for number in 1, 2, 3:
            world.end(number, TOPIC, OTHER)
        assert world.topics.ended == {OTHER: [1, 2, 3]}
        world.end(4, OTHER)
        assert list(world.followed) == [4]

    run_virtually(scenario())


def test_an_abort_does_not_wait_for_a_commit() -> None:
    """It may free the room that the commit needs."""

    async def scenario() -> None:
        world = World()
        world.topics.away.clear()
        world.topics.poisoned[1] = OSError("no room")
        world.end(1)
        world.end(2, action=ABORT)
        assert world.topics.ended == {TOPIC: [2]}
        assert list(world.followed) == [2]

    run_virtually(scenario())


def test_what_can_never_end_there_keeps_no_later_end() -> None:
    async def scenario() -> None:
        world = World()
        world.end(1)
        world.end(2)
        world.topics.away.clear()
        world.topics.poisoned[1] = CannotParticipate("never")
        await asyncio.sleep(0.1)
        assert world.topics.ended == {TOPIC: [2]}
        assert list(world.followed) == [1, 2]

    run_virtually(scenario())


def test_a_new_end_brings_the_next_attempt_forward() -> None:
    """The topic may be there again, and nobody is to wait for ten seconds then."""

    async def scenario() -> None:
        world = World()
        world.end(1)
        await asyncio.sleep(13)  # the next attempt is at 22.75
        world.topics.away.clear()
        world.end(2)
        await asyncio.sleep(0.1)
        assert world.topics.ended == {TOPIC: [1, 2]}

    run_virtually(scenario())


def test_the_pauses_begin_anew_with_a_new_end() -> None:
    async def scenario() -> None:
        world = World()
        world.end(1)
        await asyncio.sleep(13)
        world.end(2)
        await asyncio.sleep(0.1)
        world.topics.away.clear()
        await asyncio.sleep(0.2)
        assert world.topics.ended == {TOPIC: [1, 2]}

    run_virtually(scenario())


def test_a_coordinator_that_stops_repeats_nothing() -> None:
    async def scenario() -> None:
        world = World()
        for number in 1, 2:
            world.end(number)
        await asyncio.sleep(1)
        world.ends.closed = True
        await world.tasks.close()
        tried = len(world.topics.tried)
        await asyncio.sleep(20)
        assert (len(world.topics.tried), len(world.tasks)) == (tried, 0)

    run_virtually(scenario())


@in_aside_world
async def test_commits_behind_a_copy_that_fails_are_repeated_behind_it(world: AsideWorld) -> None:
    """Their coordinator repeats them in order. Another coordinator's commit is not affected."""
    other = await world.coordinators.get(1)
    ids = [await world.begin_on(ORDERS) for _ in range(3)]
    ids.append(await other.new_transaction(60_000, None))
    await other.add_partitions(ids[3], [ORDERS], None)
    for txn_id, payload in zip(ids, "abcx", strict=True):
        await world.send(txn_id, payload)
    buffer, read = await world.buffer(), SideLog.read
    failures = [LedgerClosed("it cannot be read")]

    async def failing(side: SideLog, ranges: Any) -> AsyncIterator[EntryRun]:
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        async for run in read(side, ranges):
            yield run

    with (
        patch.object(commit_order_buffer, "_AT_ONCE_BYTES", 0),
        patch.object(SideLog, "read", failing),
    ):
        endings = [ended(buffer.end(txn_id, COMMIT, -1)) for txn_id in ids]
        outcomes = await asyncio.gather(*endings, return_exceptions=True)
        assert [str(each) for each in outcomes] == ["it cannot be read"] * 3 + ["None"]
        for txn_id in ids[:3]:
            await world.end(txn_id, COMMIT)
    assert await world.read() == ["x", "a", "b", "c"]
