"""A broker is started on a damaged copy of the data directory: flipped bits, lost and misdirected
writes, files that are cut short or gone.

It refuses to start and names the damage, and changes nothing; or it serves what is whole. Then a
consumer receives everything before a damaged entry, and an error that names it. Behind it
everything comes. Nothing else is skipped, and nothing is received that was never there.
"""

import re
from contextlib import suppress
from typing import Any, Final

from checks.history import Logs, Read
from clients.plain import read_of
from damaging import Files, counted, damaged

from features.feature import Feature
from managed_ledger.errors import CorruptStorage
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from pybroker.base.errors import PulsarError
from pybroker.client import aio
from pybroker.client.errors import PulsarException, Timeout
from pybroker.process.app import Broker
from pybroker.simulation.disk import SimulatedDisk
from pybroker.simulation.world import SimulatedClock

_PORT: Final = 7650
_COPIES: Final = 2
_WITHIN_S: Final = 60.0
_QUEUE: Final = 1
_ENTRIES: Final = re.compile(r"entries (\d+) to (\d+) of ledger (\d+) cannot be read")
_NAMED: Final = ("metadata/snapshot", "journal/", "ledgers/")


class DamagedCopy:
    """A broker on a damaged copy of the directory."""

    def __init__(self, feature: "DamagedDisks", files: Files, number: int) -> None:
        self.world = feature.world
        self.simulation = feature.simulation
        self.what, changed = damaged(files, feature.rng)
        while "journal/" in self.what and " cut " in self.what:  # as by a crash: nobody can tell
            self.what, changed = damaged(files, feature.rng)
        self.disk = SimulatedDisk(self.world, f"damaged disk {number}")
        self.disk.put_back(changed)
        self.whole = changed
        self.node = self.world.node(f"broker on damage {number}")
        self.port = _PORT + number
        self.config = feature.simulation.scenario.broker_config()
        self.is_serving = False

    def start(self) -> list[str]:
        try:
            self.world.call(self.node, self._start(), _WITHIN_S)
        except CorruptStorage as error:
            return self._refused(str(error))
        self.is_serving = True
        return []

    async def _start(self) -> None:
        backend = EmbeddedBackend(self.disk.mount(), SimulatedClock(self.world))
        rng = self.world.stream(self.node.name)
        self.broker = Broker(self.config, backend, SimulatedClock(self.world), rng)
        await self.broker.start(("127.0.0.1", self.port))

    def _refused(self, why: str) -> list[str]:
        found = []
        if not any(each in why for each in _NAMED):
            found.append(f"UNNAMED: {self.what}, and the start says {why}")
        if self.disk.copy() != self.whole and "entries" not in why:  # of a log, read later
            found.append(
                f"REWRITTEN: {self.what}, and files changed though the start was refused: {why}"
            )
        return found

    def end(self) -> None:
        self.node.crash()
        self.disk.unmount()

    def read(self, topic: str, whole: list[Read]) -> list[str]:
        """Compares the topic with what was there."""
        left, start, number = list(whole), EARLIEST, 0
        while left:
            name, number = f"after-damage-{number}", number + 1
            self.world.call(self.node, self._subscribed(topic, name, start), _WITHIN_S)
            reading = self._receive(topic, name, len(left))
            got, error = self.simulation.on_a_fresh_node(reading)
            if got != left[: len(got)]:
                return [f"SHOWN: {self.what}, and {topic} gave {got}, not {left}"]
            left = left[len(got) :]
            if not left:
                break
            if (named := _ENTRIES.search(error)) is None:
                return [f"UNNAMED: {self.what}; {topic} ends before {left[0]} with {error!r}"]
            first, last, ledger = map(int, named.groups())
            if left[0].message_id[:2] < (ledger, first):
                return [f"SKIPPED: {self.what}; {topic} ends before {left[0]} with {error}"]
            left = [each for each in left if each.message_id[:2] > (ledger, last)]
            start = Position(ledger, last)
        return []

    async def _subscribed(self, topic: str, name: str, start: Position) -> None:
        loaded = await self.broker.topics.get(topic)
        assert loaded is not None
        await loaded.subscription(name, start, {}, create=True)

    async def _receive(self, topic: str, name: str, count: int) -> tuple[list[Read], str]:
        """What comes, up to so many messages, and what the broker says if fewer come."""
        client = aio.Client(
            f"pulsar://127.0.0.1:{self.port}",
            operation_timeout_seconds=10,
            clock=SimulatedClock(self.world),
            rng=self.world.stream(f"{name} of {topic}"),
        )
        got = list[Read]()
        consumer = await client.subscribe(topic, name, receiver_queue_size=_QUEUE)
        try:
            while len(got) < count:
                message = await consumer.receive(timeout_millis=5_000)
                await consumer.acknowledge(message)
                got.append(read_of(message))
        except (Timeout, PulsarException, PulsarError):
            with suppress(PulsarException, PulsarError):
                await consumer.close()
        error = "" if len(got) == count else await self._refusal(client, topic, name)
        await client.close()
        return got, error

    async def _refusal(self, client: Any, topic: str, name: str) -> str:
        try:
            await (await client.subscribe(topic, name)).close()
        except (PulsarException, PulsarError) as error:
            return str(error)
        return ""


class DamagedDisks(Feature):
    name = "damaged disks"

    def account(self, logs: Logs) -> list[str]:
        files = self.broker.disk.copy()
        if not counted(files):
            return []
        return [
            text for number in range(_COPIES) for text in self._judge(dict(files), logs, number)
        ]

    def _judge(self, files: Files, logs: Logs, number: int) -> list[str]:
        copy = DamagedCopy(self, files, number)
        self.note(copy.what)
        found = copy.start()
        self.count("damaged copies: served" if copy.is_serving else "damaged copies: refused")
        if copy.is_serving:
            found += [text for topic, log in logs.items() for text in copy.read(topic, log)]
        copy.end()
        return found


FEATURES: Final = (DamagedDisks,)
