"""Managed ledgers on a disk that repeatedly fills up and runs out of descriptors.

Any refusal is for lack of room, has no effect, and does not block later operations. Concurrent
operations share one queue, in which some succeed and some do not.
"""

import asyncio
from contextlib import suppress
from typing import Any

from sim_storage import CURSOR, Promises, StorageSimulation

from managed_ledger.errors import ManagedLedgerError, StorageFull
from managed_ledger.position import EARLIEST, Position

_CAPACITY_BYTES = 200 << 20
_TIMES = 20
_FREE_BYTES = (0, 0, 500, 5_000, 200_000, 900_000, 3 << 20)


class FullStorageSimulation(StorageSimulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.disk.usual_capacity_bytes = _CAPACITY_BYTES
        self._filling: asyncio.Task[None] | None = None

    async def _live(self, last: bool) -> None:
        self._filling = None
        self._have_room()
        try:
            with suppress(StorageFull):  # at its end; it begins with room
                await super()._live(last)
        finally:
            if self._filling is not None:
                self._filling.cancel()
            self._have_room()

    def _have_room(self) -> None:
        self.disk.make_room()
        self.disk.descriptors_out = False

    async def _fill(self) -> None:
        for _ in range(_TIMES):
            await asyncio.sleep(self.rng.choice((0.001, 0.05, 0.3)))
            self.disk.fill_up(self.rng.choice(_FREE_BYTES))
            self.disk.descriptors_out = self.rng.random() < 0.3
            await asyncio.sleep(self.rng.choice((0.0005, 0.002, 0.05, 0.3, 2)))
            self._have_room()

    # --- working

    async def _work(self, ledger: Any) -> None:
        cursor = await ledger.open_cursor(CURSOR, EARLIEST)
        self._filling = self._filling or asyncio.create_task(self._fill())
        actions = (self._append, self._append, self._delete, self._other, self._other)
        working: list[asyncio.Task[None]] = []
        for _ in range(self.rng.randint(5, 60)):
            for _ in range(self.rng.choice((1, 1, 3))):
                action = self.rng.choice(actions)
                working.append(asyncio.create_task(self._tried(action, ledger, cursor)))
            if self.rng.random() < 0.4:
                await working[-1]
            await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.3)))
        await asyncio.gather(*working)
        if ledger.closed:
            self._violated(ledger.name, "STUCK: it takes no more")

    async def _tried(self, action: Any, ledger: Any, cursor: Any) -> None:
        try:
            await action(ledger, cursor)
        except StorageFull:
            pass
        except ManagedLedgerError as error:
            self._violated(ledger.name, f"REFUSED for another reason: {error!r}")

    def _appended(self, promises: Promises, entries: list[bytes], done: Any) -> Any:
        kept = super()._appended(promises, entries, done)

        def appended(first: Position | None, error: Exception | None) -> None:
            if not isinstance(error, StorageFull):
                kept(first, error)
                return
            for entry in entries:
                del promises.sent[entry]
            done.set_result(None)

        return appended

    async def _other(self, ledger: Any, cursor: Any) -> None:
        action = self.rng.choice(("property", "property", "trim", "roll over"))
        if action == "property":
            await self._set_property(ledger, self.rng.choice("abcdef"), str(self.rng.random()))
        elif action == "trim":
            await ledger.trim()
        else:
            await ledger.roll_over()

    async def _set_property(self, ledger: Any, key: str, value: str) -> None:
        """Other tasks may set the same property meanwhile."""
        allowed = self.promises[ledger.name].properties
        before = allowed.get(key, {None})
        allowed[key] = before | {value}
        try:
            await ledger.set_property(key, value)
        except StorageFull:
            allowed[key] = allowed[key] - {value}
            if ledger.properties.get(key) not in allowed[key]:
                self._violated(ledger.name, f"REFUSED BUT THERE: {key} is {value}")
        else:
            if len(before) == 1 and allowed[key] == before | {value}:
                allowed[key] = {value}
