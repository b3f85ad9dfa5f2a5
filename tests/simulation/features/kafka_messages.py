"""Kafka's clients on topics that Pulsar's clients use, too: idempotent producers and readers.

Snapshots of producers are taken often, so that crashes come after some of them. Both protocols must
show one log; what a reader was shown, and every offset that a producer was told, stays so.
"""

import random
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from checks.history import Logs
from checks.kafka import not_one_log, reading_violations, wrong_offsets
from clients.kafka_producing import IdempotentProducer
from clients.kafka_reading import KafkaReader, read_all
from clients.kafka_words import Place, Shown
from sim_scenario import PARTITIONED, PARTITIONS, Scenario

from features.feature import Feature, half_way
from pybroker.kafka.log import producer_snapshots

OWN: Final = "kafka-own"


def full_name(place: Place) -> str:
    topic = f"persistent://public/default/{place.topic}"
    return f"{topic}-partition-{place.partition}" if place.topic == PARTITIONED else topic


class KafkaFeature(Feature):
    """What those with Kafka's clients have in common: partitions that they use, and readers."""

    own: str

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        guards = (*scenario.guards, (cls.own, "guard"))
        return replace(scenario, guards=guards, kafka=True)

    def begin(self) -> None:
        every = self.rng.choice((1, 3, 10, 1000))
        self._small = [
            patch.object(producer_snapshots, "_INTERVAL", every),
            patch.object(producer_snapshots, "_BATCHES_A_PRODUCER", 1),
        ]
        for each in self._small:
            each.start()
        self.places = self._places()
        self.crashes = self.rng.choice((0, 1, 2, 4))
        self.readers = [
            KafkaReader(
                self.world,
                self.history,
                f"{self.name.replace(' ', '-')}-reader-{number}",
                place=self.rng.choice(self.places),
                committed=self.rng.random() < 0.7,
            )
            for number in range(self.rng.randint(1, 3))
        ]
        self.simulation.others += self.readers

    def _places(self) -> list[Place]:
        """The feature's own topic, and those of the scenario."""
        places = [Place(self.own)]
        for topic in self.simulation.scenario.topics:
            count = PARTITIONS if topic == PARTITIONED else 1
            places += [Place(topic, number) for number in range(count)]
        return places

    def rest(self) -> None:
        for reader in self.readers:
            log = self._log(reader.place)
            self.simulation.wait(
                lambda reader=reader, log=log: _has_all(reader, log), f"{reader.name}'s last record"
            )

    def maybe_crash(self, what: str) -> None:
        chance = 0.05 if what == "Produce" else 0.2
        if self.crashes and self.broker.serving and self.rng.random() < chance:
            self.crashes -= 1
            self.count(f"crashes at {what}")
            self.broker.crash(half_way(self.rng))

    def heal(self) -> None:
        self.crashes = 0

    def _log(self, place: Place) -> list[Shown]:
        log: list[Shown] = self.simulation.on_a_fresh_node(read_all(place))
        return log

    def account(self, logs: Logs) -> list[str]:
        self.logs = {place: self._log(place) for place in self.places}
        found = []
        for place, log in self.logs.items():
            found += not_one_log(place, log, logs[full_name(place)])
        for reader in self.readers:
            for reading in reader.readings:
                found += reading_violations(self.history, self.logs[reader.place], reading)
        return found

    def end(self) -> None:
        for each in getattr(self, "_small", ()):
            each.stop()


def _has_all(reader: KafkaReader, log: list[Shown]) -> bool:
    return bool(reader.readings) and set(log) <= set(reader.readings[-1].shown)


class KafkaMessages(KafkaFeature):
    name = "kafka"
    own = OWN
    topics = (OWN,)

    def begin(self) -> None:
        super().begin()
        scenario = self.simulation.scenario
        self.kafka_producers = [
            IdempotentProducer(
                self.world,
                self.history,
                f"idempotent-{number}",
                place=place,
                count=self.rng.choice((10, 30, 60)),
                # The keys of the scenario's topics are checked per entry.
                records=3 if scenario.batching or place.topic == OWN else 1,
                remembers=self.rng.random() < 0.7,
                # Producers expire after seven days of the clock.
                deduplicated="clocks" not in self.simulation.enabled,
                disk_may_fail=self._disk_may_fail(),
                about_to=self.maybe_crash,
            )
            for number in range(self.rng.randint(1, 3))
            for place in [self.rng.choice(self.places)]
        ]
        self.simulation.producers += self.kafka_producers
        for producer in self.kafka_producers:
            for _ in range(self.rng.randint(0, 2)):
                self.world.after(self.some_time(), self._die, producer)

    def _disk_may_fail(self) -> bool:
        kinds = {fault.kind for fault in self.simulation.scenario.faults}
        features = {"full disk", "descriptors", "shortages"} & set(self.simulation.enabled)
        return bool(features or kinds & {"disk full", "sync fails"})

    def _die(self, producer: Any) -> None:
        producer.crash(self.rng.choice((0.1, 1.0, 5.0)))

    def account(self, logs: Logs) -> list[str]:
        found = super().account(logs)
        for producer in self.kafka_producers:
            found += wrong_offsets(producer.place, self.logs[producer.place], producer.stored)
        return found


FEATURES: Final = (KafkaMessages,)
