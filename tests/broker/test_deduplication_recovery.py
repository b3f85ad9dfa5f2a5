"""What a recovery knows of sequence ids, what a snapshot costs, and which ids are forgotten."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from deduplication_world import Run, SequenceIds, World, chunk, entry_of, one, with_world

from pybroker.base.names import TxnId
from pybroker.broker.deduplication import Duplicate, New, Refused
from pybroker.broker.deduplication.producer_sequence import MAX_RETURNED_RANGES

T1, T2 = TxnId(0, 1), TxnId(0, 2)

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


@pytest.mark.parametrize(
    ("whole", "appends"), [(True, [(0, 3)]), (False, [(0, 1), (1, 2), (2, 3)])]
)
def test_messages_share_an_append_only_where_a_crash_leaves_all_of_it_or_nothing(
    whole: bool, appends: list[tuple[int, int]]
) -> None:
    """The tag names all its messages: those torn off by a crash would count as stored."""

    async def scenario(world: World) -> None:
        world.ledger._backend.keeps_appends_whole = whole  # type: ignore[misc]
        run = Run([one(0), one(1), one(2)], None)
        pieces = [(each.start, each.stop) for each in world.new().pieces("p", run)]
        assert pieces == appends

    with_world(scenario)


@pytest.mark.parametrize("between", [nothing, snapshot])
def test_a_recovery_knows_what_an_open_transaction_carried(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await between(world)
        await world.publish(one(1), txn_id=T1)
        await world.crash_and_recover()
        assert not await world.publish(one(1), txn_id=T1)
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


@pytest.mark.parametrize("between", [nothing, snapshot])
def test_a_copy_waits_after_a_recovery_as_before(between: Between) -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 4), txn_id=T1)
        await world.publish(chunk(0, 2, 9), txn_id=T1)
        await between(world)
        await world.crash_and_recover()
        assert world.copied(one(2)) == T1
        assert world.copied(chunk(0, 2, 9), txn_id=T2) == T1
        await world.end(T1, abort=True)
        assert await world.publish(one(2), txn_id=T2)
        assert await world.publish(chunk(0, 2, 9), txn_id=T2)

    with_world(scenario)


def test_what_was_in_flight_at_a_snapshot_may_come_again_after_a_crash() -> None:
    async def scenario(world: World) -> None:
        world.take(one(0))
        await world.deduplication.snapshot()
        await world.crash_and_recover()
        assert await world.publish(one(0))

    with_world(scenario)


def test_a_retake_in_flight_at_a_snapshot_may_come_again_after_a_crash() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await world.publish(one(1))
        await world.end(T1, abort=True)
        world.take(one(0))
        await world.deduplication.snapshot()
        await world.crash_and_recover()
        assert await world.publish(one(0))

    with_world(scenario)


def test_a_retake_in_flight_in_a_transaction_at_a_snapshot_may_come_again_in_it() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        await world.publish(one(1))
        await world.end(T1, abort=True)
        world.take(one(0), txn_id=T2)
        await world.deduplication.snapshot()
        await world.crash_and_recover()
        assert await world.publish(one(0), txn_id=T2), "a receipt for nothing"

    with_world(scenario)


def test_an_abort_gives_back_nothing_that_was_in_flight_at_a_snapshot_and_lost() -> None:
    async def scenario(world: World) -> None:
        await world.publish(one(0), txn_id=T1)
        world.take(one(1), txn_id=T1)
        await world.deduplication.snapshot()
        await world.crash_and_recover()
        assert await world.publish(one(1))
        await world.end(T1, abort=True)
        assert not await world.publish(one(1)), "it was stored without the transaction"
        assert await world.publish(one(0))

    with_world(scenario)


def test_a_snapshot_of_the_first_format_is_read() -> None:
    async def scenario(world: World) -> None:
        for number in range(6):
            await world.publish(one(number), txn_id=T1 if number in (2, 3) else None)
        record = {
            "next": [0, 6],
            "producers": {
                "p": {"highest": 5, "returned": [[1, 1]], "chunk": [-1, -1]},
                "q": {"highest": 8, "returned": [], "chunk": [9, 1]},
            },
            "open": [[0, 1, [["p", [2, 2, 0, 1]], ["p", [3, 3, 0, 1]], ["q", [9, 9, 1, 3]]]]],
        }
        key = "/deduplication/orders"
        await world.metadata.put(key, json.dumps(record).encode())
        await world.crash_and_recover()
        assert await world.publish(one(1))
        assert not await world.publish(one(5))
        assert world.copied(one(2)) == T1
        assert world.copied(chunk(1, 3, 9), "q") == T1
        await world.end(T1, abort=True)
        assert await world.publish(SequenceIds(2, 3))
        assert await world.publish(chunk(0, 3, 9), "q")

    with_world(scenario)


def test_the_log_keeps_what_no_snapshot_tells_yet() -> None:
    async def scenario(world: World) -> None:
        await world.recover()
        await world.publish(one(0))
        await world.ledger.roll_over()
        await world.ledger.trim()
        assert len(world.ledger.ledgers()) == 2
        await world.deduplication.snapshot()
        await world.ledger.roll_over()
        await world.ledger.trim()
        assert len(world.ledger.ledgers()) == 1
        await world.crash_and_recover()
        assert not await world.publish(one(0))

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
        world.deduplication = deduplication = world.new(max_producers=2)
        for name in ("a", "b", "a", "c"):
            await world.publish(one(0), name)
        assert [deduplication.last_sequence_id(name) for name in "abc"] == [0, -1, 0]

    with_world(scenario)


def test_a_producer_of_an_open_transaction_is_not_forgotten() -> None:
    async def scenario(world: World) -> None:
        world.deduplication = world.new(max_producers=1)
        await world.publish(one(0), "a", T1)
        await world.publish(one(0), "b")
        assert world.copied(one(0), "a") == T1

    with_world(scenario)


def test_a_snapshot_is_due_after_an_interval() -> None:
    async def scenario(world: World) -> None:
        world.deduplication = deduplication = world.new(interval=3)
        due = []
        for sequence_id in range(7):
            await world.publish(one(sequence_id))
            due.append(deduplication._is_due())
            if due[-1]:
                await deduplication.snapshot()
        assert due == [False, False, True, False, False, True, False]

    with_world(scenario)


def test_a_snapshot_is_due_when_it_costs_no_more_than_what_came_since() -> None:
    """Aborting every second message leaves a range for each, and each snapshot has all ranges."""

    async def scenario(world: World) -> None:
        world.deduplication = deduplication = world.new(interval=10)
        written = 0
        for number in range(500):
            for sequence_id, txn_id in ((2 * number, TxnId(0, number)), (2 * number + 1, None)):
                world.take(one(sequence_id), txn_id=txn_id).stored()
            deduplication.ended(TxnId(0, number), aborted=True)
            if deduplication._is_due():
                written += sum(state.size for state in deduplication._producers.values())
                await deduplication.snapshot()
        assert written <= 1500

    with_world(scenario)


def test_a_long_transaction_is_a_range_in_a_snapshot() -> None:
    async def scenario(world: World) -> None:
        ids = [one(number) for number in range(10_000)]
        for new in world.deduplication.pieces("p", Run(ids, T1)):
            assert isinstance(new, New)
            new.taken.stored()
        await world.deduplication.snapshot()
        stored = world.metadata.get("/deduplication/orders")
        assert stored is not None
        assert len(stored.value) < 100

    with_world(scenario)


def test_a_snapshot_of_many_producers_lets_others_in_between() -> None:
    async def scenario(world: World) -> None:
        world.deduplication = world.new(max_producers=10_000)
        for number in range(1000):
            world.take(one(0), f"p{number}").stored()
        ticks = 0
        snapshot = asyncio.ensure_future(world.deduplication.snapshot())
        while not snapshot.done():
            ticks += 1
            await asyncio.sleep(0)
        assert ticks >= 5

    with_world(scenario)


def test_what_came_while_a_snapshot_was_written_is_told_once_by_the_log() -> None:
    async def scenario(world: World) -> None:
        world.deduplication = world.new(max_producers=10_000)
        for number in range(300):
            world.take(one(0), f"p{number}").stored()
        await world.publish(one(1), "p299", T1)
        snapshot = asyncio.ensure_future(world.deduplication.snapshot())
        await asyncio.sleep(0)
        await world.publish(one(2), "p299", T1)
        await world.end(T1, abort=True)
        await world.publish(one(2), "p299")
        await snapshot
        await world.crash_and_recover()
        assert not await world.publish(one(2), "p299")
        assert await world.publish(one(1), "p299")

    with_world(scenario)


@pytest.mark.slow
def test_nothing_below_what_was_forgotten_is_receipted() -> None:
    async def scenario(world: World) -> None:
        aborted = MAX_RETURNED_RANGES + 2
        for number in range(aborted):
            world.take(one(2 * number), txn_id=T1).stored()
            world.take(one(2 * number + 1)).stored()
        world.deduplication.ended(T1, aborted=True)
        for _ in range(2):
            assert isinstance(world.ask(one(0)), Refused)
            assert isinstance(world.ask(one(2)), Refused)
            assert isinstance(world.ask(one(3)), Duplicate)
            await world.deduplication.snapshot()
            await world.crash_and_recover()
        assert await world.publish(one(4))

    with_world(scenario)


def test_a_log_from_before_it_was_switched_on_may_hold_ids_that_no_answer_can_tell() -> None:
    async def scenario(world: World) -> None:
        await world.ledger.append_one(entry_of(one(2**64 - 1), "p", None))
        await world.crash_and_recover()
        assert world.deduplication.last_sequence_id("p") == 2**63 - 1

    with_world(scenario)


def test_what_comes_while_a_snapshot_is_written_is_in_the_next_though_nobody_publishes() -> None:
    """The visit that writes it may come while the first is still being written."""

    async def scenario(world: World) -> None:
        deduplication, disk_answers = world.deduplication, asyncio.Event()

        class SlowStore:
            async def put(self, key: str, value: bytes, **_: Any) -> None:
                await disk_answers.wait()

        await world.recover()
        await world.publish(one(0))
        store: Any = SlowStore()
        deduplication._metadata = store
        writing = asyncio.ensure_future(deduplication.snapshot())
        await asyncio.sleep(0)
        await world.publish(one(1))
        assert deduplication._visit is not None
        deduplication._visit.cancel()
        deduplication._visited()
        await asyncio.sleep(0)
        disk_answers.set()
        await writing
        assert deduplication._visit is not None

    with_world(scenario)


# -- messages from while deduplication was off


def test_ids_that_were_stored_unchecked_are_known() -> None:
    async def scenario(world: World) -> None:
        await world.publish_unchecked(SequenceIds(0, 4))
        await world.crash_and_recover()
        assert world.deduplication.last_sequence_id("p") == 4
        assert not await world.publish(one(4))
        assert await world.publish(one(5))

    with_world(scenario)


def test_a_producer_that_began_again_unchecked_is_where_its_last_message_says() -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 9))
        await world.publish_unchecked(one(0))
        await world.publish_unchecked(one(1))
        await world.crash_and_recover()
        assert world.deduplication.last_sequence_id("p") == 1
        assert not await world.publish(one(1))
        assert await world.publish(SequenceIds(2, 5))

    with_world(scenario)


def test_a_producer_that_began_again_does_not_wait_for_its_earlier_transaction() -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 9), txn_id=T1)
        await world.publish_unchecked(one(0))
        await world.crash_and_recover()
        assert await world.publish(SequenceIds(1, 4))
        await world.end(T1, abort=True)
        assert not await world.publish(SequenceIds(1, 4))

    with_world(scenario)


def test_chunks_of_a_producer_that_began_again_are_no_duplicates() -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 9))
        await world.publish_unchecked(chunk(0, 3))
        await world.crash_and_recover()
        assert not await world.publish(chunk(0, 3))
        assert await world.publish(chunk(1, 3))
        assert await world.publish(chunk(2, 3))

    with_world(scenario)


def test_what_was_given_back_before_a_producer_began_again_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 9), txn_id=T1)
        await world.end(T1, abort=True)
        await world.publish_unchecked(SequenceIds(0, 5))
        await world.crash_and_recover()
        assert not await world.publish(one(3))
        assert await world.publish(one(6))

    with_world(scenario)


def test_nothing_waits_for_a_transaction_whose_end_cannot_be_found() -> None:
    """Its marker was deleted with its ledger, or is damaged."""

    async def scenario(world: World) -> None:
        await world.publish(SequenceIds(0, 4), txn_id=T1)
        await world.publish(chunk(0, 3), txn_id=T1)
        await world.deduplication.snapshot()
        world.open_txns.clear()
        await world.crash_and_recover()
        assert isinstance(world.ask(one(2)), Refused)  # aborted or stored: unknown
        assert await world.publish(chunk(0, 3))
        assert await world.publish(one(8))

    with_world(scenario)
