"""Transactional Kafka producers, alone and several with one transactional id, on topics that
Pulsar's clients use, too. In some seeds a Pulsar client shares the id, and each fences the other.

The broker crashes at InitProducerId and EndTxn.
"""

from typing import Any, Final

from checks.history import Logs
from checks.kafka import wrong_offsets
from clients.kafka_transacting import KafkaWorker

from features.fencing import Epochs, Worker
from features.kafka_messages import KafkaFeature

OWN: Final = "kafka-in-txns"


class PulsarWorker(Worker):
    """With a transactional id that Kafka's producers use, too, and a topic of theirs."""

    async def open(self, client: Any) -> dict[str, Any]:
        self._numbers = {OWN: self._numbers.get(OWN, 0)}
        return {OWN: await client.create_producer(OWN)}


class KafkaTransactions(KafkaFeature):
    name = "kafka transactions"
    own = OWN
    topics = (OWN,)

    def begin(self) -> None:
        super().begin()
        self.epochs = Epochs()
        ids = self.rng.choice((("k",), ("k",), ("k", "other k")))
        self.workers = [
            self._worker(f"kafka-worker-{name.replace(' ', '-')}-{number}", name)
            for name in ids
            for number in range(self.rng.choice((1, 2, 3)))
        ]
        self.simulation.producers += self.workers
        if self.rng.random() < 0.3:
            self.simulation.producers.append(
                PulsarWorker(
                    self.world,
                    self.history,
                    "kafka-worker-of-pulsar",
                    transactional_id="k",
                    count=4,
                    epochs=self.epochs,
                    about_to_begin=lambda: self.maybe_crash("PRODUCER"),
                )
            )
        for worker in self.workers:
            for _ in range(self.rng.randint(0, 2)):
                self.world.after(self.some_time(), self._die, worker)

    def _worker(self, name: str, transactional_id: str) -> KafkaWorker:
        scenario = self.simulation.scenario
        places = self.rng.sample(self.places, min(len(self.places), self.rng.randint(1, 3)))
        return KafkaWorker(
            self.world,
            self.history,
            name,
            transactional_id=transactional_id,
            places=places,
            count=self.rng.choice((3, 6, 10)),
            newer=self.rng.random() < 0.7,
            records=3 if scenario.batching or [*places] == [self.places[0]] else 1,
            broker=self.broker,
            hear=self.epochs.hear,
            about_to=self.maybe_crash,
            others_end="hostility" in self.simulation.enabled,
        )

    def _die(self, worker: KafkaWorker) -> None:
        worker.crash(self.rng.choice((0.1, 1.0, 5.0)))

    def account(self, logs: Logs) -> list[str]:
        found = [*self.epochs.broken, *super().account(logs)]
        for worker in self.workers:
            for place, batch in worker.stored:
                found += wrong_offsets(place, self.logs[place], [batch])
        return found


FEATURES: Final = (KafkaTransactions,)
