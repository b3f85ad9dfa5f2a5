"""When the command's event loop reads in ticks, and when it wakes up for each event."""

import asyncio
import selectors
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from pybroker.process.paced_loop import QUIET_S, TICK_S, PacedSelector, Pacing, paced_loop

MANY = range(100, 500)


def hear(pacing: Pacing, descriptors: range, every_s: float, from_s: float, seconds: float) -> bool:
    """Feeds one event per descriptor in turn; returns whether it reads in ticks at the end."""
    for number in range(int(seconds / every_s)):
        pacing.looked(from_s + number * every_s, [descriptors[number % len(descriptors)]])
    return pacing.by_ticks


def test_many_slow_connections_are_read_in_ticks() -> None:
    assert hear(Pacing(), MANY, every_s=0.00025, from_s=1000, seconds=1)


def test_a_synchronous_producer_is_heard_at_once() -> None:
    assert not hear(Pacing(), range(100, 101), every_s=0.00025, from_s=1000, seconds=1)


def test_synchronous_producers_on_sixty_four_topics_are_heard_at_once() -> None:
    assert not hear(Pacing(), range(100, 164), every_s=0.00005, from_s=1000, seconds=1)


def test_a_synchronous_producer_among_many_slow_connections_is_heard_at_once() -> None:
    pacing = Pacing()
    for number in range(4_000):
        pacing.looked(1000 + number * 0.00025, [MANY[number % len(MANY)]])
        pacing.looked(1000 + number * 0.00025, [7])
    assert not pacing.by_ticks


def test_few_events_wake_the_loop_up_for_each() -> None:
    assert not hear(Pacing(), MANY, every_s=0.002, from_s=1000, seconds=1)


def test_the_loops_own_descriptors_say_nothing_about_the_load() -> None:
    pacing = Pacing()
    pacing.leave_out([3])
    for number in range(4_000):
        pacing.looked(1000 + number * 0.00025, [MANY[number % len(MANY)]])
        pacing.looked(1000 + number * 0.00025, [3])
    assert pacing.by_ticks


def test_ticks_end_when_the_load_does() -> None:
    pacing = Pacing()
    assert hear(pacing, MANY, every_s=0.00025, from_s=1000, seconds=1)
    pacing.looked(1002, [100])
    assert not pacing.by_ticks


def test_a_tick_begins_when_the_sockets_are_looked_at() -> None:
    pacing = Pacing()
    hear(pacing, MANY, every_s=0.00025, from_s=1000, seconds=1)
    pacing.looked(1001, [])
    assert pacing.rest_s(1001 + TICK_S / 4) == pytest.approx(TICK_S * 3 / 4)
    assert pacing.rest_s(1001 + TICK_S) <= 0


class Clock:
    """Time passes only when a test lets it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        self.wakers: list[int] = []  # descriptors that are readable

    def let_pass(self, descriptors: Sequence[int], seconds: float) -> list[int]:
        if found := [each for each in descriptors if each in self.wakers]:
            return found
        self.slept_s.append(seconds)
        self.now_s += seconds
        return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def selector(clock: Clock) -> Iterator[PacedSelector]:
    with PacedSelector(lambda: clock.now_s, clock.let_pass) as selector:
        yield selector


@pytest.fixture
def readable(selector: PacedSelector) -> Iterator[socket.socket]:
    """A readable socket."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        selector.register(ours, selectors.EVENT_READ)
        yield ours


@pytest.fixture
def go_by_ticks(selector: PacedSelector, clock: Clock) -> Callable[[], None]:
    def go() -> None:
        assert hear(selector.pacing, MANY, 0.00025, from_s=clock.now_s, seconds=1)
        clock.now_s += 1
        selector.pacing.looked(clock.now_s, [])
        assert selector.pacing.by_ticks

    return go


def found(ready: list[tuple[selectors.SelectorKey, int]]) -> list[object]:
    return [key.fileobj for key, _ in ready]


def test_without_ticks_nothing_sleeps(
    selector: PacedSelector, readable: socket.socket, clock: Clock
) -> None:
    assert found(selector.select(None)) == [readable]
    assert found(selector.select(0)) == [readable]
    assert clock.slept_s == []


def test_sockets_are_looked_at_when_the_tick_is_over(
    selector: PacedSelector, readable: socket.socket, clock: Clock, go_by_ticks: Callable[[], None]
) -> None:
    go_by_ticks()
    assert found(selector.select(None)) == [readable]
    assert clock.slept_s == [pytest.approx(TICK_S)]


def test_what_the_loop_has_at_hand_does_not_wait_for_the_tick(
    selector: PacedSelector, readable: socket.socket, clock: Clock, go_by_ticks: Callable[[], None]
) -> None:
    go_by_ticks()
    assert found(selector.select(0)) == []
    assert clock.slept_s == []


def test_a_timer_does_not_wait_for_the_tick(
    selector: PacedSelector, readable: socket.socket, clock: Clock, go_by_ticks: Callable[[], None]
) -> None:
    go_by_ticks()
    assert found(selector.select(TICK_S / 4)) == []
    assert clock.slept_s == [TICK_S / 4]


@pytest.mark.parametrize("timeout", [None, TICK_S / 4])
def test_who_wakes_the_loop_up_does_not_wait_for_the_tick(
    selector: PacedSelector,
    readable: socket.socket,
    clock: Clock,
    go_by_ticks: Callable[[], None],
    timeout: float | None,
) -> None:
    go_by_ticks()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        selector.register(ours, selectors.EVENT_READ)
        selector.wake_by([ours.fileno()])
        clock.wakers = [ours.fileno()]
        assert found(selector.select(timeout)) == [ours], "and nothing else"
    assert clock.slept_s == []


def test_after_the_tick_work_at_hand_does_not_keep_sockets_from_being_read(
    selector: PacedSelector, readable: socket.socket, clock: Clock, go_by_ticks: Callable[[], None]
) -> None:
    go_by_ticks()
    clock.now_s += TICK_S
    assert found(selector.select(0)) == [readable]


def test_a_connection_that_was_not_read_for_a_while_counts_as_busy_when_it_goes_on() -> None:
    """To pause reading, a descriptor is removed from the selector and added again."""
    pacing = Pacing()
    pacing.looked(1000, [100])
    pacing.looked(1000 + QUIET_S / 2, [100])
    assert not hear(pacing, range(100, 101), every_s=0.0005, from_s=1000 + QUIET_S, seconds=1)


def test_the_command_runs_in_a_paced_loop() -> None:
    with asyncio.Runner(loop_factory=paced_loop) as runner:
        assert runner.run(asyncio.to_thread(lambda: "done")) == "done"
