"""Which sequence ids are duplicates: live, after aborts and after failures."""

import asyncio

from deduplication_world import Run, SequenceIds, World, chunk, one, with_world

from pybroker.base.errors import PersistenceError
from pybroker.base.names import TxnId
from pybroker.broker.deduplication import Copy, Duplicate, New, Piece, Refused

T1, T2, T3 = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
FAILURE = PersistenceError("the disk is full")


class Answers:
    def __init__(self) -> None:
        self.heard: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.heard.append(error)

    def of(self, duplicate: Piece) -> "Answers":
        assert isinstance(duplicate, Duplicate), duplicate
        duplicate.when_durable(self)
        return self


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
        first = world.take(one(0))
        answers = Answers().of(world.ask(one(0)))
        assert answers.heard == []
        first.stored()
        assert answers.heard == [None]
        assert answers.of(world.ask(one(0))).heard == [None, None]

    with_world(scenario)


def test_a_duplicate_fails_with_its_first_copy_and_both_may_come_again() -> None:
    async def scenario(world: World) -> None:
        first = world.take(one(0))
        answers = Answers().of(world.ask(one(0)))
        world.fail(first, FAILURE)
        assert answers.heard == [FAILURE]
        assert await world.publish(one(0))
        assert not await world.publish(one(0))

    with_world(scenario)


def test_a_failure_lets_later_messages_stay() -> None:
    async def scenario(world: World) -> None:
        first = world.take(one(0))
        assert await world.publish(one(1))
        world.fail(first, FAILURE)
        assert await world.publish(one(0))
        assert not await world.publish(one(1))

    with_world(scenario)


def test_a_run_is_cut_where_what_has_to_be_done_changes() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(3))
        run = Run([one(number) for number in (4, 5, 3, 6, 6, 8)], None)
        pieces = list(world.deduplication.pieces("p", run))
        assert [(type(piece), piece.start, piece.stop) for piece in pieces] == [
            (New, 0, 2),
            (Duplicate, 2, 3),
            (New, 3, 4),
            (Duplicate, 4, 5),
            (New, 5, 6),
        ]

    with_world(scenario)


def test_a_batch_that_repeats_only_a_part_is_refused() -> None:
    """Storing it would duplicate that part; confirming it would lose the rest."""

    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 4), txn_id=T1)
        await world.end(T1, abort=True)
        await world.publish(SequenceIds(5, 9))
        for ids in (SequenceIds(0, 9), SequenceIds(3, 5), SequenceIds(8, 12)):
            assert isinstance(world.ask(ids), Refused)
        assert await world.publish(SequenceIds(0, 2))

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
        assert not await world.publish(SequenceIds(1, 5), txn_id=T2)

    with_world(scenario)


def test_what_was_committed_may_not() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await world.end(T1, abort=False)
        assert not await world.publish(one(0))

    with_world(scenario)


def test_a_retake_in_flight_is_no_answer_yet() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await world.publish(one(1))
        await world.end(T1, abort=True)
        retake = world.take(one(0))
        answers = Answers().of(world.ask(one(0)))
        assert answers.heard == [], "only its aborted copy is durable"
        retake.stored()
        assert answers.heard == [None]

    with_world(scenario)


def test_a_publish_that_its_transaction_refused_is_forgotten_by_it() -> None:
    async def scenario(world: World) -> None:
        world.fail(world.take(one(0), txn_id=T1), FAILURE)
        assert await world.publish(one(0))
        await world.end(T1, abort=True)
        assert not await world.publish(one(0))

    with_world(scenario)


def test_a_copy_of_what_another_open_transaction_holds_waits_for_its_end() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        for txn_id in (None, T2):
            assert world.copied(one(0), txn_id=txn_id) == T1
        assert not await world.publish(one(0), txn_id=T1), "its own is a duplicate"
        await world.end(T1, abort=False)
        assert not await world.publish(one(0), txn_id=T2), "it is stored now"

    with_world(scenario)


def test_a_copy_is_stored_when_the_first_one_was_aborted() -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 9), txn_id=T1)
        assert world.copied(SequenceIds(0, 4)) == T1
        await world.end(T1, abort=True)
        assert await world.publish(SequenceIds(0, 4), txn_id=T2)
        assert world.copied(one(3), txn_id=T3) == T2, "a copy of the copy waits for that one"

    with_world(scenario)


def test_a_copy_of_what_is_on_its_way_in_a_transaction_waits_too() -> None:
    async def scenario(world: World) -> None:
        first = world.take(one(0), txn_id=T1)
        assert world.copied(one(0)) == T1
        told: list[str] = []
        world.deduplication.when_decided(T1, lambda: told.append("decided"))
        world.fail(first, FAILURE)
        await asyncio.sleep(0)
        assert told == ["decided"]
        assert await world.publish(one(0))

    with_world(scenario)


def test_what_waits_hears_when_the_transaction_ends_whether_or_not_it_held_something() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        told: list[str] = []
        world.deduplication.when_decided(T1, lambda: told.append("decided"))
        await asyncio.sleep(0)
        assert told == []
        await world.end(T1, abort=False)
        await asyncio.sleep(0)
        assert told == ["decided"]

    with_world(scenario)


def test_everything_behind_a_copy_in_its_run_waits_with_it() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(5), txn_id=T1)
        run = Run([one(6), one(5), one(7)], None)
        new, copy = world.deduplication.pieces("p", run)
        assert (new.start, new.stop) == (0, 1)
        assert isinstance(copy, Copy)
        assert (copy.start, copy.stop, copy.txn_id) == (1, 3, T1)
        assert await world.publish(one(7)), "it was not taken"

    with_world(scenario)


def test_a_batch_with_one_message_of_another_open_transaction_waits() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0))
        await world.publish(one(1), txn_id=T1)
        assert world.copied(SequenceIds(0, 1)) == T1
        assert world.copied(SequenceIds(1, 5), txn_id=T2) == T1

    with_world(scenario)


def test_a_transaction_that_only_repeated_is_not_remembered() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0))
        for number in range(10):
            assert not await world.publish(one(0), txn_id=TxnId(0, number))
        assert world.deduplication._writers == {}

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


def test_the_last_sequence_id_leaves_out_what_is_not_durable() -> None:
    """A producer continues after this id. No client would resend what a crash then loses."""

    async def scenario(world: World) -> None:
        await world.publish(one(3))
        flying, later = world.take(one(4)), world.take(one(5))
        assert world.deduplication.last_sequence_id("p") == 3
        later.stored()
        assert world.deduplication.last_sequence_id("p") == 3
        flying.stored()
        assert world.deduplication.last_sequence_id("p") == 5

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
        first = world.take(chunk(0, 2))
        answers = Answers().of(world.ask(chunk(0, 2)))
        assert answers.heard == []
        first.stored()
        assert answers.heard == [None]

    with_world(scenario)


def test_a_chunk_that_failed_may_come_again() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(chunk(0, 3))
        world.fail(world.take(chunk(1, 3)), FAILURE)
        assert not await world.publish(chunk(0, 3))
        assert await world.publish(chunk(1, 3))
        assert await world.publish(chunk(2, 3))

    with_world(scenario)


def test_a_last_chunk_that_failed_may_come_again_without_the_others() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(chunk(0, 2))
        world.fail(world.take(chunk(1, 2)), FAILURE)
        assert not await world.publish(chunk(0, 2))
        assert await world.publish(chunk(1, 2))

    with_world(scenario)


def test_a_copy_of_a_chunk_in_another_open_transaction_waits() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish(chunk(0, 3), txn_id=T1)
        assert world.copied(chunk(0, 3), txn_id=T2) == T1
        assert not await world.publish(chunk(0, 3), txn_id=T1)
        await world.end(T1, abort=True)
        assert await world.publish(chunk(0, 3), txn_id=T2)

    with_world(scenario)


def test_an_aborted_chunked_message_may_come_again_whole() -> None:
    async def scenario(world: World) -> None:
        for txn_id in (T1, T2):
            for number in range(3):
                assert await world.publish(chunk(number, 3), txn_id=txn_id)
            await world.end(txn_id, abort=True)

    with_world(scenario)
