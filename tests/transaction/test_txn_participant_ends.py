"""Participants are told a few at a time, and each follows in the end, whatever it answers first."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest
from txn_world import ABORT, COMMIT, soon
from virtual_loop import run_virtually

from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.transaction.coordinator.ends.participants import (
    CannotParticipate,
    ParticipantEnds,
    TransactionEnd,
)
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata

ID = TxnId(0, 1)


class SlowParticipants:
    """Each answers when the test allows it; with `gone`, none of them exists any more."""

    def __init__(self, gone: bool = False) -> None:
        self.gone = gone
        self.asked = 0
        self.answering: list[asyncio.Future[None]] = []

    def end_on_partition(
        self, end: TransactionEnd, topic: str, *_: bool
    ) -> asyncio.Future[None] | None:
        self.asked += 1
        if self.gone:
            return None
        self.answering.append(asyncio.get_running_loop().create_future())
        return self.answering[-1]

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, *_: bool
    ) -> asyncio.Future[None] | None:
        return self.end_on_partition(end, topic)

    def answer(self, error: Exception | None = None) -> None:
        answering, self.answering = self.answering, []
        for future in answering:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def started(participants: SlowParticipants, count: int) -> tuple[ParticipantEnds, list[bool]]:
    followed: list[bool] = []
    transaction = TransactionMetadata(ID, 1000, 0, None)
    transaction.partitions.update(dict.fromkeys(f"t{number}" for number in range(count)))
    transaction.subscriptions[("t", "s")] = None
    ends = ParticipantEnds(participants, Tasks("test"), lambda: 0)
    ends.end_everywhere(transaction, COMMIT, -1, lambda: followed.append(True))
    return ends, followed


@pytest.mark.parametrize("count", [198, 398])  # topics; there is a subscription, too
def test_all_have_followed_once_also_where_a_turn_ends_with_the_last(count: int) -> None:
    async def scenario() -> None:
        _, followed = started(SlowParticipants(gone=True), count)
        for _ in range(5):
            await soon()
        assert followed == [True]

    run_virtually(scenario())


def test_no_more_than_some_are_asked_at_a_time() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        _, followed = started(participants, 1000)
        while not followed:
            await soon()
            assert len(participants.answering) <= 200
            participants.answer()
            await soon()
        assert (participants.asked, followed) == (1001, [True])

    run_virtually(scenario())


def test_others_have_their_turn_while_many_are_told() -> None:
    async def scenario() -> None:
        participants = SlowParticipants(gone=True)
        _, followed = started(participants, 1000)
        assert (participants.asked, followed) == (200, [])
        await soon()
        assert (participants.asked, followed) == (1001, [True])

    run_virtually(scenario())


def test_those_that_fail_are_asked_again_and_delay_no_other() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        ends, followed = started(participants, 300)
        await soon()
        participants.answer(RuntimeError("not now"))
        await soon()
        assert participants.asked >= 301 and not followed
        assert len(ends.retries()) == 200
        while not followed:
            await asyncio.sleep(1)
            participants.answer()
        assert (ends.retries(), followed) == ([], [True])

    run_virtually(scenario())


def test_a_closed_one_tells_nobody_any_more() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        ends, followed = started(participants, 300)
        ends.closed = True
        participants.answer()
        await soon()
        assert (participants.asked, followed) == (200, [])

    run_virtually(scenario())


def test_a_closed_one_asks_nobody_again() -> None:
    async def scenario() -> None:
        participants = SlowParticipants()
        ends, followed = started(participants, 1)
        ends.closed = True
        await ends.tasks.close()
        participants.answer(OSError("the log is closed"))
        await asyncio.sleep(20)
        assert (participants.asked, followed, len(ends.tasks)) == (2, [], 0)

    run_virtually(scenario())


class Wanting:
    """Each participant answers as its script says, then follows. Records when it was asked."""

    def __init__(self, scripts: dict[str, list[object]]) -> None:
        self.scripts = scripts
        self.asked: dict[str, list[float]] = {}

    def end_on_partition(
        self, end: TransactionEnd, topic: str, *_: bool
    ) -> Awaitable[object] | None:
        assert end == (ID, ABORT, 7)
        now_s = round(asyncio.get_running_loop().time(), 2)
        self.asked.setdefault(topic, []).append(now_s)
        script = self.scripts.get(topic)
        answer = script.pop(0) if script else None
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else None

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, *_: bool
    ) -> Awaitable[object] | None:
        return self.end_on_partition(end, f"{topic}/{subscription}")


async def later_refused() -> None:
    await asyncio.sleep(0)
    raise OSError("not now")


async def later_impossible() -> None:
    await asyncio.sleep(0)
    raise CannotParticipate("never")


async def later_done() -> None:
    await asyncio.sleep(0)


def refused() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(OSError("not now"))
    return future


def impossible() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(CannotParticipate("never"))
    return future


def ending(
    participants: Wanting, *topics: str, tasks: Tasks | None = None
) -> tuple[ParticipantEnds, list[float]]:
    followed: list[float] = []
    transaction = TransactionMetadata(ID, 1000, 0, None)
    transaction.partitions.update(dict.fromkeys(topics))
    ends = ParticipantEnds(participants, tasks or Tasks("test"), lambda: 0)
    loop = asyncio.get_running_loop()
    ends.end_everywhere(transaction, ABORT, 7, lambda: followed.append(round(loop.time(), 2)))
    return ends, followed


@pytest.mark.parametrize("way", [OSError("not now"), refused, later_refused])
def test_the_pauses_between_two_attempts_grow_up_to_ten_seconds(
    way: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        participants = Wanting({"t": [way] * 9 + [RuntimeError("worse")]})
        ends, followed = ending(participants, "t", "well")
        await asyncio.sleep(30)
        (retry,) = ends.retries()
        assert (retry.txn_id, retry.participant.topic, retry.attempts) == (ID, "t", 10)
        assert (str(retry.participant), retry.last_error) == ("t", "RuntimeError: worse")
        await asyncio.sleep(10)
        at = [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 6.35, 12.75, 22.75, 32.75]
        assert participants.asked == {"t": pytest.approx(at, abs=0.02), "well": [0]}
        assert followed == [pytest.approx(32.75, abs=0.02)]
        assert (ends.retries(), ends.given_up()) == ([], [])
        assert len(caplog.records) == 1, "it is said once, not at each attempt"

    run_virtually(scenario())


@pytest.mark.parametrize("way", [CannotParticipate("never"), impossible, later_impossible])
@pytest.mark.parametrize("at_first", [True, False])
def test_what_can_never_follow_is_given_up_and_shown(way: object, at_first: bool) -> None:
    async def scenario() -> None:
        participants = Wanting({"t": [way] if at_first else [OSError("not now"), way]})
        ends, followed = ending(participants, "t", "well")
        await asyncio.sleep(1)
        (given_up,) = ends.given_up()
        assert (given_up.txn_id, given_up.participant.topic) == (ID, "t")
        assert (given_up.attempts, given_up.last_error) == (1, "never")
        assert (ends.retries(), len(followed)) == ([], 1)
        assert len(participants.asked["t"]) == (1 if at_first else 2)

    run_virtually(scenario())


def test_the_last_hundred_that_were_given_up_are_kept() -> None:
    async def scenario() -> None:
        topics = [f"t{number}" for number in range(120)]
        ends, _ = ending(
            Wanting({topic: [CannotParticipate("never")] for topic in topics}), *topics
        )
        await soon()
        assert [each.participant.topic for each in ends.given_up()] == topics[20:]

    run_virtually(scenario())


def test_all_ways_to_follow_count() -> None:
    async def scenario() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        scripts: dict[str, list[object]] = {
            "at once": [None],
            "by a coroutine": [later_done],
            "by a future": [lambda: done],
            "again by a coroutine": [OSError("not now"), later_done],
            "again by a future": [OSError("not now"), lambda: done],
        }
        ends, followed = ending(Wanting(scripts), *scripts)
        await asyncio.sleep(1)
        assert followed == []
        done.set_result(None)
        await soon()
        assert (len(followed), ends.retries()) == (1, [])

    run_virtually(scenario())


def test_nothing_to_tell_is_done_at_once() -> None:
    async def scenario() -> None:
        _, followed = ending(Wanting({}))
        assert followed == [0]

    run_virtually(scenario())


def test_a_participants_future_is_not_cancelled_with_a_second_caller() -> None:
    """Other callers share it."""

    async def scenario() -> None:
        shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tasks = Tasks("test")
        ending(Wanting({"t": [OSError("not now"), lambda: shared]}), "t", tasks=tasks)
        await asyncio.sleep(1)
        await tasks.close()
        assert not shared.cancelled()

    run_virtually(scenario())


@pytest.mark.parametrize("count", [100, 200, 201, 400])
def test_a_full_turn_is_two_hundred(count: int) -> None:
    async def scenario() -> None:
        topics = [f"t{number}" for number in range(count)]
        participants = Wanting({})
        _, followed = ending(participants, *topics)
        assert (len(participants.asked), bool(followed)) == (min(count, 200), count < 200)
        await soon()
        assert (len(participants.asked), len(followed)) == (count, 1)

    run_virtually(scenario())


@pytest.mark.parametrize("answers", ["futures", "coroutines"])
def test_a_failure_is_freed_when_it_was_told(answers: str) -> None:
    """A participant that fails for hours must not leave cyclic garbage at each retry."""

    class Failed(Exception):
        pass

    failures: list[weakref.ref[Failed]] = []

    class Failing(SlowParticipants):
        def end_on_partition(self, *_: object) -> Any:
            return self._fail() if answers == "coroutines" else asyncio.ensure_future(self._fail())

        def end_on_subscription(self, *_: object) -> Any:
            return self.end_on_partition()

        async def _fail(self) -> None:
            error = Failed()
            failures.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

    async def scenario() -> None:
        ends, _ = started(Failing(), 0)
        await asyncio.sleep(10)
        assert len(failures) > 2
        assert [failure() for failure in failures if failure() is not None] == []
        await ends.tasks.close()

    gc.disable()
    try:
        run_virtually(scenario())
    finally:
        gc.enable()
