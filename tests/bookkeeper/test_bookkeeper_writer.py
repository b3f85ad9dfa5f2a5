"""How a writer handles its bookies' answers; the tests give each answer by hand."""

import asyncio

import pytest
from writer_scene import Scene, in_a_loop, named, settled

from managed_ledger.errors import LedgerClosed
from managed_ledger.storage.bookkeeper.errors import LedgerFenced
from managed_ledger.storage.bookkeeper.metadata_record import LedgerState, Segment
from managed_ledger.storage.bookkeeper.protocol import Code


@in_a_loop
async def test_entries_are_confirmed_in_order_though_answers_are_not():
    scene = Scene()
    scene.append(2)
    for bookie in "ab":
        scene.bookies.answer(bookie, 1)
    assert scene.heard == []
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    assert scene.heard == [(0, "ok"), (1, "ok")]
    assert (scene.writer.last_confirmed, scene.writer.pending_bytes) == (1, 0)


@in_a_loop
async def test_an_ack_quorum_is_enough():
    scene = Scene((3, 3, 2))
    scene.append(1)
    scene.bookies.answer("e", 0)
    assert scene.heard == []
    scene.bookies.answer("a", 0)
    assert scene.heard == [(0, "ok")]
    scene.bookies.answer("b", 0)
    assert scene.heard == [(0, "ok")]


@in_a_loop
async def test_the_answer_of_a_bookie_that_was_replaced_counts_no_more():
    scene = Scene()
    scene.append(1)
    scene.bookies.answer("a", 0)
    scene.bookies.fail("a", 0)
    await settled()
    scene.bookies.answer("b", 0)
    scene.bookies.answer("a", 0)
    assert scene.heard == []
    scene.bookies.answer("c", 0)
    assert scene.heard == [(0, "ok")]
    assert scene.store.versions[-1].segments == (Segment(0, ("c", "b")),)


@in_a_loop
async def test_nothing_is_confirmed_before_the_metadata_names_the_new_bookie():
    scene = Scene((3, 3, 2))
    scene.append(2)
    scene.bookies.answer("a", 0)
    scene.bookies.answer("b", 0)
    scene.store.gate = asyncio.get_running_loop().create_future()
    scene.bookies.fail("e", 1)
    for bookie in "ab":
        scene.bookies.answer(bookie, 1)
    await settled()
    assert scene.heard == [(0, "ok")]
    scene.store.gate.set_result(None)
    await settled()
    assert scene.heard == [(0, "ok"), (1, "ok")]
    assert [each.first_entry_id for each in scene.writer.metadata.segments] == [0, 1]


@in_a_loop
async def test_a_lost_bookie_is_never_written_to_again():
    scene = Scene(spare="acd")
    scene.append(1)
    scene.bookies.fail("a", 0)
    await settled()
    scene.bookies.fail("c", 0)
    await settled()
    assert scene.writer.metadata.segments == (Segment(0, ("d", "b")),)


@in_a_loop
async def test_a_failure_is_reported_only_after_the_ledger_is_closed_before_it():
    scene = Scene(spare="")
    scene.append(2)
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    scene.store.gate = asyncio.get_running_loop().create_future()
    scene.bookies.fail("a", 1)
    await settled()
    scene.append(1)
    await settled()
    assert scene.heard == [(0, "ok")]
    assert {entry for _, entry, _ in scene.bookies.asked} == {0, 1}  # the last is not sent
    scene.store.gate.set_result(None)
    await settled()
    assert scene.heard == [(0, "ok"), (1, "LedgerEnded"), (2, "LedgerEnded")]
    closed = scene.store.versions[-1]
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 0, 1)
    assert await scene.writer.close() == closed


@in_a_loop
async def test_what_the_other_bookies_have_confirmed_is_kept_when_the_writer_ends():
    scene = Scene((3, 2, 2), spare="")
    scene.append(3)
    scene.bookies.answer("a", 0)
    scene.bookies.fail("e", 1)
    scene.bookies.answer("b", 0)
    await settled()
    assert scene.heard == [(0, "ok"), (1, "LedgerEnded"), (2, "LedgerEnded")]


@in_a_loop
async def test_a_fence_ends_the_writer_at_once():
    scene = Scene((3, 3, 2))
    scene.append(2)
    scene.bookies.answer("a", 0)
    scene.bookies.answer("b", 0, Code.FENCED)
    scene.bookies.answer("e", 0)
    assert scene.heard == [(0, "LedgerFenced"), (1, "LedgerFenced")]
    with pytest.raises(LedgerFenced):
        await scene.writer.close()
    assert scene.store.versions == []


@in_a_loop
async def test_a_bookie_cannot_be_replaced_once_the_ledger_is_in_recovery():
    scene = Scene()
    scene.store.conflict = True
    scene.append(1)
    scene.bookies.fail("a", 0)
    await settled()
    assert scene.heard == [(0, "LedgerFenced")]


@in_a_loop
async def test_closing_waits_and_names_the_last_confirmed_entry():
    scene = Scene()
    scene.append(3)
    closing = asyncio.ensure_future(scene.writer.close())
    await settled()
    for entry_id in range(3):
        for bookie in "ab":
            scene.bookies.answer(bookie, entry_id)
    closed = await closing
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 2, 3)
    scene.append(1)
    await settled()
    assert scene.heard[-1] == (3, "LedgerClosed")


@in_a_loop
async def test_a_bookie_lost_while_the_ledger_is_being_closed_does_not_look_like_a_fence():
    scene = Scene((3, 3, 2))
    scene.append(1)
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    gate = scene.store.gate = asyncio.get_running_loop().create_future()
    closing = asyncio.ensure_future(scene.writer.close())
    await settled()
    scene.store.gate = None  # the close is repeated after a lost connection
    scene.bookies.fail("e", 0)
    await settled()
    gate.set_result(None)
    assert (await closing).state is LedgerState.CLOSED
    await settled()
    assert [each.state for each in scene.store.versions] == [LedgerState.CLOSED]
    assert not isinstance(scene.writer.ended, LedgerFenced)


@in_a_loop
async def test_two_that_close_a_ledger_both_learn_how_it_ended():
    scene = Scene()
    scene.append(1)
    closing = [asyncio.ensure_future(scene.writer.close()) for _ in range(2)]
    await settled()
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    first, second = await asyncio.wait_for(asyncio.gather(*closing), 5)
    assert first is second and first.state is LedgerState.CLOSED


@in_a_loop
async def test_a_close_that_comes_second_is_refused():
    scene = Scene()
    scene.store.conflict = True
    with pytest.raises(LedgerFenced):
        await scene.writer.close()


@in_a_loop
async def test_striped_entries_go_to_their_write_sets_and_without_the_recovery_flag():
    scene = Scene((3, 2, 2))
    scene.append(4)
    assert sorted((entry, bookie) for bookie, entry, _ in scene.bookies.asked) == [
        (0, "a"), (0, "b"), (1, "b"), (1, "e"), (2, "a"), (2, "e"), (3, "a"), (3, "b"),
    ]  # fmt: skip
    assert scene.bookies.flags == {0}


@in_a_loop
async def test_a_writer_that_was_given_up_closes_nothing():
    scene = Scene()
    scene.append(1)
    scene.writer.abandon()
    assert scene.heard == [(0, "LedgerClosed")]
    assert scene.store.versions == []
    assert isinstance(scene.writer.ended, LedgerClosed)


@in_a_loop
async def test_an_append_of_several_entries_is_heard_of_once_and_striped():
    scene = Scene((3, 2, 2))
    scene.writer.append_all(
        [b"head"] * 3, [b"x"] * 3, lambda error: scene.heard.append((2, named(error)))
    )
    for bookie, entry in [("a", 0), ("b", 0), ("b", 1), ("a", 2), ("e", 2)]:
        scene.bookies.answer(bookie, entry)
    assert scene.heard == []
    scene.bookies.answer("e", 1)
    assert scene.heard == [(2, "ok")]
    assert scene.writer.confirmed_length == scene.writer.length == 15
    assert scene.writer.pending_bytes == 0
