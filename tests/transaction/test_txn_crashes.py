"""Transactions over two topics and a subscription, on a slow disk, killed at any moment.

Whatever was in flight: a transaction whose COMMIT was answered is visible as a whole. One that was
not asked to commit is invisible. One whose answer was lost is visible as a whole or not at all. Its
input is acknowledged exactly if its output is visible.
"""

import asyncio
import random
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from aside_world import AsideWorld, ChangingWorld
from txn_world import ABORT, COMMIT, COPIES, ORDERS, StorageToBreak, World
from virtual_loop import run_virtually

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import Position
from managed_ledger.storage.group_commit import Group
from pybroker.base.errors import PulsarError
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.commit_order import commit_order_buffer
from pybroker.transaction.pending_acks.records import PendingAck

WORKERS, LIVES, INPUTS = 6, 4, 400
SETTINGS = {
    "transaction_metadata_snapshot_entries": 40,
    "transaction_buffer_snapshot_max_transaction_count": 15,
    "transaction_pending_ack_log_entries": 25,
}


class SlowStorage(StorageToBreak):
    """Writes take up to 20 ms, so a kill finds some of everything in flight."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def _write(self, group: Group) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        loop.call_later(self._rng.random() / 50, self._finish, group, done)
        return done

    def _new(self) -> "SlowStorage":
        return SlowStorage(self._rng)


@dataclass
class Attempt:
    txn_id: TxnId
    source: Position
    payloads: list[str] = field(default_factory=list)
    asked: str = "nothing"
    answered: bool = False


class Workload:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.attempts: list[Attempt] = []
        self.sources: list[Position] = []

    async def prepare(self, world: World) -> None:
        await world.cursor("sub")
        for topic in (ORDERS, COPIES):
            await world.cursor("keeps everything from being trimmed", topic)
        first = await world.send(None, *[f"input{n}" for n in range(INPUTS)])
        self.sources = [Position(first.ledger_id, first.entry_id + n) for n in range(INPUTS)]

    async def work(self, world: World) -> None:
        while True:
            try:
                await self.attempt(world)
            except (PulsarError, ManagedLedgerError):
                await asyncio.sleep(0.01)

    async def attempt(self, world: World) -> None:
        txn_id = await world.begin_on(ORDERS, COPIES)
        await world.add_subscription(txn_id)
        attempt = Attempt(txn_id, self.rng.choice(self.sources))
        self.attempts.append(attempt)
        acks = await world.acks()
        await acks.acknowledge(txn_id, [PendingAck(attempt.source)])
        for number in range(self.rng.randint(1, 4)):
            payload = f"{txn_id}-{number}"
            attempt.payloads.append(payload)
            await world.send(txn_id, payload, topic=self.rng.choice([ORDERS, COPIES]))
        attempt.asked = self.rng.choice(["commit", "commit", "abort", "nothing"])
        if attempt.asked != "nothing":
            await world.end(txn_id, COMMIT if attempt.asked == "commit" else ABORT)
            attempt.answered = True

    async def check(self, world: World) -> None:
        shown = [*await world.read(ORDERS), *await world.read(COPIES)]
        cursor = await world.cursor("sub")
        assert len(set(shown)) == len(shown)
        consumed = set()
        for attempt in self.attempts:
            visible = [payload for payload in attempt.payloads if payload in shown]
            assert visible in ([], attempt.payloads), f"{attempt} shows in part: {visible}"
            if attempt.asked == "commit" and attempt.answered:
                assert visible, f"{attempt} was lost"
            if attempt.asked != "commit":
                assert not visible, f"{attempt} shows"
            if visible:
                assert attempt.source not in consumed, f"{attempt}: its input was used twice"
                consumed.add(attempt.source)
        for source in self.sources:
            assert cursor.is_deleted(source) == (source in consumed), source


async def lives(seed: int, kind: type[World]) -> None:
    rng = random.Random(seed)
    workload = Workload(rng)
    world = await kind(SlowStorage(rng), **SETTINGS).start()
    await workload.prepare(world)
    for _ in range(LIVES):
        workers = [asyncio.ensure_future(workload.work(world)) for _ in range(WORKERS)]
        await asyncio.sleep(rng.uniform(0.2, 8))
        storage = world.storage.durable_copy()
        for worker in workers:
            worker.cancel()
        await world.stopped()
        world = await kind(storage, **SETTINGS).start()
    await asyncio.sleep(100)  # transactions left open time out
    for topic in (ORDERS, COPIES):
        assert (await world.buffer(topic)).ongoing() == []
    assert not (await world.acks()).stats()
    await workload.check(world)
    await workload.check(await world.crashed())


QUICK = [(World, 0), (AsideWorld, 1), (ChangingWorld, 0)]
MANY = [(kind, seed) for seed in range(12) for kind in (World, AsideWorld, ChangingWorld)]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *QUICK,
        *(pytest.param(*each, marks=pytest.mark.slow) for each in MANY if each not in QUICK),
    ],
)
def test_no_partial_transaction_survives_a_kill(kind: type[World], seed: int) -> None:
    at_once = 0 if seed % 2 else 256 * 1024  # copies take several turns, or one
    with patch.object(commit_order_buffer, "_AT_ONCE_BYTES", at_once):
        run_virtually(lives(seed, kind))
