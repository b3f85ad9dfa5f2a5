"""Managed ledgers alone over a simulated disk: appends, cursors and properties through crashes.

Each life of the process opens everything and checks it against what earlier lives were told. Then
it works with several ledgers at the same time, and crashes at some disk operation. `Promises`
records what was told.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from sim_scenario import draw_storage

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.embedded.journal import EmbeddedBackend
from pybroker.simulation.disk import SimulatedDisk
from pybroker.simulation.node import Node
from pybroker.simulation.world import SimulatedClock, World

LIVES = 4
CURSOR = "cursor"


@dataclass(slots=True)
class Promises:
    """The promises about one managed ledger."""

    entries: dict[Position, bytes] = field(default_factory=dict)  # acknowledged, or read
    sent: dict[bytes, int] = field(default_factory=dict)  # every payload, with its number
    flushed_mark: Position = EARLIEST  # a cursor's flush returned after this
    flushed_deleted: set[Position] = field(default_factory=set)
    asked_mark: Position = EARLIEST  # the furthest position ever acknowledged
    asked_deleted: set[Position] = field(default_factory=set)
    properties: dict[str, set[str | None]] = field(default_factory=dict)  # what each may be


class StorageSimulation:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.stream("storage")
        self.disk = SimulatedDisk(self.world)
        self.clock = SimulatedClock(self.world)
        self.violations: list[str] = []
        self.names = [f"ledger-{n}" for n in range(self.rng.randint(1, 3))]
        self.promises = {name: Promises() for name in self.names}
        self.config = ManagedLedgerConfig(
            max_entries_per_ledger=self.rng.choice((5, 20, 1000)), min_rollover_time_ms=0
        )
        self.options = draw_storage(self.rng)
        self._number = 0

    def run(self) -> list[str]:
        for life in range(LIVES):
            last = life == LIVES - 1
            node = self.world.node(f"storage.{life}")
            if not last:
                self._crash_at_some_operation(node)
            task = node.start(self._live(last))
            self.world.run(lambda node=node, task=task: node.dead or task.done(), within_s=600)
            if not node.dead:
                self._ended(node, task)
            if self.rng.random() < 0.6:
                self.disk.lose_power()
        self.violations += self.world.failures
        self.world.close()
        return self.violations

    def _crash_at_some_operation(self, node: Node) -> None:
        count = self.rng.choice((self.rng.randint(1, 10), self.rng.randint(10, 200)))
        self.disk.crash_after(count, node.crash)

    def _ended(self, node: Node, task: Any) -> None:
        if not task.done():
            self.violations.append(f"STUCK: {node.name}")
        elif task.exception() is not None:
            self.violations.append(f"FAILED: {node.name}: {task.exception()!r}")
        node.crash()

    async def _live(self, last: bool) -> None:
        backend = EmbeddedBackend(
            self.disk.mount(), self.clock, on_fatal=self._fatal, **self.options
        )
        await backend.open()
        factory = ManagedLedgerFactory(backend, self.clock, self.config)
        ledgers = [await factory.open(name) for name in self.names]
        for ledger in ledgers:
            await self._verify(ledger)
        if last:
            await factory.close()
            await backend.close()
            return
        if self.rng.random() < 0.3:  # the entries just read are promises, too; were they durable?
            node = asyncio.get_running_loop()
            self.disk.crash_after(self.rng.randint(1, 4), node.crash)
        await asyncio.gather(*(self._work(ledger) for ledger in ledgers))
        if self.rng.random() < 0.5:
            await factory.close()
            await backend.close()
        else:
            await asyncio.sleep(3 * self.rng.random())

    def _fatal(self, error: Exception) -> None:
        self.violations.append(f"FATAL without a fault: {error!r}")

    # --- working

    async def _work(self, ledger: Any) -> None:
        cursor = await ledger.open_cursor(CURSOR, EARLIEST)
        for _ in range(self.rng.randint(5, 30)):
            action = self.rng.choice((self._append, self._append, self._delete, self._other))
            await action(ledger, cursor)
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.3)))

    async def _append(self, ledger: Any, cursor: Any) -> None:
        promises = self.promises[ledger.name]
        waiting = []
        for _ in range(self.rng.randint(1, 4)):
            entries = [self._payload(promises) for _ in range(self.rng.randint(1, 4))]
            done = asyncio.get_running_loop().create_future()
            waiting.append(done)
            ledger.append(entries, [1] * len(entries), self._appended(promises, entries, done))
        await asyncio.gather(*waiting)

    def _payload(self, promises: Promises) -> bytes:
        self._number += 1
        payload = f"{self._number}:".encode() + b"x" * self.rng.choice((0, 3, 600, 5000))
        promises.sent[payload] = self._number
        return payload

    def _appended(self, promises: Promises, entries: list[bytes], done: Any) -> Any:
        def appended(first: Position | None, error: Exception | None) -> None:
            if error is not None:
                self.violations.append(f"APPEND FAILED without a fault: {error!r}")
            else:
                for offset, entry in enumerate(entries):
                    promises.entries[Position(first.ledger_id, first.entry_id + offset)] = entry
            done.set_result(None)

        return appended

    async def _delete(self, ledger: Any, cursor: Any) -> None:
        promises = self.promises[ledger.name]
        for position in list(promises.entries):
            if position <= cursor.mark_delete_position or self.rng.random() < 0.6:
                continue
            promises.asked_deleted.add(position)
            cursor.delete(*position)
        if promises.entries and self.rng.random() < 0.3:
            position = self.rng.choice(list(promises.entries))
            promises.asked_mark = max(promises.asked_mark, position)
            cursor.mark_delete(position)

    async def _other(self, ledger: Any, cursor: Any) -> None:
        promises = self.promises[ledger.name]
        action = self.rng.choice(("flush", "property", "trim", "roll over"))
        if action == "flush":
            mark, deleted = cursor.mark_delete_position, _deleted(cursor, promises)
            await cursor.flush()
            promises.flushed_mark, promises.flushed_deleted = mark, deleted
        elif action == "property":
            key, value = self.rng.choice("ab"), str(self.rng.random())
            promises.properties.setdefault(key, {None}).add(value)
            await ledger.set_property(key, value)
            promises.properties[key] = {value}
        elif action == "trim":
            await ledger.trim()
        else:
            await ledger.roll_over()

    # --- checking

    async def _verify(self, ledger: Any) -> None:
        promises = self.promises[ledger.name]
        found = await _read_all(ledger)
        self._verify_entries(ledger, promises, found)
        self._verify_properties(ledger, promises)
        cursor = await ledger.open_cursor(CURSOR, EARLIEST)
        self._verify_cursor(ledger.name, cursor, promises)
        promises.entries = dict(found)

    def _verify_entries(self, ledger: Any, promises: Promises, found: Any) -> None:
        first = ledger.first_position
        for position, entry in promises.entries.items():
            gone = position.ledger_id < first.ledger_id
            if gone and self._may_be_trimmed(position, promises):
                continue
            if found.get(position) != entry:
                self._violated(ledger.name, f"LOSS: {position} holds {found.get(position)!r:.20}")
        numbers = [promises.sent.get(entry, -1) for entry in found.values()]
        if -1 in numbers:
            self._violated(ledger.name, "INVENTED: an entry that nobody appended")
        if numbers != sorted(set(numbers)):
            self._violated(ledger.name, f"ORDER or DUPLICATE: {numbers}")

    def _may_be_trimmed(self, position: Position, promises: Promises) -> bool:
        return position <= promises.asked_mark or position in promises.asked_deleted

    def _verify_properties(self, ledger: Any, promises: Promises) -> None:
        for key, allowed in promises.properties.items():
            value = ledger.properties.get(key)
            if value not in allowed:
                self._violated(ledger.name, f"PROPERTY {key} is {value!r}, not in {allowed}")
            promises.properties[key] = {value}

    def _verify_cursor(self, name: str, cursor: Any, promises: Promises) -> None:
        for position in promises.flushed_deleted:
            if not cursor.is_deleted(position):
                self._violated(name, f"FLUSHED ACK LOST: {position}")
        if cursor.mark_delete_position < promises.flushed_mark:
            self._violated(name, f"MARK WENT BACK to {cursor.mark_delete_position}")
        for position in promises.entries:
            asked = position <= promises.asked_mark or position in promises.asked_deleted
            if cursor.is_deleted(position) and not asked:
                self._violated(name, f"ACKNOWLEDGED BY NOBODY: {position}")

    def _violated(self, name: str, what: str) -> None:
        self.violations.append(f"{name}: {what}")


def _deleted(cursor: Any, promises: Promises) -> set[Position]:
    return {position for position in promises.entries if cursor.is_deleted(position)}


async def _read_all(ledger: Any) -> dict[Position, bytes]:
    found: dict[Position, bytes] = {}
    position = ledger.first_position
    while (run := await ledger.read(position, ledger.last_confirmed, 10, 1 << 20)) is not None:
        for offset, entry in enumerate(run.entries):
            found[Position(run.ledger_id, run.first_entry_id + offset)] = bytes(entry)
        position = Position(run.ledger_id, run.first_entry_id + len(run.entries))
    return found
