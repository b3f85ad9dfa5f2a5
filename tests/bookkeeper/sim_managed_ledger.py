"""A managed ledger's life from a seed: brokers append to it and take it over while bookies die.

If the bookies of a ledger die, the ledger ends and the managed ledger continues in another one,
without being reopened. The first broker may live on as a zombie when a second broker opens the
managed ledger. At the end it is opened once more and judged: confirmed entries are there, once and
in order; entries reported as certainly failed are not; a property is there if any entry appended
after it is.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from sim_ledger import LIMITS, SESSION_MS, LedgerLife
from sim_zookeeper import ADDRESS

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import LedgerEnded, ManagedLedgerError, StorageUnavailable
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.bookkeeper.backend import BookKeeperBackend, ClusterConfig
from managed_ledger.trim import Retention
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock

ENTRIES: Final = 150
GIVES_UP_S: Final = 60.0
CERTAIN: Final = (LedgerEnded, StorageUnavailable)
MARK: Final = "mark"
CONFIG: Final = ManagedLedgerConfig(
    max_entries_per_ledger=60,
    min_rollover_time_ms=0,
    retention=Retention(time_ms=-1, size_bytes=-1),
)


@dataclass
class Appends:
    """The appends of one broker, and their reported outcomes."""

    entries: list[bytes] = field(default_factory=list)
    confirmed: list[bytes] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)
    mark: int = 0  # the property's newest value, if no write of it has failed
    needs_mark: dict[bytes, int] = field(default_factory=dict)
    ledgers: int = 0


class ManagedLife(LedgerLife):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.brokers: list[Appends] = []

    # --- what brokers do

    async def open(self, node: Node) -> ManagedLedger:
        rng, clock = self.world.stream(node.name), SimulatedClock(self.world)
        config = ClusterConfig(session_timeout_ms=SESSION_MS, quorums=self.quorums, limits=LIMITS)
        while True:
            backend = BookKeeperBackend(ADDRESS, clock, rng, config)
            try:
                await backend.open()
                return await ManagedLedgerFactory(backend, clock, CONFIG).open("log")
            except ManagedLedgerError:
                backend.crash()
                await asyncio.sleep(0.5)

    async def serve(self, node: Node, name: bytes, rng: random.Random) -> None:
        """Append in bursts until the log belongs to another broker. Entries that certainly failed
        are not repeated; new ones follow them.
        """
        told = Appends()
        self.brokers.append(told)
        log = await self.open(node)
        window = rng.choice((1, 5, 30))
        under_way = 0

        def append(count: int) -> None:
            nonlocal under_way
            first = len(told.entries)
            entries = [b"%s %d" % (name, first + number) for number in range(count)]
            told.entries += entries
            if told.mark:
                told.needs_mark[entries[0]] = told.mark
            under_way += 1

            def done(position: Position | None, error: Exception | None) -> None:
                nonlocal under_way
                under_way -= 1
                if error is None:
                    told.confirmed += entries
                elif isinstance(error, CERTAIN):
                    told.refused.update(entries)

            log.append(entries, [1] * count, done)

        while len(told.confirmed) < ENTRIES and not log.closed:
            while under_way < window and not log.closed:
                if rng.random() < 0.05:
                    self._mark(log, told)
                append(rng.choice((1, 1, 3)))
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
        told.ledgers = len(log.ledgers())

    def _mark(self, log: ManagedLedger, told: Appends) -> None:
        number = told.mark + 1

        def written(done: "asyncio.Future[None]") -> None:
            if done.cancelled() or done.exception() is not None:
                told.needs_mark.clear()

        try:
            log.set_property(MARK, str(number)).add_done_callback(written)
        except ManagedLedgerError:
            return
        told.mark = number

    async def contents(self, log: ManagedLedger) -> list[bytes]:
        found: list[bytes] = []
        position = EARLIEST
        while True:
            try:
                run = await log.read(position, log.last_confirmed, 50, 1 << 16)
            except StorageUnavailable:
                await asyncio.sleep(0.5)
                continue
            if run is None:
                return found
            found += run.entries
            position = Position(run.ledger_id, run.first_entry_id + len(run.entries))

    # --- the whole

    def live(self) -> None:
        """Run the seed and judge it. Raises AssertionError."""
        world, rng = self.world, self.rng
        try:
            broker = self.node("broker")
            serving = broker.start(self.serve(broker, b"a", world.stream("appends")))
            world.run(lambda: any(each.confirmed for each in self.brokers), 60)
            for _ in range(rng.randrange(1, 8)):
                world.sleep(rng.choice((0.001, 0.02, 0.3, 2.0)))
                self.trouble()
            crashes = rng.random()
            if crashes < 0.4:
                broker.crash(silently=rng.random() < 0.5)
            elif crashes < 0.6:
                heir = self.node("broker")
                heir.start(self.serve(heir, b"b", world.stream("more appends")))
                world.run(lambda: len(self.brokers) > 1 and bool(self.brokers[1].confirmed), 60)
            else:
                ended = world.run(serving.done, GIVES_UP_S)
                assert ended, f"only {len(self.brokers[0].confirmed)} were ever confirmed"
            judge = self.node("judge")
            log = world.call(judge, self.open(judge))
            found = world.call(judge, self.contents(log))
            world.sleep(10.0)  # zombies continue
            self._judge_log(found, log)
            assert found == world.call(judge, self.contents(log)), "it has changed since"
            assert not world.failures, world.failures
        finally:
            world.close()

    def _judge_log(self, found: list[bytes], log: ManagedLedger) -> None:
        assert len(set(found)) == len(found), "an entry is there twice"
        mark = int(log.properties.get(MARK, "0"))
        for told in self.brokers:
            kept = set(told.confirmed)
            assert [each for each in found if each in kept] == told.confirmed, (
                "what was confirmed is lost or out of order"
            )
            assert [each for each in told.entries if each in kept] == told.confirmed, (
                "what was appended first was confirmed after what came later"
            )
            back = told.refused.intersection(found)
            assert not back, f"refused for certain, and there: {sorted(back)[:3]}"
            needed = max((told.needs_mark.get(each, 0) for each in found), default=0)
            assert mark >= needed or len(self.brokers) > 1, "an entry is there without its property"
