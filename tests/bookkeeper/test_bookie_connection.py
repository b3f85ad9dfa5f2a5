"""How a connection handles a bookie's answers, and which adders it calls."""

import asyncio
from struct import Struct
from typing import Any

import pytest
from virtual_loop import run_virtually

from managed_ledger.storage.bookkeeper.connection import (
    CHECKS_PER_TIMEOUT,
    MAX_IN_FLIGHT,
    OVERLOADED_PAUSE_S,
    BookieConnection,
)
from managed_ledger.storage.bookkeeper.protocol import Code, Operation, head

ANSWER = Struct(">IIIqq")


def answer(ledger_id: int, entry_id: int, code: int = Code.OK, operation: int = Operation.ADD):
    return ANSWER.pack(ANSWER.size - 4, head(Operation(operation)), code, ledger_id, entry_id)


class Asker:
    def __init__(self, heard: list[Any], name: str = "a") -> None:
        self.heard, self.name = heard, name
        self.on_added = lambda: None

    def added(self, first: int, last: int) -> None:
        self.heard.append((self.name, first, last))
        self.on_added()

    def refused(self, entry_id: int, code: int) -> None:
        self.heard.append((self.name, "refused", entry_id, code))

    def failed(self, entry_id: int, why: Exception) -> None:
        self.heard.append((self.name, "failed", entry_id))


class Scene:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.lost: list[Any] = []
        self.connection = BookieConnection("b", 30.0, 1 << 20, self.lost.append)
        self.a, self.b = Asker(self.heard), Asker(self.heard, "b")

    def ask(self, asker: Asker, ledger_id: int, *entry_ids: int) -> None:
        self.connection.add(ledger_id, entry_ids, [b"12345"] * len(entry_ids), asker)

    def answered(self, *answers: bytes) -> list[Any]:
        self.heard.clear()
        self.connection.data_received(b"".join(answers))
        return self.heard


@pytest.fixture
def in_scene():
    def run(scenario):
        async def go():
            scene = Scene()
            try:
                scenario(scene)
            finally:
                scene.connection.break_off("the test is over")

        asyncio.run(go())

    return run


def test_of_consecutive_entries_their_asker_hears_at_once(in_scene):
    def scenario(scene):
        scene.ask(scene.a, 1, *range(6))
        scene.ask(scene.b, 2, 3, 4)
        answers = [answer(1, 0), answer(1, 1), answer(2, 3), answer(2, 4), answer(1, 2)]
        assert scene.answered(*answers) == [("a", 0, 1), ("b", 3, 4), ("a", 2, 2)]
        assert scene.answered(answer(1, 5), answer(1, 3)) == [("a", 5, 5), ("a", 3, 3)]
        assert scene.connection.pending_bytes == 5
        assert scene.answered(answer(1, 4)) == [("a", 4, 4)]
        assert scene.connection.pending_bytes == 0

    in_scene(scenario)


def test_two_askers_with_the_same_ledger_are_told_apart(in_scene):
    def scenario(scene):
        scene.ask(scene.a, 1, 0)
        scene.ask(scene.b, 1, 1)
        assert scene.answered(answer(1, 0), answer(1, 1)) == [("a", 0, 0), ("b", 1, 1)]

    in_scene(scenario)


def test_a_refusal_comes_after_what_was_added_before_it(in_scene):
    def scenario(scene):
        scene.ask(scene.a, 1, 0, 1, 2)
        refused = answer(1, 1, Code.FENCED)
        heard = [("a", 0, 0), ("a", "refused", 1, Code.FENCED), ("a", 2, 2)]
        assert scene.answered(answer(1, 0), refused, answer(1, 2)) == heard

    in_scene(scenario)


def test_unexpected_answers_are_ignored_and_an_answer_counts_once(in_scene):
    def scenario(scene):
        scene.ask(scene.a, 1, 0)
        odd = [answer(1, 7), answer(9, 0), answer(1, 0, operation=Operation.READ)]
        assert scene.answered(*odd, answer(1, 0), answer(1, 0)) == [("a", 0, 0)]

    in_scene(scenario)


def test_what_was_answered_before_nonsense_is_told_of_before_the_connection_breaks(in_scene):
    def scenario(scene):
        scene.ask(scene.a, 1, 0, 1, 2)
        heard = scene.answered(answer(1, 0), answer(1, 1), b"\xff" * 28)
        assert heard == [("a", 0, 1), ("a", "failed", 2)]
        assert scene.lost == [scene.connection]

    in_scene(scenario)


def test_each_is_called_once_when_a_callback_breaks_the_connection(in_scene):
    def scenario(scene):
        scene.ask(scene.a, 1, 0, 1)
        scene.ask(scene.b, 2, 0, 1)
        scene.a.on_added = lambda: scene.connection.break_off("enough")
        heard = scene.answered(answer(1, 0), answer(2, 0), answer(2, 1), answer(1, 1))
        assert heard == [("a", 0, 0), ("a", "failed", 1), ("b", "failed", 1), ("b", 0, 0)]

    in_scene(scenario)


def test_an_entry_that_is_on_its_way_is_not_sent_twice():
    async def go():
        scene = Scene()
        scene.ask(scene.a, 1, 0)
        scene.ask(scene.b, 1, 0, 1)
        await asyncio.sleep(0)
        assert scene.heard == [("b", "failed", 0)]
        assert scene.answered(answer(1, 0), answer(1, 1)) == [("a", 0, 0), ("b", 1, 1)]
        scene.connection.break_off("the test is over")

    asyncio.run(go())


class Wire(asyncio.Transport):
    """A transport that keeps the written requests; those of the scene have five bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def abort(self) -> None:
        pass

    def taken(self) -> int:
        """The number of requests written since the last call."""
        written, self.written = self.written, b""
        return len(written) // 5


def test_what_an_overloaded_bookie_refuses_is_sent_again_before_all_that_waits():
    async def go():
        scene, wire = Scene(), Wire()
        scene.connection.connection_made(wire)
        scene.connection.add(1, (0, 1, 2), [b"0....", b"1....", b"2...."], scene.a)
        await asyncio.sleep(0)
        wire.taken()
        busy = [answer(1, each, Code.TOO_MANY_REQUESTS) for each in (1, 2)]
        assert scene.answered(answer(1, 0), *busy) == [("a", 0, 0)]
        scene.connection.add(1, (3,), [b"3...."], scene.a)
        await asyncio.sleep(0)
        assert wire.written == b""  # a pause for the bookie
        await asyncio.sleep(2 * OVERLOADED_PAUSE_S)
        assert wire.written == b"1....2....3...."
        assert scene.answered(*(answer(1, each) for each in (1, 2, 3))) == [("a", 1, 3)]
        assert scene.connection.pending_bytes == 0

    run_virtually(go())


def test_a_bookie_that_stays_overloaded_has_refused_and_one_that_goes_on_has_not():
    async def go():
        scene, wire = Scene(), Wire()
        scene.connection.connection_made(wire)
        scene.ask(scene.a, 1, *range(100))
        for entry_id in range(99):  # one stored per second, for longer than the timeout
            assert scene.answered(answer(1, 99, Code.TOO_MANY_REQUESTS)) == []
            await asyncio.sleep(1)
            assert scene.answered(answer(1, entry_id)) == [("a", entry_id, entry_id)]
        assert scene.answered(answer(1, 99, Code.TOO_MANY_REQUESTS)) == []
        await asyncio.sleep(31)
        refused = scene.answered(answer(1, 99, Code.TOO_MANY_REQUESTS))
        assert refused == [("a", "refused", 99, Code.TOO_MANY_REQUESTS)]
        assert scene.lost == []

    run_virtually(go())


def test_a_connection_that_breaks_fails_what_an_overloaded_bookie_refused():
    async def go():
        scene = Scene()
        scene.ask(scene.a, 1, 0)
        scene.answered(answer(1, 0, Code.TOO_MANY_REQUESTS))
        scene.connection.break_off("enough")
        assert scene.heard == [("a", "failed", 0)]
        await asyncio.sleep(1)
        assert scene.heard == [("a", "failed", 0)]

    run_virtually(go())


def test_a_bookie_is_not_sent_more_than_it_may_queue_before_it_answers():
    async def go():
        scene, wire = Scene(), Wire()
        scene.connection.connection_made(wire)
        scene.ask(scene.a, 1, *range(MAX_IN_FLIGHT + 100))
        await asyncio.sleep(0)
        assert wire.taken() == MAX_IN_FLIGHT
        scene.answered(*(answer(1, each) for each in range(30)))
        await asyncio.sleep(0)
        assert wire.taken() == 30
        scene.answered(*(answer(1, each) for each in range(30, 200)))
        await asyncio.sleep(0)
        assert wire.taken() == 70

    run_virtually(go())


class OpenedLate(asyncio.Transport):
    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_a_connection_that_was_broken_off_while_it_was_being_made_does_not_stay_open(in_scene):
    def scenario(scene):
        scene.connection.break_off("the bookie is too slow")
        transport = OpenedLate()
        scene.connection.connection_made(transport)
        assert transport.is_aborted

    in_scene(scenario)


def test_an_entry_that_is_read_again_and_again_and_answered_is_not_taken_for_a_silent_bookie():
    async def go():
        scene = Scene()
        for _ in range(3 * CHECKS_PER_TIMEOUT):
            scene.connection.read(1, 0, lambda response, why: None)
            scene.connection._watch()
            scene.connection.data_received(answer(1, 0, operation=Operation.READ))
        assert scene.connection.broken is None
        scene.connection.read(1, 0, lambda response, why: None)
        for _ in range(2 + CHECKS_PER_TIMEOUT):
            scene.connection._watch()
        assert scene.connection.broken is not None
        scene.connection.break_off("the test is over")

    asyncio.run(go())
