"""One ledger's life from a seed: a writer, recoveries, and failures of their machines.

The writer continues while others recover the ledger (a zombie); recoveries overlap and die; bookies
crash and come back; ZooKeeper restarts; connections break or fall silent. Then everything heals,
the ledger is recovered once more, and the result is judged: all confirmed entries are there,
unchanged; all recoveries and closes reported the same end; and the ledger can be read without `ack
quorum - 1` bookies.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sim_machines import Machines
from sim_zookeeper import ADDRESS

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.bookkeeper.bookies import BookieLimits
from managed_ledger.storage.bookkeeper.client import BookKeeper
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.bookkeeper.reader import LedgerReader
from managed_ledger.storage.zookeeper.client import ZooKeeper
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock, World

SHAPES: Final = [(1, 1, 1), (2, 2, 2), (2, 2, 1), (3, 2, 2), (3, 3, 2), (3, 3, 3), (4, 3, 2)]
LIMITS: Final = BookieLimits(
    connect_timeout_s=1.0, add_timeout_s=1.0, read_timeout_s=1.0, quarantine_s=1.0
)
SESSION_MS: Final = 3000
ENTRIES: Final = 120
HEAL_S: Final = 300.0


@dataclass
class Told:
    """What the clients were told about the ledger, and by which process."""

    ledger_id: int = -1
    appended: dict[int, bytes] = field(default_factory=dict)
    confirmed: dict[int, float] = field(default_factory=dict)
    ends: list[tuple[str, int, int]] = field(default_factory=list)  # who, last entry, length
    refused: int = 0
    recoveries_failed: int = 0


class LedgerLife(Machines):
    def __init__(self, seed: int) -> None:
        world = World(f"ledger {seed}")
        self.rng = world.stream("scenario")
        self.quorums = Quorums(*self.rng.choice(SHAPES))
        self.told = Told()
        super().__init__(world, self.quorums.ensemble + self.rng.choice((0, 1, 1, 2)))

    # --- what the processes do

    async def _connected(self, node: Node) -> BookKeeper:
        rng = self.world.stream(node.name)
        zookeeper = ZooKeeper(ADDRESS, rng, SESSION_MS)
        await zookeeper.open(600)
        clock = SimulatedClock(self.world)
        client = BookKeeper(zookeeper, clock, rng, self.quorums, limits=LIMITS)
        await client.open()
        return client

    async def write(self, node: Node, rng: random.Random) -> None:
        """Append in bursts until there are enough entries or the ledger is lost; sometimes close
        it.
        """
        client = await self._connected(node)
        await until(lambda: len(client.bookies.registered) == len(self.disks))
        writer = await client.create()
        told = self.told
        told.ledger_id = writer.ledger_id
        window = rng.choice((1, 4, 30))
        while len(told.appended) < ENTRIES and writer.ended is None:
            while writer.pending_entries < window and writer.ended is None:
                number = len(told.appended)
                payload = b"%d %s" % (number, rng.randbytes(rng.choice((0, 10, 3000))))
                told.appended[number] = payload
                writer.append(payload, _Note(self, number).heard)
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
        if rng.random() < 0.5:
            try:
                closed = await writer.close()
                told.ends.append(("writer", closed.last_entry_id, closed.length))
            except ManagedLedgerError:
                told.refused += 1

    async def recover(self, node: Node) -> LedgerMetadata | None:
        client = await self._connected(node)
        try:
            found = await client.recover(self.told.ledger_id)
        except ManagedLedgerError:
            self.told.recoveries_failed += 1
            return None
        self.told.ends.append((node.name, found.last_entry_id, found.length))
        return found

    async def recover_at_last(self, node: Node) -> tuple[LedgerMetadata, BookKeeper]:
        client = await self._connected(node)
        while True:
            try:
                return await client.recover(self.told.ledger_id), client
            except ManagedLedgerError:
                await asyncio.sleep(0.5)

    async def read_all(self, client: BookKeeper, metadata: LedgerMetadata) -> list[bytes]:
        reader = LedgerReader(self.told.ledger_id, metadata, client.bookies)
        found: list[bytes] = []
        while len(found) <= metadata.last_entry_id:
            bodies = await reader.read(len(found), metadata.last_entry_id, 5000)
            found += [body.payload for body in bodies]
        return found

    # --- what happens to them

    def trouble(self) -> None:
        """Cause one failure; `heal` ends all of them."""
        rng = self.rng
        what = rng.choice(("bookie", "bookie", "cut", "cut", "silent", "zookeeper", "recover"))
        connections = self.world.network.connections
        if what == "bookie":
            port = rng.choice(list(self.disks))
            silently = rng.random() < 0.3
            self.crash_bookie(port, silently, rng.choice((0.01, 0.5, 4.0)))
        elif what == "zookeeper":
            self.crash_zookeeper(rng.choice((0.01, 0.5, 2.0)))
        elif what == "recover":
            if self.told.ledger_id >= 0:
                node = self.node("recovery")
                node.start(self.recover(node))
                if rng.random() < 0.3:
                    self.world.after(rng.choice((0.01, 0.1, 1.0)), node.crash)
        elif connections:
            connection = rng.choice(connections)
            if what == "cut":
                connection.break_off(ConnectionResetError("cut"))
            else:
                connection.go_silent()

    # --- the whole

    def live(self) -> None:
        """Run the seed and judge it. Raises AssertionError."""
        world, rng = self.world, self.rng
        try:
            writer = self.node("writer")
            writing = writer.start(self.write(writer, world.stream("payloads")))
            world.run(lambda: bool(self.told.confirmed), 60)
            for _ in range(rng.randrange(1, 10)):
                world.sleep(rng.choice((0.001, 0.02, 0.02, 0.3, 2.0)))
                self.trouble()
            if rng.random() < 0.3:
                writer.crash(silently=rng.random() < 0.5)
            world.sleep(rng.choice((0.0, 0.1, 3.0)))
            judge = self.node("judge")
            metadata, client = world.call(judge, self.recover_at_last(judge), HEAL_S)
            world.run(lambda: writer.dead or writing.done(), 30)
            world.sleep(15.0)  # recoveries in progress end
            self._judge(judge, metadata, client)
            assert not world.failures, world.failures
        finally:
            world.close()

    def _judge(self, judge: Node, metadata: LedgerMetadata, client: BookKeeper) -> None:
        told, last = self.told, metadata.last_entry_id
        lost = [entry for entry in told.confirmed if entry > last]
        assert not lost, f"confirmed entries {lost[:5]} lie behind the end, {last}"
        ends = {(entry, length) for _, entry, length in told.ends}
        assert ends <= {(last, metadata.length)}, f"{told.ends}, but it ends at {last}"
        expected = [told.appended[entry] for entry in range(last + 1)]
        assert metadata.length == sum(map(len, expected))
        for port in self.rng.sample(list(self.disks), self.quorums.ack - 1):
            self.bookies[port].crash()
        reading = self.read_all(client, metadata)
        found = self.world.call(judge, reading, HEAL_S)
        assert found == expected, "an entry is not what was appended"


async def until(fact: Callable[[], bool]) -> None:
    """Wait until the fact holds; only the world's own limit ends the wait."""
    while not fact():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


class _Note:
    """Records the outcome of one entry."""

    def __init__(self, life: LedgerLife, entry_id: int) -> None:
        self._life = life
        self._entry_id = entry_id

    def heard(self, error: Exception | None) -> None:
        told = self._life.told
        if error is None:
            assert self._entry_id == len(told.confirmed), "out of order"
            told.confirmed[self._entry_id] = self._life.world.now
        else:
            told.refused += 1
