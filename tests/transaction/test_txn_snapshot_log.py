"""A log that replaces its past: which records share an entry, and who is told of a failed write."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from txn_world import World, in_world, soon, told_to_nobody

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from pybroker.transaction.snapshot_log import PARTS_PER_ENTRY, SnapshotLog, _by_weight

NAME = "pulsar/system/persistent/log"


def joined(records: Sequence[int]) -> bytes:
    return " ".join(map(str, records)).encode()


async def opened(world: World) -> tuple[SnapshotLog[int], ManagedLedger]:
    log = await SnapshotLog.open(world.factory, NAME, "cursor", joined)
    return log, await world.factory.open(NAME)


async def replayed(world: World) -> list[list[int]]:
    """The replayed numbers, by entry."""
    log, _ = await opened(world)
    entries: list[list[int]] = []

    def apply(entry: bytes) -> int:
        entries.append([int(number) for number in entry.split()])
        return len(entries[-1])

    await log.replay(apply)
    assert log.records_since_snapshot == sum(map(len, entries))
    return entries


def ignore(error: Exception | None) -> None:
    """There is no caller to tell."""


async def nothing() -> None:
    """There is no state outside the log."""


@in_world
async def test_what_comes_in_one_tick_is_one_entry_of_at_most_five_hundred(world: World) -> None:
    log, ledger = await opened(world)
    for number in range(1001):
        log.append(number, ignore)
    assert log.records_since_snapshot == 1001
    await soon()
    log.append(1001, ignore)
    await soon()
    entries = await replayed(await world.crashed())
    assert [len(entry) for entry in entries] == [500, 500, 1, 1]
    assert [number for entry in entries for number in entry] == list(range(1002))
    assert ledger.message_count(ledger.last_confirmed) == 1


@in_world
async def test_what_was_handed_over_before_closing_is_written(world: World) -> None:
    log, _ = await opened(world)
    log.append(1, ignore)
    await log.close()
    assert await replayed(await world.crashed()) == [[1]]


@in_world
async def test_records_that_belong_together_are_an_entry_behind_those_of_the_same_tick(
    world: World,
) -> None:
    log, _ = await opened(world)
    told: list[str] = []
    log.append(1, lambda error: told.append("one"))
    log.append_together([2, 3], lambda error: told.append("both"))
    log.append(4, lambda error: told.append("last"))
    assert log.records_since_snapshot == 4
    await soon()
    assert told == ["one", "both", "last"]
    assert await replayed(await world.crashed()) == [[1], [2, 3], [4]]


@in_world
async def test_a_snapshot_takes_the_place_of_all_before_it(world: World) -> None:
    log, ledger = await opened(world)
    log.append(1, ignore)
    await soon()
    log.append(2, ignore)
    await log.replace_past([7, 8, 9], lambda record: PARTS_PER_ENTRY if record == 8 else 1, nothing)
    assert log.records_since_snapshot == 0
    assert ledger.message_count(ledger.last_confirmed) == 1
    log.append(3, ignore)
    await soon()
    assert await replayed(await world.crashed()) == [[7, 8], [9], [3]]


@in_world
async def test_who_replaces_the_past_has_done_so_before_the_log_is_closed(world: World) -> None:
    log, _ = await opened(world)
    log.append(1, ignore)
    await soon()
    may_go_on = asyncio.Event()

    async def remote() -> None:
        await may_go_on.wait()

    replacing = asyncio.ensure_future(log.replace_past([7], lambda record: 1, remote))
    await soon()
    closing = asyncio.ensure_future(log.close())
    await soon()
    assert not closing.done()
    may_go_on.set()
    await asyncio.gather(replacing, closing)
    assert await replayed(await world.crashed()) == [[7]]


@in_world
async def test_a_past_that_could_not_be_replaced_still_counts(world: World) -> None:
    log, _ = await opened(world)
    log.append(1, ignore)
    await soon()
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await log.replace_past([7], lambda record: 1, nothing)
    assert log.records_since_snapshot == 1


@in_world
async def test_the_owner_of_the_log_learns_of_every_failed_write(world: World) -> None:
    log, _ = await opened(world)
    failures: list[Exception] = []
    told: list[Exception | None] = []
    log.on_failure = failures.append
    world.storage.full = True
    log.append(1, told.append)
    await soon()
    assert (len(failures), told) == (1, failures)
    with pytest.raises(ManagedLedgerError):
        await log.replace_past([7], lambda record: 1, nothing)
    assert len(failures) == 2


@in_world
async def test_a_record_that_cannot_be_written_does_not_stand_in_the_way(world: World) -> None:
    """All records of its tick fail, as on a full disk: none may be durable without the earlier
    ones.
    """
    log, _ = await opened(world)
    failures: list[Exception] = []
    told: list[Exception | None] = []
    log.on_failure = failures.append
    log._encode = lambda records: bytes(records)  # records up to 255 fit into a byte; 1000 does not
    log.append(1, told.append)
    log.append(1000, told.append)
    await soon()
    assert [type(error) for error in told] == [ValueError, ValueError]
    assert len(failures) == 1
    log.append_together([1000], told.append)
    log._encode = joined
    log.append(2, told.append)
    await soon()
    assert (len(failures), told[3]) == (2, None)
    assert await replayed(await world.crashed()) == [[2]]


@in_world
async def test_a_snapshot_that_nobody_waits_for_may_fail(world: World) -> None:
    log, _ = await opened(world)

    async def leave() -> None:
        world.storage.full = True
        log._append_snapshot(b"7")
        log._append_snapshot(b"8").cancel()

    assert await told_to_nobody(leave) == []


@pytest.mark.parametrize(
    ("weights", "entries"),
    [
        ([], [0]),
        ([1] * PARTS_PER_ENTRY, [PARTS_PER_ENTRY]),
        ([1] * (2 * PARTS_PER_ENTRY), [PARTS_PER_ENTRY] * 2),
        ([1] * (PARTS_PER_ENTRY + 1), [PARTS_PER_ENTRY, 1]),
        ([PARTS_PER_ENTRY - 1, 1, PARTS_PER_ENTRY, 7], [2, 1, 1]),
    ],
)
def test_an_entry_of_a_snapshot_has_a_limited_number_of_parts_and_there_is_at_least_one(
    weights: list[int], entries: list[int]
) -> None:
    parted = list(_by_weight(weights, lambda weight: weight))
    assert [len(records) for records in parted] == entries
    assert [weight for records in parted for weight in records] == weights


async def _looked_on(world: World, live: list[int]) -> list[int]:
    """What a replay finds of `live` and of 7. 7 is appended after the snapshot found its last
    record.
    """
    log, _ = await opened(world)
    log.append(0, ignore)
    await soon()

    def snapshot() -> Iterator[int | None]:
        yield from live
        yield from [None] * 5

    replacing = asyncio.ensure_future(log.replace_past(snapshot(), lambda record: 1, nothing))
    for _ in range(3):
        await asyncio.sleep(0)
    log.append(7, ignore)
    await replacing
    await soon()
    return [number for entry in await replayed(await world.crashed()) for number in entry]


@in_world
async def test_what_comes_while_a_snapshot_looks_on_stands_behind_what_it_has(
    world: World,
) -> None:
    assert await _looked_on(world, [1]) == [1, 7]


@in_world
async def test_what_comes_while_a_snapshot_has_found_nothing_is_kept(world: World) -> None:
    assert await _looked_on(world, []) == [7]
