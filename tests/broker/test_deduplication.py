"""Which sequence ids are duplicates: live, after aborts and failures, and after a recovery."""

from collections.abc import Callable
from typing import Any

import pytest
from deduplication_world import World, entry_of, one, with_world

from pybroker.broker.deduplication import Deduplication, SequenceIds
from pybroker.errors import PersistenceError
from pybroker.names import TxnId

T1, T2 = TxnId(0, 1), TxnId(0, 2)
FAILURE = PersistenceError("the disk is full")


def chunk(number: int, of: int, sequence_id: int = 7) -> SequenceIds:
    return SequenceIds(sequence_id, sequence_id, number, of)


class Answers:
    def __init__(self) -> None:
        self.heard: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.heard.append(error)


# -- live


def test_what_is_not_above_the_highest_is_a_duplicate() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(one(5))
        for sequence_id in (0, 4, 5):
            assert not await world.publish(one(sequence_id))
        assert await world.publish(one(6))
        assert await world.publish(one(5), producer="another")

    with_world(scenario)


def test_a_batch_counts_by_its_highest_id() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(SequenceIds(0, 9))
        assert not await world.publish(SequenceIds(0, 9))
        assert not await world.publish(one(9))
        assert await world.publish(SequenceIds(10, 12))

    with_world(scenario)


def test_a_duplicate_is_answered_once_its_first_copy_is_durable() -> None:
    async def scenario(world: World) -> None:
        deduplication, answers = world.deduplication, Answers()
        deduplication.take("p", one(0), None)
        assert deduplication.is_duplicate("p", one(0))
        deduplication.when_durable("p", one(0), answers)
        assert answers.heard == []
        deduplication.became_durable("p", one(0))
        assert answers.heard == [None]
        deduplication.when_durable("p", one(0), answers)
        assert answers.heard == [None, None]

    with_world(scenario)


def test_a_duplicate_fails_with_its_first_copy_and_both_may_come_again() -> None:
    async def scenario(world: World) -> None:
        deduplication, answers = world.deduplication, Answers()
        deduplication.take("p", one(0), None)
        deduplication.when_durable("p", one(0), answers)
        deduplication.failed("p", one(0), None, FAILURE)
        assert answers.heard == [FAILURE]
        assert await world.publish(one(0))
        assert not await world.publish(one(0))

    with_world(scenario)


def test_a_failure_lets_later_messages_stay() -> None:
    async def scenario(world: World) -> None:
        deduplication = world.deduplication
        deduplication.take("p", one(0), None)
        assert await world.publish(one(1))
        deduplication.failed("p", one(0), None, FAILURE)
        assert await world.publish(one(0))
        assert not await world.publish(one(1))

    with_world(scenario)


# -- transactions


def test_what_was_aborted_may_come_again_once() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0))
        await world.publish(SequenceIds(1, 5), txn_id=T1)
        assert not await world.publish(SequenceIds(1, 5), txn_id=T1)
        await world.end(T1, abort=True)
        assert not await world.publish(one(0))
        assert await world.publish(SequenceIds(1, 5), txn_id=T2)
        assert not await world.publish(SequenceIds(1, 5))

    with_world(scenario)


def test_what_was_committed_may_not() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await world.end(T1, abort=False)
        assert not await world.publish(one(0))

    with_world(scenario)


def test_a_retake_in_flight_is_no_answer_yet() -> None:
    async def scenario(world: World) -> None:
        deduplication, answers = world.deduplication, Answers()
        await world.publish(one(0), txn_id=T1)
        await world.publish(one(1))
        await world.end(T1, abort=True)
        deduplication.take("p", one(0), None)
        assert deduplication.is_duplicate("p", one(0))
        deduplication.when_durable("p", one(0), answers)
        assert answers.heard == [], "only its aborted copy is durable"
        deduplication.became_durable("p", one(0))
        assert answers.heard == [None]

    with_world(scenario)


def test_a_publish_that_its_transaction_refused_is_forgotten_by_it() -> None:
    async def scenario(world: World) -> None:
        deduplication = world.deduplication
        deduplication.take("p", one(0), T1)
        deduplication.failed("p", one(0), T1, FAILURE)
        assert await world.publish(one(0))
        await world.end(T1, abort=True)
        assert not await world.publish(one(0))

    with_world(scenario)


def test_the_last_sequence_id_leaves_out_what_was_aborted() -> None:
    async def scenario(world: World) -> None:
        assert world.deduplication.last_sequence_id("p") == -1
        await world.publish(one(4))
        await world.publish(SequenceIds(5, 9), txn_id=T1)
        assert world.deduplication.last_sequence_id("p") == 9
        await world.end(T1, abort=True)
        assert world.deduplication.last_sequence_id("p") == 4

    with_world(scenario)


# -- chunks


def test_a_chunked_message_is_seen_with_its_last_chunk() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(chunk(0, 3))
        assert await world.publish(chunk(1, 3))
        assert world.deduplication.last_sequence_id("p") == -1
        assert not await world.publish(chunk(1, 3))
        assert await world.publish(chunk(2, 3))
        assert world.deduplication.last_sequence_id("p") == 7
        for number in range(3):
            assert not await world.publish(chunk(number, 3))

    with_world(scenario)


def test_a_chunk_in_flight_is_no_answer_yet() -> None:
    async def scenario(world: World) -> None:
        deduplication, answers = world.deduplication, Answers()
        deduplication.take("p", chunk(0, 2), None)
        deduplication.when_durable("p", chunk(0, 2), answers)
        assert answers.heard == []
        deduplication.became_durable("p", chunk(0, 2))
        assert answers.heard == [None]

    with_world(scenario)


def test_a_chunk_that_failed_may_come_again() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(chunk(0, 3))
        world.deduplication.take("p", chunk(1, 3), None)
        world.deduplication.failed("p", chunk(1, 3), None, FAILURE)
        assert not await world.publish(chunk(0, 3))
        assert await world.publish(chunk(1, 3))
        assert await world.publish(chunk(2, 3))

    with_world(scenario)


def test_an_aborted_chunked_message_may_come_again_whole() -> None:
    async def scenario(world: World) -> None:
        for txn_id in (T1, T2):
            for number in range(3):
                assert await world.publish(chunk(number, 3), txn_id=txn_id)
            await world.end(txn_id, abort=True)

    with_world(scenario)


# -- recovery

Between = Callable[[World], Any]


async def nothing(world: World) -> None:
    pass


async def snapshot(world: World) -> None:
    await world.deduplication.snapshot()


@pytest.mark.parametrize("between", [nothing, snapshot])
def test_a_recovery_knows_what_was_seen(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(3))
        await between(world)
        await world.publish(SequenceIds(4, 6))
        await world.crash_and_recover()
        assert world.deduplication.last_sequence_id("p") == 6
        assert not await world.publish(one(6))
        assert await world.publish(one(7))

    with_world(scenario)


@pytest.mark.parametrize("between", [nothing, snapshot])
def test_a_recovery_knows_what_an_open_transaction_carried(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await between(world)
        await world.publish(one(1), txn_id=T1)
        await world.crash_and_recover()
        assert not await world.publish(one(1))
        await world.end(T1, abort=True)
        assert await world.publish(one(0))
        assert await world.publish(one(1))

    with_world(scenario)


@pytest.mark.parametrize("between", [nothing, snapshot])
def test_a_recovery_knows_what_may_come_again(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 4), txn_id=T1)
        await world.end(T1, abort=True)
        await between(world)
        await world.crash_and_recover()
        assert await world.publish(SequenceIds(0, 4))
        await world.crash_and_recover()
        assert not await world.publish(SequenceIds(0, 4))

    with_world(scenario)


@pytest.mark.parametrize("between", [nothing, snapshot])
def test_a_recovery_knows_the_chunks_of_an_unfinished_message(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(chunk(0, 3))
        await between(world)
        await world.crash_and_recover()
        assert not await world.publish(chunk(0, 3))
        assert await world.publish(chunk(1, 3))

    with_world(scenario)


def test_what_was_in_flight_at_a_snapshot_may_come_again_after_a_crash() -> None:
    async def scenario(world: World) -> None:
        world.deduplication.take("p", one(0), None)
        await world.deduplication.snapshot()
        await world.crash_and_recover()
        assert await world.publish(one(0))

    with_world(scenario)


def test_a_retake_in_flight_at_a_snapshot_may_come_again_after_a_crash() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await world.end(T1, abort=True)
        world.deduplication.take("p", one(0), None)
        await world.deduplication.snapshot()
        await world.crash_and_recover()
        assert await world.publish(one(0))

    with_world(scenario)


def test_an_entry_that_does_not_parse_does_not_stop_a_recovery() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0))
        broken = bytearray(entry_of(one(1), "p", None))
        broken[10:14] = b"\xff\xff\xff\xff"
        await world.ledger.append_one(bytes(broken))
        await world.publish(one(2))
        await world.crash_and_recover()
        assert world.deduplication.last_sequence_id("p") == 2

    with_world(scenario)


# -- bounds


def test_the_producers_used_last_are_remembered() -> None:
    async def scenario(world: World) -> None:
        deduplication = Deduplication(world.ledger, None, 2, 1000)  # type: ignore[arg-type]
        for name in ("a", "b", "a", "c"):
            if not deduplication.is_duplicate(name, one(0)):
                deduplication.take(name, one(0), None)
                deduplication.became_durable(name, one(0))
        assert [deduplication.last_sequence_id(name) for name in "abc"] == [0, -1, 0]

    with_world(scenario)


def test_a_snapshot_is_due_once_in_an_interval() -> None:
    async def scenario(world: World) -> None:
        deduplication = Deduplication(world.ledger, None, 10, 3)  # type: ignore[arg-type]
        due = []
        for sequence_id in range(7):
            deduplication.take("p", one(sequence_id), None)
            due.append(deduplication.snapshot_is_due())
        assert due == [False, False, True, False, False, True, False]

    with_world(scenario)
