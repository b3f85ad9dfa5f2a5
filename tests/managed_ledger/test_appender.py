"""Appends in flight, over a storage that answers when the test says so."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from managed_ledger.appender import Appender
from managed_ledger.errors import LedgerClosed, LedgerEnded, StorageFull
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position


class Log:
    """An appender to ledger 1, which is full at 3 entries or 100 bytes, and a record of events."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, list[bytes], list[int], bytes]] = []
        self.callbacks: list[Callable[[Exception | None], None]] = []
        self.told: list[tuple[str, object]] = []
        self.full = 0
        self.hold_when_full = False
        self.index = LedgerIndex([], 1)
        self.appender = Appender(self, self.index, 3, 100, self.on_full)  # type: ignore[arg-type]

    def append(
        self,
        ledger_id: int,
        first: int,
        entries: Sequence[bytes],
        counts: Sequence[int],
        appended: Callable[[Exception | None], None],
        tag: bytes,
    ) -> bool:
        self.calls.append((ledger_id, first, list(entries), list(counts), tag))
        self.callbacks.append(appended)
        return True

    def on_full(self) -> None:
        self.full += 1
        if self.hold_when_full:
            self.appender.hold()

    def send(self, name: str, *sizes: int) -> None:
        entries = [bytes(size) for size in sizes or (1,)]

        def done(first: Position | None, error: Exception | None) -> None:
            self.told.append((name, type(error) if error else first))

        self.appender.append(entries, [2] * len(entries), done, name.encode())

    def answer(self, error: Exception | None = None) -> None:
        self.callbacks.pop(0)(error)

    def roll(self, ledger_id: int) -> None:
        current = self.index.infos()[-1]
        full = LedgerInfo(current.ledger_id, current.entries, current.size_bytes, 0)
        self.index.roll_over(full, ledger_id)


def with_log(scenario: Callable[[Log], Any]) -> None:
    async def run() -> None:
        await scenario(Log())

    asyncio.run(run())


FULL = StorageFull("full")


def test_appends_are_numbered_at_once_and_answered_in_their_order():
    async def scenario(log: Log) -> None:
        log.send("a", 5, 6)
        log.send("b")
        assert log.calls == [
            (1, 0, [bytes(5), bytes(6)], [2, 2], b"a"),
            (1, 2, [bytes(1)], [2], b"b"),
        ]
        assert log.told == []
        log.answer()
        log.answer()
        assert log.told == [("a", (1, 0)), ("b", (1, 2))]
        assert log.index.last_confirmed == (1, 2)
        assert log.index.current_size_bytes == 12

    with_log(scenario)


@pytest.mark.parametrize(
    ("sizes", "full"),
    [
        ([(1, 1)], 0),
        ([(1, 1, 1)], 1),
        ([(1,), (1,), (1,)], 1),
        ([(99,)], 0),
        ([(100,)], 1),
        ([(50,), (50,)], 1),
    ],
)
def test_a_ledger_is_full_at_its_limit_of_entries_or_bytes(sizes, full):
    async def scenario(log: Log) -> None:
        for each in sizes:
            log.send("a", *each)
        assert log.full == full

    with_log(scenario)


def test_who_waits_for_what_is_queued_is_called_after_it_whether_it_succeeds():
    async def scenario(log: Log) -> None:
        def after(name: str) -> None:
            log.appender.call_after_queued(lambda: log.told.append((name, None)))

        after("nothing")
        log.send("a")
        after("pending")
        log.appender.hold()
        log.send("b")
        after("held")
        log.send("c")
        assert log.told == [("nothing", None)]
        log.answer(FULL)
        assert log.told[1:] == [
            ("a", StorageFull),
            ("pending", None),
            ("b", StorageFull),
            ("held", None),
            ("c", StorageFull),
        ]

    with_log(scenario)


def test_what_is_held_goes_on_into_the_next_ledger_until_that_is_full_too():
    async def scenario(log: Log) -> None:
        log.hold_when_full = True
        for name in "abcdefgh":
            log.send(name)
        assert [first for _, first, *_ in log.calls] == [0, 1, 2]
        for _ in range(3):
            log.answer()
        log.roll(2)
        log.appender.release()
        assert [(id_, first, tag) for id_, first, _, _, tag in log.calls[3:]] == [
            (2, 0, b"d"),
            (2, 1, b"e"),
            (2, 2, b"f"),
        ]
        for _ in range(3):
            log.answer()
        log.roll(3)
        log.appender.release()
        log.answer()
        log.answer()
        assert [name for name, _ in log.told] == list("abcdefgh")
        assert log.told[-1] == ("h", (3, 1))
        assert log.appender.queued_entries == 2

    with_log(scenario)


def test_the_bytes_of_a_full_ledger_do_not_count_for_the_next_one():
    async def scenario(log: Log) -> None:
        log.send("a", 100)
        log.appender.hold()
        log.answer()
        log.roll(2)
        log.appender.release()
        log.send("b", 50)
        assert log.full == 1
        log.send("c", 50)
        assert log.full == 2

    with_log(scenario)


def test_a_failure_takes_along_all_that_was_numbered_behind_it_and_what_is_held():
    async def scenario(log: Log) -> None:
        log.send("durable", 10)
        log.answer()
        for name in "ab":
            log.send(name, 40)
        log.appender.hold()
        log.send("held")
        log.told.clear()
        log.answer(FULL)
        assert log.told == [("a", StorageFull), ("b", StorageFull), ("held", StorageFull)]
        log.appender.release()
        log.full = 0
        log.send("again", 80)  # before the storage has reported b's failure
        assert log.calls[-1][:2] == (1, 1)
        assert log.full == 0  # 10 bytes are durable, 80 in flight
        log.answer(FULL)
        assert len(log.told) == 3
        log.answer()
        assert log.told[-1] == ("again", (1, 1))
        assert log.appender.queued_entries == 2

    with_log(scenario)


def test_a_failure_of_one_alone_leaves_nothing_to_be_ignored():
    async def scenario(log: Log) -> None:
        log.send("a")
        log.answer(FULL)
        log.send("b")
        log.answer()
        assert log.told == [("a", StorageFull), ("b", (1, 0))]

    with_log(scenario)


class Mistaken(Exception):
    """An error in a callback."""


@pytest.mark.parametrize("outcome", [None, FULL])
def test_a_failing_caller_stops_neither_other_callbacks_nor_draining(outcome):
    async def scenario(log: Log) -> None:
        mistakes: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: mistakes.append(context["exception"]))

        def mistaken(*_: object) -> None:
            raise Mistaken

        log.appender.append([b"x"], [1], mistaken, b"")
        log.send("a")
        log.appender.append([b"x"], [1], mistaken, b"")
        log.appender.hold()
        log.appender.call_ahead_of_held(mistaken)
        log.appender.append([b"x"], [1], mistaken, b"")
        log.send("held")
        for _ in range(3):
            log.answer(outcome)
        await asyncio.wait_for(log.appender.drained(), 5)
        log.roll(2)
        log.appender.release()
        log.send("b")
        while log.callbacks:
            log.answer()
        held, error = ((2, 1), None) if outcome is None else (StorageFull, StorageFull)
        first = (1, 1) if error is None else error
        last = (2, 2) if error is None else (2, 0)
        assert log.told == [("a", first), ("held", held), ("b", last)]
        assert [type(mistake) for mistake in mistakes] == [Mistaken] * 4

    with_log(scenario)


def test_who_refuses_tells_all_though_one_of_them_fails():
    async def scenario(log: Log) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)

        def mistaken(*_: object) -> None:
            raise Mistaken

        log.appender.hold()
        log.appender.append([b"x"], [1], mistaken, b"")
        log.send("held")
        log.appender.refuse(LedgerClosed("closed"))
        assert log.told == [("held", LedgerClosed)]

    with_log(scenario)


def test_who_refuses_fails_what_is_held_and_whatever_comes_but_not_what_is_on_its_way():
    async def scenario(log: Log) -> None:
        log.send("on its way")
        log.appender.hold()
        log.send("held")
        log.appender.call_ahead_of_held(lambda: log.send("never"))
        log.appender.refuse(LedgerClosed("closed"))
        assert log.told == [("held", LedgerClosed)]
        log.send("late")
        assert len(log.told) == 1  # no callback runs within its own call of `append`
        await asyncio.sleep(0)
        assert log.told[1:] == [("late", LedgerClosed)]
        log.answer()
        assert log.told[2:] == [("on its way", (1, 0))]
        log.appender.release()
        await asyncio.sleep(0)
        assert (len(log.calls), len(log.told)) == (1, 3)

    with_log(scenario)


def test_what_an_ended_ledger_does_not_take_is_held_ahead_of_what_was_held_before():
    async def scenario(log: Log) -> None:
        troubles: list[object] = []
        log.appender.on_trouble = lambda ended: troubles.append(type(ended))
        log.send("a", 1, 2)
        log.send("b")
        log.appender.hold()
        log.send("c")
        log.answer(LedgerEnded("ended"))
        log.answer(LedgerEnded("ended"))
        await asyncio.wait_for(log.appender.drained(), 5)
        assert (log.told, troubles) == ([], [type(None), LedgerEnded])
        log.index.replace_current(2)
        log.appender.release()
        assert log.calls[2:] == [
            (2, 0, [bytes(1), bytes(2)], [2, 2], b"a"),
            (2, 2, [bytes(1)], [2], b"b"),
            (2, 3, [bytes(1)], [2], b"c"),
        ]
        for _ in range(3):
            log.answer()
        assert log.told == [("a", (2, 0)), ("b", (2, 2)), ("c", (2, 3))]

    with_log(scenario)


def test_who_refuses_appends_nothing_again():
    async def scenario(log: Log) -> None:
        log.send("a")
        log.send("b")
        log.appender.refuse(LedgerClosed("closed"))
        log.answer(LedgerEnded("ended"))
        log.answer(LedgerEnded("ended"))
        await asyncio.wait_for(log.appender.drained(), 5)
        assert log.told == [("a", LedgerEnded), ("b", LedgerEnded)]

    with_log(scenario)


def test_it_is_drained_when_the_last_answer_is_there():
    async def scenario(log: Log) -> None:
        await asyncio.wait_for(log.appender.drained(), 5)
        for outcome in (None, FULL, None):
            log.send("a")
            log.send("b")
            drains = [asyncio.ensure_future(log.appender.drained()) for _ in range(2)]
            await asyncio.sleep(0)
            log.answer(outcome)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert all(drain.done() == (outcome is FULL) for drain in drains)
            log.answer(outcome)
            await asyncio.wait_for(asyncio.gather(*drains), 5)

    with_log(scenario)
