"""Moves between simulated machines: nothing is lost or changed, wherever one is interrupted."""

import itertools
import json
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
from sim_bookie import Ledger
from sim_ledger import LIMITS, SESSION_MS, LedgerLife
from sim_zookeeper import ADDRESS
from stored import RECORDS, Stored, as_moved, fill, stored_in, without_times

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger_metadata import cursor_key
from managed_ledger.position import EARLIEST
from managed_ledger.storage.backend import Backend
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.storage.bookkeeper.entry_body import master_key
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from managed_ledger.storage.importing import STATE_KEY, LedgerExists
from pybroker.formats.apache.families import in_apaches_formats
from pybroker.moving.ledger_copy import LedgerCopy
from pybroker.moving.move import Move, discard
from pybroker.moving.places import BackendSource
from pybroker.moving.plan import plan
from pybroker.moving.progress import Progress
from pybroker.moving.record import LEDGERS_PREFIX, MoveFailed, State, Sum
from pybroker.simulation.disk import SimulatedDisk
from pybroker.simulation.world import SimulatedClock

Work = Callable[[Any], Coroutine[Any, Any, Any]]


class Machines:
    """A directory and a cluster; each process on them is new, like after a restart."""

    def __init__(self, life: LedgerLife) -> None:
        self.life = life
        self.world = life.world
        self.clock = SimulatedClock(life.world)
        self.disks = {name: SimulatedDisk(life.world, name) for name in ("first", "second")}
        self._starts = 0

    def backend(self, place: str) -> Any:
        self._starts += 1
        if place != "cluster":
            return EmbeddedBackend(self.disks[place].mount(), self.clock, journal_max_bytes=2000)
        quorums = Quorums(1, 1, 1) if len(self.life.disks) == 1 else Quorums(2, 2, 2)
        config = ClusterConfig(session_timeout_ms=SESSION_MS, quorums=quorums, limits=LIMITS)
        config = in_apaches_formats(config, "east", {"boundaries": [], "numBundles": 1})
        rng = self.world.stream(f"backend {self._starts}")
        return BookKeeperBackend(ADDRESS, self.clock, rng, config)

    def on(self, place: str, work: Work) -> Any:
        """The result of `work` on the open backend."""

        async def life() -> Any:
            backend = self.backend(place)
            await backend.open()
            try:
                return await work(backend)
            finally:
                await backend.close()

        return self.world.call(self.life.node(place), life())

    def fill(self, place: str) -> Stored:
        self.on(place, lambda backend: fill(backend, self.clock))
        found: Stored = self.on(place, stored_in)
        return found

    def move(self, source: str, target: str) -> Coroutine[Any, Any, Sum]:
        """Moves like a process does, but without locks."""
        return self._move(source, self.backend(source), self.backend(target))

    async def _move(self, source: str, *backends: Any) -> Sum:
        for each in backends:
            await each.open()
        try:
            read = BackendSource(backends[0])
            if source == "cluster":
                await backends[0].refresh_ledgers()
            planned = await plan(read, self.clock.now_ms())
            return await Move(source, read, planned, backends[1], Progress()).run()
        finally:
            for each in backends:
                await each.close()

    def moved(self, source: str, target: str) -> Sum:
        total: Sum = self.world.call(self.life.node("mover"), self.move(source, target))
        return total

    def restart_bookies(self, ledgers: dict[int, Ledger]) -> None:
        """After that each bookie holds exactly these ledgers."""
        for port, disk in self.life.disks.items():
            self.life.bookies[port].crash()
            disk.ledgers = {number: ledger.copy() for number, ledger in ledgers.items()}
        self.world.sleep(5.0)
        for port in self.life.disks:
            self.life._start_bookie(port)
        self.world.sleep(5.0)

    def check(self, before: Stored, place: str) -> None:
        after: Stored = self.on(place, stored_in)
        assert without_times(after) == as_moved(before)
        new_id = self.on(place, _new_ledger_id)
        assert new_id > max(before.ledgers)


async def _new_ledger_id(backend: Backend) -> int:
    return backend.new_ledger_id()


@pytest.fixture
def machines(life: LedgerLife) -> Machines:
    return Machines(life)


def test_everything_is_in_the_cluster_and_back_again(machines: Machines) -> None:
    before = machines.fill("first")
    there = machines.moved("first", "cluster")
    machines.check(before, "cluster")
    assert there.entries == sum(map(len, before.ledgers.values()))
    machines.moved("cluster", "second")
    machines.check(before, "second")


@pytest.mark.slow
def test_what_cursors_have_in_ledgers_is_moved_out_of_the_cluster(machines: Machines) -> None:
    """Cursors with parts of batches and many holes."""
    wanted: dict[str, bytes] = {}

    async def acknowledge(backend: Any) -> None:
        factory = ManagedLedgerFactory(backend, machines.clock)
        log = await factory.open("t/ns/persistent/orders")
        parts = await log.open_cursor("parts", EARLIEST)
        holes = await log.open_cursor("holes", EARLIEST)
        for number in range(2500):
            at = await log.append_one(b"x", 3)
            if number % 2:
                holes.delete(*at)
        parts.delete_batch_indexes(at, 0b101, 3)
        await factory.close()
        for name in ("parts", "holes"):
            key = cursor_key("t/ns/persistent/orders", name)
            found = backend.metadata.get(key)
            wanted[key] = found.value

    async def found(backend: Any) -> dict[str, bytes]:
        return {key: backend.metadata.get(key).value for key in wanted}

    machines.on("cluster", acknowledge)
    machines.moved("cluster", "second")
    assert machines.on("second", found) == wanted
    assert min(map(len, wanted.values())) > 10


@pytest.mark.slow
def test_a_schema_gets_a_ledger_of_its_own_in_a_cluster_that_has_used_few_numbers(
    machines: Machines,
) -> None:
    async def use_many(backend: Any) -> None:
        factory = ManagedLedgerFactory(backend, machines.clock)
        for number in range(400):  # the cluster takes ledger ids in advance
            await factory.open(f"t/ns/persistent/{number}")
        await factory.close()
        for key, record in RECORDS.items():
            await backend.metadata.put(key, json.dumps(record).encode())

    machines.on("first", use_many)
    before: Stored = machines.on("first", stored_in)
    machines.moved("first", "cluster")
    machines.check(before, "cluster")


@pytest.mark.parametrize(("source", "target"), [("first", "cluster"), ("cluster", "second")])
def test_a_move_that_was_killed_at_its_end_can_be_repeated(
    machines: Machines, source: str, target: str
) -> None:
    before = machines.fill(source)
    assert machines.moved(source, target).entries
    machines.world.sleep(3600)
    assert machines.moved(source, target) == Sum()
    machines.check(before, target)
    machines.on(target, lambda backend: backend.metadata.put("/boots", b"2"))
    with pytest.raises(MoveFailed, match="not empty"):
        machines.moved(source, target)


def test_a_target_that_is_not_empty_is_refused(machines: Machines) -> None:
    machines.fill("first")
    before = machines.fill("second")
    with pytest.raises(MoveFailed, match="not empty"):
        machines.moved("first", "second")
    assert machines.on("second", stored_in) == before


def test_an_unfinished_move_from_elsewhere_is_not_gone_on_with(machines: Machines) -> None:
    machines.fill("first")
    machines.on("second", lambda backend: backend.metadata.put(STATE_KEY, State("x").encode()))
    with pytest.raises(MoveFailed, match="from x"):
        machines.moved("first", "second")


def test_a_ledger_of_the_same_number_in_the_cluster_is_refused(machines: Machines) -> None:
    """It may belong to another application."""
    before = machines.fill("first")
    machines.life.tree.make(f"/ledgers/00/0000/L{max(before.ledgers):04}")
    with pytest.raises(LedgerExists, match=f"ledger {max(before.ledgers)} exists"):
        machines.moved("first", "cluster")


def test_entries_of_a_deleted_ledger_of_the_same_number_are_refused(machines: Machines) -> None:
    """Bookies free the old entries later, and would free the new ones, too."""
    before = machines.fill("first")
    machines.restart_bookies({min(before.ledgers): Ledger(master_key(b""), {0: b""})})
    with pytest.raises(LedgerExists, match="deleted"):
        machines.moved("first", "cluster")


def test_a_copy_that_was_given_up_can_be_repeated_once_bookies_freed_it(machines: Machines) -> None:
    before = machines.fill("first")
    mover = machines.life.node("mover")
    mover.start(machines.move("first", "cluster"))
    machines.world.sleep(0.1)
    mover.crash()
    assert machines.on("cluster", discard) > 0
    found = machines.on("cluster", stored_in)
    assert (found.items, found.lists) == ({}, {})
    with pytest.raises(MoveFailed, match="no unfinished move"):
        machines.on("cluster", discard)
    machines.restart_bookies({})
    machines.moved("first", "cluster")
    machines.check(before, "cluster")


@pytest.mark.parametrize("appends", [1, 4, 12])
@pytest.mark.parametrize("others_recover", [False, True])
def test_a_move_goes_on_after_bookies_were_away(
    machines: Machines, appends: int, others_recover: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile BookKeeper's auto-recovery may have fenced and closed what is not whole."""
    before, append, appended = machines.fill("first"), LedgerCopy._append, itertools.count(1)

    async def interrupted(self: LedgerCopy, piece: Any) -> None:
        await append(self, piece)
        if next(appended) == appends:
            for port in machines.life.disks:
                machines.life.crash_bookie(port, False, 20.0)

    monkeypatch.setattr(LedgerCopy, "_append", interrupted)
    with pytest.raises(ManagedLedgerError):
        machines.moved("first", "cluster")
    machines.world.sleep(30)

    async def recover(backend: Any) -> None:
        keys = backend.metadata.keys(LEDGERS_PREFIX)
        unfinished = [key for key in keys if not backend.metadata.get(key).value]
        assert unfinished, "else nothing was interrupted"
        for key in unfinished:
            await backend._client.recover(int(key.removeprefix(LEDGERS_PREFIX)))

    if others_recover:
        machines.on("cluster", recover)
    machines.moved("first", "cluster")
    machines.check(before, "cluster")


def killed_and_repeated(machines: Machines, source: str, target: str, moment: float) -> bool:
    """Whether the mover was killed before it was done. If so, brokers refuse the target until a
    repeated move is complete.
    """
    before = machines.fill(source)
    mover = machines.life.node("mover")
    moving = mover.start(machines.move(source, target))
    if target == "cluster":
        machines.world.after(moment / 1000, mover.crash)
    else:
        machines.disks[target].crash_after(int(moment), mover.crash)
    machines.world.run(lambda: moving.done() or mover.dead, 600)
    is_done = moving.done() and not mover.dead
    mover.crash()
    if not is_done:
        if target != "cluster":
            machines.disks[target].lose_power()
        found: Stored = machines.on(target, stored_in)
        if STATE_KEY in found.items or found == Stored({}, {}, {}):
            machines.moved(source, target)  # otherwise it was killed after its last step
    machines.check(before, target)
    return not is_done


def kills(source: str, target: str, moments: Iterable[float]) -> int:
    """The number of kills until the first one that was too late. `moments` are operations of the
    target's disk, or milliseconds.
    """
    for count, moment in enumerate(moments):
        life = LedgerLife(0)
        life.world.sleep(5.0)
        try:
            if not killed_and_repeated(Machines(life), source, target, moment):
                return count
        finally:
            life.world.close()
    return count + 1


@pytest.mark.slow
def test_a_move_to_a_directory_goes_on_after_a_power_failure() -> None:
    assert kills("cluster", "second", range(2, 90, 17)) > 3


@pytest.mark.slow
def test_a_move_to_a_cluster_goes_on_after_a_kill() -> None:
    assert kills("first", "cluster", range(2, 400, 43)) > 4


@pytest.mark.slow
@pytest.mark.parametrize("source", ["cluster", "first"])
def test_a_move_to_a_directory_goes_on_after_a_power_failure_anywhere(source: str) -> None:
    assert kills(source, "second", itertools.count(1)) > 50


@pytest.mark.slow
def test_a_move_to_a_cluster_goes_on_after_a_kill_anywhere() -> None:
    assert kills("first", "cluster", itertools.count(1, 3)) > 50
