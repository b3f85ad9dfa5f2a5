"""Merchants who sell with a database: they prepare, write a row, and commit or abort as it says.

A merchant often dies between PREPARE and the end, or waits for longer than the timeout of its
transaction. Its next life lists what is prepared and decides each by its row. Some merchants share
a transactional id, so each new life is a newer session. The broker crashes around PREPARE. What a
merchant has acknowledged in a prepared transaction, it tries to acknowledge in another one, too.

The database is a table of this world and never fails: what pybroker.client.database makes of a real
one is shown in tests/databases.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from checks.history import Outcome, Sent, Txn
from clients.plain import new_client, receive_one, subscribe
from clients.transacting import FAILURES, REFUSALS, Transacting
from sim_scenario import Scenario

from features.feature import Feature, half_way
from pybroker.base import errors

TOPICS: Final = ("sold-0", "sold-1")


@dataclass(slots=True)
class Sale:
    record: Txn
    is_prepared: bool = False  # and the merchant was told so
    row: bool | None = None  # True: the database has committed; False: it never will
    is_over: bool = False


class Merchant(Transacting):
    def __init__(
        self,
        *args: Any,
        transactional_id: str | None,
        count: int,
        about_to_prepare: Callable[[], None],
    ) -> None:
        super().__init__(*args)
        self._transactional_id = transactional_id
        self._left = count
        self._about_to_prepare = about_to_prepare
        self._sales: dict[Any, Sale] = {}
        self._numbers = dict.fromkeys(TOPICS, 0)

    def new_client(self) -> Any:
        return new_client(self.world, self.rng, transactional_id=self._transactional_id)

    async def work(self, client: Any) -> None:
        producers = {topic: await client.create_producer(topic) for topic in TOPICS}
        self._customers = None
        if self.rng.random() < 0.5:
            name = f"customers of {self.name}"
            self._customers = await subscribe(self, client, TOPICS[0], name, "Failover")
        await self._recover(client)
        while self._left and not self.stopping:
            self._left -= 1
            await self._sell(client, producers)
            await self.pause(0.5)
        await self._recover(client)

    async def _recover(self, client: Any) -> None:
        """Decides what an earlier life left, as the database says."""
        listed = {each.txn_id for each in await client.prepared_transactions(self.name)}
        for txn_id, sale in self._sales.items():
            record = sale.record
            if sale.is_over:
                continue
            if sale.is_prepared and (record.commit, record.abort) == (None, None):
                self.history.counts["prepared, and decided by a later life"] += 1
                if txn_id not in listed:
                    self._not_kept(record, "was prepared, and is not listed any more")
            if sale.row is None:
                sale.row = False
            await self._end_as_decided(client.attach_transaction(txn_id), sale)

    async def _sell(self, client: Any, producers: dict[str, Any]) -> None:
        timeout_ms = self.rng.choice((1000, 5000, 15_000))
        leaves = self.rng.random() < 0.3
        txn = await client.new_transaction(timeout_ms, abort_on_disconnect=leaves)
        name = f"{self.name}.{self.incarnation} {txn.txn_id}"
        record = self.history.begin(name, txn.txn_id, self.node)
        self.note(f"began {name}, timeout {timeout_ms} ms, abort_on_disconnect {leaves}")
        sale = self._sales[txn.txn_id] = Sale(record)
        try:
            sends = [self._publish(producers, txn, record) for _ in range(self.rng.randint(1, 3))]
            await asyncio.gather(*sends)
            await self._serve(txn)
            self._about_to_prepare()
            await txn.prepare(self.name)
        except FAILURES as error:  # also Timeout: then it may be prepared
            self.note(f"{name} was not prepared: {error!r}")
            sale.row = False
            await self._end_as_decided(txn, sale)
            return
        sale.is_prepared = True
        self.note(f"prepared {name}")
        self.history.counts["prepared"] += 1
        await self._serve_further(client)
        await self.pause(self.rng.choice((0.0, 0.3, 12.0)))
        sale.row = self.rng.random() < 0.8
        await self.pause(0.3)
        await self._end_as_decided(txn, sale)

    async def _serve(self, txn: Any) -> bool:
        """Acknowledges all customers up to the next one. False: none comes."""
        if self._customers is None:
            return False
        message = await receive_one(self._customers, 100)
        if message is not None:
            await self._customers.acknowledge_cumulative(message, txn=txn)
        return message is not None

    async def _serve_further(self, client: Any) -> None:
        """In another transaction, while the prepared one holds those before."""
        if self._customers is None or self.rng.random() < 0.5:
            return
        txn = None
        try:
            txn = await client.new_transaction(5000)
            if await self._serve(txn):
                self.history.counts["acknowledged beside a prepared one"] += 1
        except FAILURES as error:
            self.note(f"served nobody further: {error!r}")
        if txn is not None:
            with suppress(*FAILURES):
                await txn.abort()
        self._customers.redeliver_unacknowledged_messages()

    async def _publish(self, producers: dict[str, Any], txn: Any, record: Txn) -> None:
        topic = self.rng.choice(TOPICS)
        number = self._numbers[topic] = self._numbers[topic] + 1
        sender = f"{self.name}-{topic}"
        life = f"{sender}.{self.incarnation}"
        sent = self.history.send(Sent(f"{sender}/{number}", topic, life, number, txn=record))
        await self.send(producers[topic], sent, txn)

    async def _end_as_decided(self, txn: Any, sale: Sale) -> None:
        if sale.row:
            await self.commit(txn, sale.record)
            if sale.record.commit is Outcome.REFUSED:
                self._not_kept(sale.record, "was prepared, and its commit is refused")
        else:
            await self.abort(txn, sale.record)
        sale.is_over = True

    def _not_kept(self, record: Txn, why: str) -> None:
        self.history.failures.append(f"NOT KEPT PREPARED: {record.name} {why}")

    async def _until_answered(self, ask: Any, what: str) -> Outcome:
        """A fenced merchant leaves it to the next life."""
        while True:
            try:
                await ask()
            except errors.ProducerFenced as error:
                self.note(f"{what}: {error!r}")
                raise
            except REFUSALS as error:
                self.note(f"{what} refused: {error!r}")
                return Outcome.REFUSED
            except FAILURES as error:
                self.note(f"{what}: {error!r}")
                await self.pause(1.0)
            else:
                self.note(f"{what} done")
                return Outcome.DONE


class Preparing(Feature):
    name = "preparing"
    topics = TOPICS

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        guards = tuple((topic, "guard") for topic in TOPICS)
        return replace(scenario, guards=(*scenario.guards, *guards))

    def begin(self) -> None:
        self.crashes = self.rng.choice((0, 1, 2, 4))
        shared = self.rng.choice((None, "till", "till"))
        self.merchants = [
            Merchant(
                self.world,
                self.history,
                f"merchant-{number}",
                transactional_id=shared,
                count=self.rng.choice((2, 5, 8)),
                about_to_prepare=self._maybe_crash,
            )
            for number in range(self.rng.randint(1, 3))
        ]
        self.simulation.producers += self.merchants
        for merchant in self.merchants:
            for _ in range(self.rng.randint(0, 2)):
                self.world.after(self.some_time(), self._die, merchant)

    def _die(self, merchant: Merchant) -> None:
        merchant.crash(self.rng.choice((0.1, 1.0, 5.0)))

    def _maybe_crash(self) -> None:
        if self.crashes and self.broker.serving and self.rng.random() < 0.3:
            self.crashes -= 1
            self.count("crashes at a PREPARE")
            self.broker.crash(half_way(self.rng))

    def heal(self) -> None:
        self.crashes = 0


FEATURES: Final = (Preparing,)
