"""The position of a cursor without the adjustment for deleted ledgers."""

import asyncio
from typing import Any

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.memory import MemoryBackend


def test_what_has_gone_is_remembered_as_reached_and_written_down_over_a_restart(clock: Any) -> None:
    async def scenario() -> None:
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        positions = [await ledger.append_one(b"x") for _ in range(4)]
        assert cursor.reached == EARLIEST
        cursor.mark_delete(positions[3])
        await ledger.roll_over()
        last = await ledger.append_one(b"last")
        await ledger.trim()
        late = await ledger.open_cursor("late", Position(-7, -9))
        reader = ledger.new_non_durable_cursor("reader", positions[2])
        assert (cursor.reached, late.reached) == (positions[3], EARLIEST)
        assert reader.reached == positions[2] < reader.mark_delete_position
        assert cursor.mark_delete_position > positions[3]
        assert late.mark_delete(positions[1])
        assert not late.mark_delete(positions[1])
        late_mark = late.mark_delete_position
        await factory.close()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        cursor, late = ledger.cursors["sub"], ledger.cursors["late"]
        assert (cursor.reached, late.reached) == (positions[3], positions[1])
        assert late.mark_delete_position == late_mark
        for asked in Position(-7, -9), Position(positions[0].ledger_id, 10**40):
            late.reset(asked)
            await late.flush()
        late.reset(Position(positions[0].ledger_id, -9))
        assert late.reached == Position(positions[0].ledger_id, -1)
        cursor.mark_delete(last)
        assert cursor.reached == cursor.mark_delete_position == last

    asyncio.run(scenario())


def test_what_is_acknowledged_right_behind_what_has_gone_stays_so_over_two_restarts(
    clock: Any,
) -> None:
    """After the first restart the mark is past these entries, but the record begins before them."""

    async def scenario() -> None:
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, clock)
        ledger = await factory.open("log")
        cursor = await ledger.open_cursor("sub", EARLIEST)
        await ledger.append_one(b"x")
        await ledger.roll_over()
        behind = [await ledger.append_one(b"x") for _ in range(3)]
        await ledger.roll_over()
        further = [await ledger.append_one(b"x") for _ in range(3)]
        for position in behind[0], *behind[1:], further[0], further[2]:
            cursor.delete(*position)
        await cursor.flush()
        ledger._index.remove([ledger.first_position.ledger_id])
        cursor.skip_removed()
        mark = cursor.mark_delete_position
        assert (mark, cursor.reached) == (further[0], EARLIEST)
        cursor._forget_acks()
        cursor._touch()
        await factory.close()
        ledger = await ManagedLedgerFactory(backend, clock).open("log")
        cursor = ledger.cursors["sub"]
        ledger._index.remove([ledger.first_position.ledger_id])
        cursor.skip_removed()
        assert (cursor.mark_delete_position, cursor.reached) == (mark, EARLIEST)
        assert cursor.is_deleted(further[2]) and not cursor.is_deleted(further[1])

    asyncio.run(scenario())
