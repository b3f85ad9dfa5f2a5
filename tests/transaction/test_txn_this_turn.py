"""What logs gather in a turn of the loop is written in that turn, together and in order."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch

from virtual_loop import run_virtually

from pybroker.transaction.this_turn import ThisTurn, this_turn


class Written:
    def __init__(self) -> None:
        self.turn = ThisTurn()
        self.order: list[str] = []

    def writer(self, name: str, *then: Callable[[], None]) -> Callable[[], None]:
        def write() -> None:
            self.order.append(f"{name} begins")
            for each in then:
                each()
            self.order.append(f"{name} ends")

        return write


def test_all_that_is_gathered_is_written_by_one_callback() -> None:
    async def life() -> None:
        written, loop = Written(), asyncio.get_running_loop()
        for _ in range(2):  # and again, in a later turn
            with patch.object(loop, "call_soon", wraps=loop.call_soon) as called:
                for name in "ab":
                    written.turn.will_write(written.writer(name))
                assert called.call_count == 1 and written.order == []
            await asyncio.sleep(0)
            assert written.order == ["a begins", "a ends", "b begins", "b ends"]
            written.order.clear()

    run_virtually(life())


def test_what_a_write_leads_to_is_written_behind_it_and_in_the_same_turn() -> None:
    async def life() -> None:
        written = Written()
        turn = written.turn
        third = written.writer("third")
        turn.will_write(written.writer("first", lambda: turn.will_write(third), turn.write_now))
        turn.will_write(written.writer("second"))
        turn.write_now()
        assert written.order == [
            f"{name} {what}" for name in ("first", "second", "third") for what in ("begins", "ends")
        ]
        await asyncio.sleep(0)
        turn.will_write(written.writer("later"))
        turn.write_now()
        assert written.order[-1] == "later ends"

    run_virtually(life())


def test_a_write_that_fails_keeps_no_other_from_being_written() -> None:
    async def life() -> None:
        written, complaints = Written(), list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, each: complaints.append(each))

        def fail() -> None:
            raise ValueError("no room")

        written.turn.will_write(fail)
        written.turn.will_write(written.writer("a"))
        written.turn.write_now()
        assert written.order == ["a begins", "a ends"] and len(complaints) == 1

    run_virtually(life())


def test_each_loop_has_its_own_turn() -> None:
    async def turn() -> ThisTurn:
        assert this_turn() is this_turn()
        return this_turn()

    assert run_virtually(turn()) is not run_virtually(turn())
