"""Space: consumed or deleted data is freed, needed data stays, full disks recover."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from checks.history import Logs
from checks.space import leftovers, not_trimmed
from clients.admin import REFUSALS, Unanswered, ask
from clients.plain import Process, value_of
from clients.streaming import StreamConsumer, StreamProducer
from sim_scenario import Scenario

from features.feature import Feature, half_way
from managed_ledger.storage.embedded.room import RESERVE, RESERVE_BYTES
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName

if TYPE_CHECKING:
    from sim_seed import Simulation

STREAM: Final = "persistent://public/default/stream"
BALLAST: Final = "persistent://public/default/ballast"
MOMENT: Final = "persistent://public/default/moment"
MOMENT_S: Final = 1.0
ROOM_BYTES: Final = 1 << 30  # so that the broker knows its room
BALLAST_MESSAGES: Final = 60
CRASH_CHANCE: Final = 0.3
UNTIL_TRIMMED_S: Final = 45.0  # a few rounds of housekeeping


class Trimming(Feature):
    """Short retention and small ledgers: what each durable subscription has consumed is deleted
    after the retention time, and nothing else is.
    """

    name = "trimming"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(
            scenario,
            retention=rng.choice((0, 1)),
            max_entries_per_ledger=rng.choice((3, 8)),
            guards=(*scenario.guards, (STREAM, "fast"), (STREAM, "slow")),
        )

    def begin(self) -> None:
        common = self.world, self.history
        self.producer = StreamProducer(*common, "stream", topic=STREAM, count=40)
        self.consumers = [
            StreamConsumer(*common, f"stream-{name}", topic=STREAM, subscription=name, slow=slow)
            for name, slow in (("fast", False), ("slow", True))
        ]
        self.simulation.producers.append(self.producer)
        self.simulation.others += self.consumers

    def rest(self) -> None:
        for consumer in self.consumers:
            self.simulation.wait(
                lambda consumer=consumer: not consumer.missing(self.producer),
                f"{consumer.name}, which was not handed everything",
            )

    def account(self, logs: Logs) -> list[str]:
        """Writes once more, so that the last ledger is closed."""
        self.simulation.on_a_fresh_node(self._write_a_little())
        self.world.sleep(60.0 * self.simulation.scenario.retention + UNTIL_TRIMMED_S)
        if not_trimmed(self.broker):  # a snapshot may have held them until just now
            self.world.sleep(UNTIL_TRIMMED_S)
        found = [text for consumer in self.consumers for text in consumer.violations()]
        return [*found, *not_trimmed(self.broker), *leftovers(self.broker)]

    async def _write_a_little(self) -> None:
        client = self.simulation.auditor()
        consumers = [await self.simulation.take_over(client, worker) for worker in self.consumers]
        producer = await client.create_producer(STREAM)
        count = 3 * self.simulation.scenario.max_entries_per_ledger
        for number in range(count):
            await producer.send(f"last/{number}|".encode())
        for consumer in consumers:
            while value_of(message := await consumer.receive(60_000)) != f"last/{count - 1}":
                await consumer.acknowledge(message)
            await consumer.acknowledge_cumulative(message)
        await client.close()


class Filler(Process):
    """Fills the disk, then deletes a topic: there is room again, without a restart."""

    def __init__(self, *args: Any, feature: "FullDisk") -> None:
        super().__init__(*args)
        self.feature = feature
        self.broker = feature.broker
        self.written = 0

    async def work(self, client: Any) -> None:
        """An earlier life may have done some of the steps."""
        if not self.feature.filled_bytes:
            if self.rng.random() < 0.3:
                await self._use_the_reserve(client)
            await self._write_ballast(client)
            await self.pause(5.0)
            await self._until_there_is_a_reserve()
            self.feature.fill()
        await self.pause(3.0)
        gave_up_s = self.world.now + 90.0
        while not await self._deleted():
            await self.pause(1.0)
            if self.world.now > gave_up_s:
                self.history.failures.append("NOT HEALED: nothing can be deleted on a full disk")
                break
        else:
            await self._use_the_room()
        self.feature.make_room()

    async def _use_the_reserve(self, client: Any) -> None:
        """Fills the disk for a moment, and deletes a topic meanwhile."""
        producer = await client.create_producer(MOMENT)
        await producer.send(b"soon deleted")
        await producer.close()
        self.feature.fill_for_a_moment()
        try:
            await ask(self.broker, lambda topics: topics.delete(TopicName.parse(MOMENT), True))
        except (Unanswered, *REFUSALS) as error:
            self.note(f"deletion: {error!r}")

    async def _until_there_is_a_reserve(self) -> None:
        """Waits for the reserve. The broker may just have used it on a full disk; it is guaranteed
        once the disk has had room for some seconds.
        """
        gave_up_s = self.world.now + 60.0
        while self.feature.reserve_bytes() < RESERVE_BYTES:
            await self.pause(1.0)
            if self.world.now > gave_up_s:
                self.history.failures.append("NO RESERVE: there has been room for a minute")
                break

    async def _write_ballast(self, client: Any) -> None:
        self.written = 0
        producer = await client.create_producer(BALLAST)
        while self.written < BALLAST_MESSAGES:
            await producer.send(bytes(3000))
            self.written += 1
        # The producer stays open: an unused topic might be deleted too early.

    async def _deleted(self) -> bool:
        """Deletes the ballast; False to retry. After a crash in the middle, the next start must
        complete the deletion, and find room for that.
        """
        crash = half_way(self.rng) if self.rng.random() < CRASH_CHANCE else None
        if crash is not None and self.broker.serving:
            self.history.counts["crashes in a deletion on a full disk"] += 1
        ballast = TopicName.parse(BALLAST)
        try:
            await ask(self.broker, lambda topics: topics.delete(ballast, True), crash)
        except TopicNotFound:
            return True
        except (Unanswered, *REFUSALS) as error:
            self.note(f"deletion: {error!r}")
            return False
        return True

    async def _use_the_room(self) -> None:
        for _ in range(60):
            if self.feature.data_bytes() < self.feature.filled_bytes - 100_000:
                return
            await self.pause(2.0)
        self.history.failures.append("NOT HEALED: what was deleted is still on the full disk")


class FullDisk(Feature):
    name = "full disk"
    filled_bytes = 0  # bytes on the disk when it was filled, without the reserve

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        # A journal that is soon full, or one that must be replaced earlier.
        journal_max_bytes = rng.choice((10_000, 64 * 1024 * 1024))
        return replace(
            scenario,
            storage={**scenario.storage, "journal_max_bytes": journal_max_bytes},
            guards=(*scenario.guards, (BALLAST, "guard")),  # prevents trimming
        )

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__(simulation)
        self.make_room()  # from the first start on

    def begin(self) -> None:
        filler = Filler(self.world, self.history, "filler", feature=self)
        self.simulation.producers.append(filler)

    def data_bytes(self) -> int:
        return self.broker.disk.used_bytes() - self.reserve_bytes()

    def reserve_bytes(self) -> int:
        reserve = self.broker.disk.names.get(RESERVE)
        return len(reserve.content) if reserve else 0

    def fill(self) -> None:
        self.count("disks filled")
        self.broker.disk_had_faults = True
        room_bytes = self.rng.choice((0, 500, 3000, 20_000))
        disk = self.broker.disk
        disk.fill_up(room_bytes)
        disk.usual_capacity_bytes = disk.capacity_bytes  # until the filler is done
        self.filled_bytes = self.data_bytes()
        self.note(f"the disk is full: {self.filled_bytes} bytes, {room_bytes} are left")

    def fill_for_a_moment(self) -> None:
        self.count("disks filled for a moment")
        self.broker.disk_had_faults = True
        self.broker.disk.fill_up(0)
        self.world.after(MOMENT_S, self.broker.disk.make_room)

    def make_room(self) -> None:
        self.broker.disk.usual_capacity_bytes = ROOM_BYTES
        self.broker.disk.make_room()


FEATURES: Final = (Trimming, FullDisk)
