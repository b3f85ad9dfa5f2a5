"""How an end takes effect on a subscription: how much per turn, in which pieces and order."""

import asyncio
from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock, patch

from test_txn_pending_acks import ten_messages, whole
from txn_world import World, in_world

from managed_ledger.position import Position
from pybroker.transaction.pending_acks import applying
from pybroker.transaction.pending_acks.applying import APPLIED_A_TURN, Applying, abort_in_pieces

TENTH = APPLIED_A_TURN // 10


@in_world
async def test_a_turn_applies_a_limited_number_of_entries_of_short_ends(world: World) -> None:
    ends = Applying()
    assert ends.fits(600) and not ends.fits(401) and ends.fits(400) and not ends.fits(1)
    await asyncio.sleep(0)
    assert ends.fits(APPLIED_A_TURN) and not ends.fits(1)


@in_world
async def test_up_to_a_tenth_of_a_turn_is_kept_in_mind_without_a_turn_of_its_own(
    world: World,
) -> None:
    ends = Applying()
    assert ends.fits(TENTH)
    await asyncio.sleep(0)
    assert not ends.fits(APPLIED_A_TURN - TENTH + 1)
    assert ends.fits(1)
    await asyncio.sleep(0)
    assert ends.fits(APPLIED_A_TURN)


@in_world
async def test_long_ends_take_turns_and_each_tells_when_it_is_over(world: World) -> None:
    ends, applied, over = Applying(), list[str](), Mock()

    def pieces(name: str) -> Iterator[int]:
        for _ in range(3):
            applied.append(name)
            yield APPLIED_A_TURN // 2

    for name in "ab":
        ends.start(pieces(name), partial(over, name))
    for turn in range(1, 4):
        await asyncio.sleep(0)
        assert applied == ["a", "b"] * turn
    over.assert_not_called()
    await ends.settled()
    assert [call.args for call in over.call_args_list] == [("a",), ("b",)]
    await ends.settled()


@in_world
async def test_a_turn_of_a_long_end_takes_as_many_entries_as_one_of_short_ones(
    world: World,
) -> None:
    ends, applied = Applying(), [0]

    def pieces() -> Iterator[int]:
        for _ in range(APPLIED_A_TURN + 1):
            applied[0] += 1
            yield 1

    ends.start(pieces(), Mock())
    await asyncio.sleep(0)
    assert applied == [APPLIED_A_TURN]
    await ends.settled()


@in_world
async def test_what_is_given_back_is_sorted_over_pieces_of_any_length(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    taken = [at[number] for number in (7, 2, 9, 0, 5, 1, 8, 3)]
    await acks.acknowledge(txn_id, whole(*taken))
    for length, pieces in ((3, [3, 3, 2, 3, 3, 2]), (8, [8, 8]), (100, [8, 8])):
        state = acks._state
        given: list[Position] = []
        with (
            patch.object(applying, "PIECE", length),
            patch.object(state, "drop_some", lambda _, some: dict.fromkeys(some)),
            patch.object(state, "drop") as dropped,
        ):
            assert list(abort_in_pieces(state, txn_id, given.extend)) == pieces
        assert given == sorted(taken)
        dropped.assert_called_once_with(txn_id)
