"""Slow reads that return less than requested, and a cache that forgets at random.

The storage guarantees no more: the cache may hold anything, a read returns one entry or some, and
other work runs meanwhile. Trimming also comes sooner, during reads.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from checks.history import Txn
from clients.transacting import Transformer
from sim_scenario import Scenario

from features.feature import Feature
from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.backend import Appended, EntryRun, LedgerSummary
from managed_ledger.storage.embedded.journal import EmbeddedBackend

if TYPE_CHECKING:
    from sim_seed import Simulation

TRIM_INTERVALS_S: Final = (0.2, 1.0, 10.0)
KINDS: Final = ("Shared", "KeyShared")
OUTPUT: Final = "persistent://public/default/out-impatient"
IMPATIENCE: Final = 0.4
KEPT_IN_ORDER: Final = 0.05  # of the slow reads
VISITED: Final = 0.3
RESTING_S: Final = 0.005


@dataclass(slots=True)
class Luck:
    """How slow and how forgetful this seed's storage is."""

    rng: random.Random
    forgets: float
    most_entries: int
    most_s: float

    @classmethod
    def draw(cls, rng: random.Random) -> "Luck":
        forgets = rng.choice((0.05, 0.3, 0.9))
        return cls(rng, forgets, rng.choice((1, 3, 1000)), rng.choice((0.0, 0.02, 0.1, 0.5)))

    def remembers(self) -> bool:
        return self.rng.random() >= self.forgets

    def at_most(self, entries: int) -> int:
        return self.rng.randint(1, max(1, min(entries, self.most_entries)))


class SlowBackend(EmbeddedBackend):
    """Provides the contract of the embedded engine, and no more."""

    def __init__(
        self, luck: Luck, meanwhile: Callable[[int], None], *args: Any, **options: Any
    ) -> None:
        """`meanwhile` is called with the ledger's id when a slow read begins."""
        super().__init__(*args, **options)
        self._luck = luck
        self._meanwhile = meanwhile
        self._until_appended: dict[int, asyncio.Event] = {}

    def append(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        appended: Appended,
        tag: bytes = b"",
    ) -> bool:
        def done(error: Exception | None) -> None:
            appended(error)
            if (event := self._until_appended.pop(ledger_id, None)) is not None:
                event.set()

        return super().append(ledger_id, first_entry_id, entries, message_counts, done, tag)

    def read_cached(
        self, ledger_id: int, first: int, last: int, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        if not self._luck.remembers():
            return None
        most = self._luck.at_most(max_entries)
        return super().read_cached(ledger_id, first, last, most, max_bytes)

    async def read(
        self, ledger_id: int, first: int, last: int, max_entries: int, max_bytes: int
    ) -> EntryRun:
        """Other work runs before the read, and before its result is returned."""
        await self._pause(ledger_id)
        most = self._luck.at_most(max_entries)
        run = await super().read(ledger_id, first, last, most, max_bytes)
        await self._pause(ledger_id)
        return run

    async def recover_ledger(self, ledger_id: int) -> LedgerSummary:
        summary = await super().recover_ledger(ledger_id)
        await self._pause(ledger_id)
        return summary

    async def _pause(self, ledger_id: int) -> None:
        """Waits not at all, for some time, or until something is appended, with a limit."""
        rng, most_s = self._luck.rng, self._luck.most_s
        kind = rng.choice(("none", "time", "until appended")) if most_s else "none"
        if kind != "none":
            self._meanwhile(ledger_id)
        if kind == "time":
            await asyncio.sleep(most_s * rng.random())
        elif kind == "until appended":
            event = self._until_appended.setdefault(ledger_id, asyncio.Event())
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), most_s)


class Impatient(Transformer):
    """Often requests redelivery of all that it holds, and acknowledges that in a transaction at the
    same time: the messages are being read again, and must not be delivered.
    """

    async def _acknowledge(self, consumer: Any, batch: Any, txn: Any, record: Txn) -> None:
        if self.rng.random() < IMPATIENCE:
            consumer.redeliver_unacknowledged_messages()
            await self.pause(0.02)
        await super()._acknowledge(consumer, batch, txn, record)


class SlowReads(Feature):
    name = "slow reads"

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        return replace(scenario, guards=(*scenario.guards, (OUTPUT, "guard")))

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__(simulation)
        self.keeps_in_order = KEPT_IN_ORDER
        self.luck = Luck.draw(self.rng)
        self.broker.new_backend = partial(SlowBackend, self.luck, self._meanwhile)
        self.trim_interval_s = self.rng.choice(TRIM_INTERVALS_S)
        self.broker.on_serving.append(self._trim_soon)

    def begin(self) -> None:
        kind = self.rng.choice(KINDS)
        topic = self.rng.choice(self.simulation.scenario.topics)
        for number in range(self.rng.randint(1, 2)):
            self.simulation.transformers.append(
                Impatient(
                    self.world, self.history, f"impatient-{number}", topic=topic,
                    subscription=f"impatient-{kind}", kind=kind, output="out-impatient",
                    cumulative=False,
                )
            )  # fmt: skip
        self.simulation.outputs.append("out-impatient")

    def _meanwhile(self, ledger_id: int) -> None:
        """Does what housekeeping may do with a ledger during a read."""
        luck = self.rng.random()
        if luck >= max(VISITED, self.keeps_in_order) or self.broker.broker is None:
            return
        for ledger in self.broker.broker.ledgers._ledgers.values():
            if not ledger.closed and any(info.ledger_id == ledger_id for info in ledger.ledgers()):
                self._look_after(ledger, luck < self.keeps_in_order)
                break

    def _look_after(self, ledger: ManagedLedger, keep_in_order: bool) -> None:
        """Visits the ledger as regular work does, and perhaps starts slow work on it."""
        for visited in ledger.on_visit:
            visited()
        if keep_in_order:
            what = self.rng.choice((ledger.trim, ledger.roll_over, ledger.flush_cursors))
            self.count("logs kept in order during a read")
            self.broker.begin(what(), f"{what.__name__} of {ledger.name}")

    def _trim_soon(self) -> None:
        assert self.broker.broker is not None
        self.broker.broker.ledgers._trim_interval_s = self.trim_interval_s

    def heal(self) -> None:
        """The storage stays as forgetful, but fast enough for an account that reads every entry.
        Ledgers that it is about to read are not closed, because they could be trimmed then.
        """
        self.keeps_in_order = 0.0
        self.luck.most_s = min(self.luck.most_s, RESTING_S)


FEATURES: Final = (SlowReads,)
