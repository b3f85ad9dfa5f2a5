"""A writer that loses bookies, with and without replacements."""

import asyncio
from dataclasses import replace

import pytest
from writer_scene import Scene, in_a_loop, settled

from managed_ledger.errors import LedgerEnded
from managed_ledger.storage.bookkeeper import writer
from managed_ledger.storage.bookkeeper.metadata_record import LedgerState, Segment


@in_a_loop
async def test_without_a_replacement_the_writer_ends():
    scene = Scene(spare="")
    scene.append(2)
    scene.bookies.fail("a", 0)
    await settled()
    assert scene.heard == [(0, "LedgerEnded"), (1, "LedgerEnded")]
    scene.append(1)
    await settled()
    assert scene.heard[-1] == (2, "LedgerEnded")
    assert scene.writer.pending_bytes == 0


@in_a_loop
async def test_a_ledger_goes_on_without_a_bookie_if_the_others_are_an_ack_quorum():
    scene = Scene((3, 3, 2), spare="")
    scene.append(1)
    scene.bookies.fail("e", 0)
    await settled()
    scene.append(1)
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
        scene.bookies.answer(bookie, 1)
    assert scene.heard == [(0, "ok"), (1, "ok")]
    assert [each for each, entry, _ in scene.bookies.asked if entry == 1] == ["a", "b"]
    assert scene.store.versions == [], "the ledger's ensemble stays as it is"
    closed = await scene.writer.close()
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 1)


@in_a_loop
async def test_a_ledger_that_goes_on_without_a_bookie_ends_with_the_next():
    scene = Scene((3, 3, 2), spare="")
    scene.append(2)
    scene.bookies.fail("e", 0)
    await settled()
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    scene.bookies.fail("a", 1)
    await settled()
    assert scene.heard == [(0, "ok"), (1, "LedgerEnded")]
    assert scene.store.versions[-1].last_entry_id == 0


@in_a_loop
async def test_two_lost_bookies_and_one_other_are_enough_where_one_may_be_missing():
    scene = Scene((3, 3, 2), spare="c")
    scene.append(1)
    for bookie in "be":
        scene.bookies.fail(bookie, 0)
    await settled()
    for bookie in "ac":
        scene.bookies.answer(bookie, 0)
    assert scene.heard == [(0, "ok")]
    assert scene.writer.metadata.segments == (Segment(0, ("a", "c", "e")),)


async def one_that_goes_on_without_e(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A writer that continues without bookie e, and may look for bookies again."""
    scene = Scene((3, 3, 2), spare="")
    scene.append(1)
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    scene.bookies.fail("e", 0)
    monkeypatch.setattr(writer, "LOOK_AGAIN_S", 0.0)
    await settled()
    return scene


def test_a_bookie_that_comes_later_takes_the_empty_place(monkeypatch):
    async def scenario() -> None:
        scene = await one_that_goes_on_without_e(monkeypatch)
        scene.bookies.spare.append("c")
        scene.append(1)
        await settled()
        for bookie in "ac":
            scene.bookies.answer(bookie, 1)
        assert scene.heard == [(0, "ok"), (1, "ok")]
        before, since = scene.writer.metadata.segments
        assert (before, since) == (Segment(0, ("a", "b", "e")), Segment(1, ("a", "b", "c")))

    asyncio.run(scenario())


def test_when_the_lost_bookie_is_back_the_ledger_makes_room_for_a_successor(monkeypatch):
    async def scenario() -> None:
        scene = await one_that_goes_on_without_e(monkeypatch)
        scene.bookies.up = list("abe")
        await settled()
        assert scene.writer.ended is None, "nobody writes to it"
        scene.append(1)
        await settled()
        assert scene.bookies.looked_at == ["e"]
        assert scene.heard == [(0, "ok"), (1, "LedgerEnded")]
        closed = scene.store.versions[-1]
        assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 0)

    asyncio.run(scenario())


def test_a_lost_bookie_that_is_registered_and_does_not_answer_ends_nothing(monkeypatch):
    async def scenario() -> None:
        scene = await one_that_goes_on_without_e(monkeypatch)
        scene.bookies.up, scene.bookies.silent = list("abe"), "e"
        scene.append(1)
        await settled()
        for bookie in "ab":
            scene.bookies.answer(bookie, 1)
        assert scene.bookies.looked_at == ["e"]
        assert scene.heard == [(0, "ok"), (1, "ok")]
        assert scene.writer.ended is None

    asyncio.run(scenario())


@in_a_loop
async def test_a_ledger_ends_behind_a_whole_append():
    scene = Scene(spare="")
    scene.append(1)
    scene.writer.append(b"half", None)
    scene.append(1)
    for entry in (0, 1):
        for bookie in "ab":
            scene.bookies.answer(bookie, entry)
    scene.bookies.fail("a", 2)
    await settled()
    assert scene.heard == [(0, "ok"), (2, "LedgerEnded")]
    closed = scene.store.versions[-1]
    assert (closed.last_entry_id, closed.length) == (0, 1)


@in_a_loop
async def test_what_became_of_entries_is_unknown_if_the_ledger_cannot_be_closed():
    scene = Scene(spare="")
    scene.append(1)
    scene.store.conflict = True
    scene.bookies.fail("a", 0)
    await settled()
    assert scene.heard == [(0, "LedgerFenced")]


@in_a_loop
async def test_a_segment_that_auto_recovery_has_healed_is_no_fence():
    scene = Scene(spare="cd")
    scene.append(1)
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    scene.append(1)
    scene.bookies.fail("a", 1)
    await settled()
    scene.store.heal("a", "x")
    scene.bookies.fail("b", 1)
    await settled()
    for bookie in "cd":
        scene.bookies.answer(bookie, 1)
    assert scene.heard == [(0, "ok"), (1, "ok")]
    scene.store.heal("b", "y")
    closed = await scene.writer.close()
    assert closed.segments == (Segment(0, ("x", "y")), Segment(1, ("c", "d")))
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, 1)
    assert scene.store.versions[-1] == closed


@in_a_loop
async def test_metadata_of_another_writer_is_a_fence_although_it_names_the_same_bookies():
    scene = Scene()
    scene.append(1)
    scene.store.versions.append(replace(scene.writer.metadata, created_ms=5))
    scene.bookies.fail("a", 0)
    await settled()
    assert scene.heard == [(0, "LedgerFenced")]


def test_a_ledger_whose_lost_bookie_has_left_ends_before_auto_recovery_fences_it(monkeypatch):
    async def scenario() -> None:
        scene = await one_that_goes_on_without_e(monkeypatch)
        monkeypatch.setattr(writer, "LEFT_ALONE_S", 0.0)
        scene.bookies.up = list("ab")
        scene.append(1)
        await settled()
        assert scene.writer.ended is None, "it is still registered, and may come back"
        scene.bookies.registered = "ab"
        scene.bookies.up = ["a"]
        scene.append(1)
        await settled()
        assert scene.writer.ended is None, "a successor would not have an ack quorum"
        scene.bookies.up = list("ab")
        scene.append(1)
        await settled()
        assert scene.heard[-1] == (3, "LedgerEnded")
        assert scene.store.versions[-1].state is LedgerState.CLOSED

    asyncio.run(scenario())


@in_a_loop
async def test_a_small_ledger_makes_room_when_there_are_bookies_for_all_copies():
    scene = Scene((2, 2, 2), spare="", wanted=(3, 3, 2))
    scene.bookies.up = list("ab")
    scene.append(1)
    await settled()
    for bookie in "ab":
        scene.bookies.answer(bookie, 0)
    assert (scene.heard, scene.bookies.looked_at) == ([(0, "ok")], [])
    scene.bookies.up = list("abe")
    scene.writer._look_again_s = 0.0
    scene.append(1)
    await settled()
    assert scene.bookies.looked_at == ["e"]
    assert scene.heard[-1] == (1, "LedgerEnded")


@in_a_loop
async def test_a_ledger_that_is_only_less_wide_than_wanted_goes_on():
    scene = Scene((2, 2, 2), spare="", wanted=(3, 2, 2))
    scene.bookies.up = list("abe")
    scene.append(1)
    await settled()
    assert scene.bookies.looked_at == []
    assert scene.writer.ended is None


def test_a_striped_ledger_without_one_bookie_makes_room_for_one_on_the_others(monkeypatch):
    async def scenario() -> None:
        monkeypatch.setattr(writer, "LOOK_AGAIN_S", 0.0)
        scene = Scene((3, 2, 1), spare="")
        scene.append(1)
        scene.bookies.fail("a", 0)
        await settled()
        assert scene.writer.ended is None
        scene.bookies.up = list("be")
        scene.append(1)
        await settled()
        assert isinstance(scene.writer.ended, LedgerEnded)

    asyncio.run(scenario())
