"""How long publishers wait when a bookie is killed, in virtual time."""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial

import pytest
from sim_ledger import SESSION_MS
from sim_machines import Machines
from sim_zookeeper import ADDRESS

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.quorums import Quorums
from pybroker.simulation.events import Weather
from pybroker.simulation.world import SimulatedClock, World

LONGEST_WAIT_S = 0.1
EVERY_S = 0.025  # as fast as a simulated bookie syncs
BETWEEN_KILLS_S = 5.0  # much less than a quarantine
DOWN_S = 3.0  # longer than a bookie's session


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence the warnings: these worlds lose bookies on purpose."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Publishing:
    """A log on three bookies, with continuous appends."""

    def __init__(self, quorums: Quorums) -> None:
        self.world = World(f"fail-over {quorums}", Weather())
        self.machines = Machines(self.world, 3)
        self._quorums = quorums
        self._waits_s: list[float] = []
        broker = self.machines.node("broker")
        self.log = self.world.call(broker, self._open())
        broker.start(self._publish())
        self.world.sleep(1.0)

    async def _open(self) -> ManagedLedger:
        clock, rng = SimulatedClock(self.world), self.world.stream("broker")
        config = ClusterConfig(session_timeout_ms=SESSION_MS, quorums=self._quorums)
        self.backend = backend = BookKeeperBackend(ADDRESS, clock, rng, config)
        await backend.open()
        while len(backend._client.bookies.registered) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return await ManagedLedgerFactory(backend, clock).open("log")

    async def _publish(self) -> None:
        while True:
            self.log.append([b"x"], [1], partial(self._told, self.world.now))
            await asyncio.sleep(EVERY_S)

    def _told(self, since_s: float, position: object, error: Exception | None) -> None:
        assert error is None, error
        self._waits_s.append(self.world.now - since_s)

    def bookies_of_the_newest(self) -> int:
        """The bookies in the metadata of the newest ledger."""
        writer = self.backend._writers[self.log.ledgers()[-1].ledger_id]
        return len(writer.metadata.segments[-1].bookies)

    def longest_wait_s(self, within_s: float) -> float:
        """The longest wait for a receipt from now on."""
        self._waits_s = []
        self.world.sleep(within_s)
        assert len(self._waits_s) > 0.9 * within_s / EVERY_S, "all got their receipts"
        return max(self._waits_s)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2), (3, 2, 1)])
def test_bookies_killed_one_after_the_other_do_not_hold_publishers_up(quorums):
    publishing = Publishing(Quorums(*quorums))
    try:
        waits_s = []
        for port in publishing.machines.disks:
            publishing.machines.crash_bookie(port, False, DOWN_S)
            waits_s.append(publishing.longest_wait_s(BETWEEN_KILLS_S))
        assert max(waits_s) < LONGEST_WAIT_S, waits_s
        assert not publishing.world.failures
    finally:
        publishing.world.close()


def test_a_bookie_that_is_back_is_written_to_again():
    publishing = Publishing(Quorums(3, 3, 2))
    try:
        killed = next(iter(publishing.machines.disks))
        publishing.machines.crash_bookie(killed, False, DOWN_S)
        assert publishing.longest_wait_s(DOWN_S) < LONGEST_WAIT_S
        (first,) = publishing.log.ledgers()
        assert publishing.longest_wait_s(5.0) < LONGEST_WAIT_S
        before, since = publishing.log.ledgers()
        assert before.ledger_id == first.ledger_id
        ledgers = publishing.machines.disks[killed].ledgers
        assert len(ledgers[since.ledger_id].entries) > 50, "the new ledger has all three copies"
    finally:
        publishing.world.close()


def test_while_a_bookie_is_away_ledgers_are_small_and_then_have_all_copies_again():
    publishing = Publishing(Quorums(3, 3, 2))
    try:
        killed = next(iter(publishing.machines.disks))
        publishing.machines.crash_bookie(killed, False, 30.0)
        assert publishing.longest_wait_s(10.0) < LONGEST_WAIT_S
        assert publishing.bookies_of_the_newest() == 3, "and two of them have copies"
        assert publishing.longest_wait_s(15.0) < LONGEST_WAIT_S
        assert publishing.bookies_of_the_newest() == 2, "auto-recovery misses nothing in it"
        assert publishing.longest_wait_s(10.0) < LONGEST_WAIT_S
        assert publishing.bookies_of_the_newest() == 3
    finally:
        publishing.world.close()
