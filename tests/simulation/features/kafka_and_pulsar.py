"""Transactions over both protocols: all of each is there, or nothing.

A Pulsar client joins transactions that Kafka's producers began, and sends to a topic of its own. A
Pulsar client's transaction commits offsets of a Kafka group beside its messages.
"""

from dataclasses import replace
from random import Random
from typing import Any, Final

from checks.history import Logs, Sent, Txn, was_committed
from clients.admin import REFUSALS, Unanswered, ask
from clients.kafka_group_words import NOTHING, committed_offset
from clients.kafka_peer import KafkaClient
from clients.kafka_transacting import GivenUp, KafkaWorker
from clients.kafka_words import AGAIN, Place
from clients.plain import new_client
from clients.transacting import FAILURES, Transacting
from sim_broker import BrokerProcess
from sim_scenario import Scenario

from features.fencing import Epochs
from features.kafka_messages import KafkaFeature

OWN: Final = "kafka-half"
BESIDE: Final = "pulsar-half"
GROUP: Final = "kafka-beside"


class JoinedWorker(KafkaWorker):
    """A Kafka producer whose transactions a Pulsar client joins."""

    _beside = 0

    async def fill(self, client: KafkaClient, record: Txn) -> None:
        await super().fill(client, record)
        if record.txn_id is None:
            return  # the broker was down when it was to be asked
        pulsar = new_client(self.world, self.rng)
        try:
            producer = await pulsar.create_producer(BESIDE)
            await self._send_beside(pulsar, producer, record)
        except FAILURES as error:
            raise GivenUp(f"beside it: {error!r}") from error
        finally:
            await _close(pulsar)

    async def _send_beside(self, pulsar: Any, producer: Any, record: Txn) -> None:
        self._beside += 1
        value, life = f"{self.name}-beside/{self._beside}", f"{self.name}.{self._lives}"
        sent = self.history.send(Sent(value, BESIDE, life, self._beside, txn=record))
        await self.send(producer, sent, pulsar.attach_transaction(record.txn_id))


async def _close(pulsar: Any) -> None:
    try:
        await pulsar.close()
    except FAILURES:
        return  # the broker is gone; it will notice


class Committer(Transacting):
    """A Pulsar client whose transactions commit offsets of a Kafka group, one after another."""

    def __init__(self, *args: Any, count: int, broker: BrokerProcess) -> None:
        super().__init__(*args)
        self.left = count
        self.broker = broker
        self.offsets: list[tuple[Txn, int]] = []  # accepted in a transaction, in order
        self._offset = 0

    async def work(self, client: Any) -> None:
        await self.settle_the_last(client)
        producer = await client.create_producer(BESIDE)
        while self.left:
            self.left -= 1
            await self._transact(client, producer)
            await self.pause(0.5)

    async def _transact(self, client: Any, producer: Any) -> None:
        txn, record = await self.begin(client)
        self._offset += 1
        value, life = f"{self.name}/{self._offset}", f"{self.name}.{self.incarnation}"
        sent = self.history.send(Sent(value, BESIDE, life, self._offset, txn=record))
        try:
            await self.send(producer, sent, txn)
            await self._commit_offset(record, self._offset)
        except (Unanswered, *REFUSALS, *FAILURES) as error:
            self.note(f"{record.name} failed: {error!r}")
            await self.abort(txn, record)
            return
        self.offsets.append((record, self._offset))
        await self.pause(0.3)
        await self.end(client, txn, record)

    async def _commit_offset(self, record: Txn, offset: int) -> None:
        """As an administrator's request does."""

        async def commit(_: Any) -> None:
            kafka: Any = self.broker.broker._kafka  # type: ignore[union-attr]
            place = {"topic": OWN, "partition": 0, "offset": offset}
            member = "", None, NOTHING
            await kafka.for_admin.commit_offsets(None, record.txn_id, GROUP, member, [place])

        await ask(self.broker, commit)


class KafkaAndPulsar(KafkaFeature):
    name = "kafka and pulsar"
    own = OWN
    topics = (OWN, BESIDE)

    @classmethod
    def prepare(cls, scenario: Scenario, rng: Random) -> Scenario:
        scenario = super().prepare(scenario, rng)
        return replace(scenario, guards=(*scenario.guards, (BESIDE, "guard")))

    def begin(self) -> None:
        super().begin()
        self.epochs = Epochs()
        self.workers = [
            JoinedWorker(
                self.world,
                self.history,
                f"joined-{number}",
                transactional_id=f"joined-{number}",
                places=[Place(OWN)],
                count=self.rng.choice((3, 6)),
                newer=self.rng.random() < 0.7,
                records=3,
                broker=self.broker,
                hear=self.epochs.hear,
                about_to=self.maybe_crash,
                others_end="hostility" in self.simulation.enabled,
            )
            for number in range(self.rng.randint(1, 2))
        ]
        self.committer = Committer(
            self.world, self.history, "committer", count=8, broker=self.broker
        )
        self.simulation.producers += [*self.workers, self.committer]

    def _places(self) -> list[Place]:
        return [Place(OWN)]

    def account(self, logs: Logs) -> list[str]:
        found = [*self.epochs.broken, *super().account(logs)]
        visible = {read.value for log in logs.values() for read in log}
        wanted = NOTHING
        for txn, offset in self.committer.offsets:
            if was_committed(txn, visible):
                wanted = offset
        there = self.simulation.on_a_fresh_node(_committed())
        if there != wanted:
            found.append(
                f"PARTIAL TRANSACTION: {GROUP} is at {there}; the last committed transaction has "
                f"committed {wanted}"
            )
        return found


async def _committed() -> int:
    client = KafkaClient()
    while (answer := await committed_offset(client, GROUP, Place(OWN))).code in AGAIN:
        continue
    await client.close()
    return answer.offset


FEATURES: Final = (KafkaAndPulsar,)
