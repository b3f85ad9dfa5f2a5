"""Outboxes and Waking: which connections pause because output is not read, and which resume."""

import asyncio
from typing import Any

from pybroker.server.connections.outbox import HIGH_BYTES, Outbox, Outboxes, Waking


class Transport(asyncio.Transport):
    """Takes nothing until told to; pauses like asyncio's transports."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0
        self.high = 0
        self.paused = False
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high or 0
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        self.held += len(data)
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        self.paused = self.paused or self.held > self.high

    def abort(self) -> None:
        self.aborted = True


def opened(outboxes: Outboxes) -> tuple[Outbox, Transport]:
    outbox, transport = Outbox(outboxes), Transport()
    outbox.open(transport)
    return outbox, transport


def write(outbox: Outbox, size: int) -> None:
    outbox.write(bytes(size))
    outbox.flush()


def taken(outbox: Outbox, transport: Transport) -> None:
    """The peer has read all output."""
    transport.held, transport.paused = 0, False
    outbox.drained()


def run(scenario: Any) -> None:
    asyncio.run(scenario())


def test_many_pieces_of_one_tick_do_not_gather_unseen() -> None:
    async def scenario() -> None:
        outbox, transport = opened(Outboxes(10 * HIGH_BYTES))
        for _ in range(100):
            outbox.write(bytes(HIGH_BYTES // 10))
            if transport.paused:
                break
        assert transport.held <= 2 * HIGH_BYTES

    run(scenario)


def test_at_the_limit_of_all_only_those_that_read_are_served() -> None:
    async def scenario() -> None:
        outboxes = Outboxes(1000)
        (lazy, asleep), (quick, awake) = opened(outboxes), opened(outboxes)
        write(lazy, 900)
        write(quick, 200)
        assert asleep.paused and awake.paused
        taken(quick, awake)
        write(quick, 1)
        assert asleep.paused
        assert awake.paused  # until the peer has read that, too
        taken(quick, awake)
        assert not awake.paused

    run(scenario)


def test_below_half_the_limit_everybody_may_hold_something_again() -> None:
    async def scenario() -> None:
        outboxes = Outboxes(1000)
        (first, full), (second, other) = opened(outboxes), opened(outboxes)
        write(first, 600)
        write(second, 500)
        taken(first, full)
        assert other.high == HIGH_BYTES
        write(first, 100)
        assert not full.paused

    run(scenario)


def test_what_peers_have_taken_meanwhile_does_not_count() -> None:
    async def scenario() -> None:
        outboxes = Outboxes(1000)
        (quick, transport), (other, _) = opened(outboxes), opened(outboxes)
        write(quick, 900)
        transport.held = 0  # and asyncio had no reason to call back
        write(other, 200)
        assert not outboxes.tight
        assert outboxes.held_bytes == 200

    run(scenario)


def test_a_connection_that_ends_is_no_longer_counted() -> None:
    async def scenario() -> None:
        outboxes = Outboxes(1000)
        lazy, _ = opened(outboxes)
        write(lazy, 2000)
        assert outboxes.tight
        lazy.close()
        assert (outboxes.held_bytes, outboxes.tight) == (0, False)

    run(scenario)


def test_who_never_reads_what_others_cause_is_disconnected() -> None:
    async def scenario() -> None:
        outbox, transport = opened(Outboxes(10**12))
        for _ in range(1000):
            write(outbox, HIGH_BYTES)
        assert transport.aborted
        assert transport.held < 100 * HIGH_BYTES

    run(scenario)


class Sleeper:
    def __init__(self) -> None:
        self.notified = 0

    def notify(self) -> None:
        self.notified += 1


def test_consumers_have_their_turn_after_those_that_filled_the_connection() -> None:
    async def scenario() -> None:
        sleepers = [Sleeper() for _ in range(3)]
        room = [True, False]
        waking = Waking(lambda: room.pop(0))
        waking.wake(sleepers)  # type: ignore[arg-type]
        assert [sleeper.notified for sleeper in sleepers] == [1, 0, 0]
        room[:] = [True, True, False]
        waking.wake(sleepers)  # type: ignore[arg-type]
        assert [sleeper.notified for sleeper in sleepers] == [1, 1, 1]

    run(scenario)
