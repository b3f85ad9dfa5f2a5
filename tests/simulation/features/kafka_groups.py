"""A group of Kafka's whose members consume, transform and produce exactly once.

Members die, leave, and stall for longer than their sessions; the broker crashes at their requests.
A member of an old generation commits nothing, and in the end every input is consumed by one
committed transaction.
"""

import random
from dataclasses import replace
from typing import Any, ClassVar, Final

from checks.history import Logs, was_committed
from clients.kafka_members import Generations, Member
from clients.kafka_producing import IdempotentProducer
from clients.kafka_words import Place
from sim_scenario import Scenario

from features.fencing import Epochs
from features.kafka_messages import KafkaFeature

_INPUTS: Final = ("kafka-in-0", "kafka-in-1")


class KafkaGroups(KafkaFeature):
    name = "kafka groups"
    own = "kafka-transformed"
    group = "kafka-group"
    input_topics: ClassVar[tuple[str, ...]] = _INPUTS
    topics = (own, *_INPUTS)
    clients = "kafka"  # how the names of its processes begin

    @classmethod
    def prepare(cls, scenario: Scenario, rng: random.Random) -> Scenario:
        scenario = super().prepare(scenario, rng)
        guards = (*scenario.guards, *((topic, "guard") for topic in cls.input_topics))
        return replace(scenario, guards=guards, kafka_rebalance_delay_ms=rng.choice((0, 500)))

    def _places(self) -> list[Place]:
        return [Place(self.own), *map(Place, self.input_topics)]

    def begin(self) -> None:
        super().begin()
        self.generations, self.epochs = Generations(), Epochs()
        self.inputs = list(map(Place, self.input_topics))
        in_order = "commitOrder" in self.simulation.scenario.transaction_buffer
        self.members = [] if in_order else self._members()
        self.simulation.producers += [
            IdempotentProducer(
                self.world,
                self.history,
                f"{self.clients}-input-{number}",
                place=place,
                count=self.rng.choice((5, 15, 30)),
                records=3,
                remembers=True,
                deduplicated="clocks" not in self.simulation.enabled,
                disk_may_fail=True,
                about_to=lambda _: None,
            )
            for number, place in enumerate(self.inputs)
        ]
        self.simulation.others += self.members
        for member in self.members:
            for _ in range(self.rng.randint(0, 2)):
                self.world.after(self.some_time(), self._die, member)

    def _members(self) -> list[Member]:
        return [
            Member(*self._common(name), **self._options(name))
            for number in range(self.rng.randint(2, 3))
            for name in [f"{self.clients}-member-{number}"]
        ]

    def _common(self, name: str) -> tuple[Any, ...]:
        return self.world, self.history, name

    def _options(self, name: str) -> dict[str, Any]:
        """Of a member of this name."""
        return {
            "group": self.group,
            "inputs": self.inputs,
            "output": Place(self.own),
            "generations": self.generations,
            "transactional_id": name,
            "newer": self.rng.random() < 0.7,
            "records": 2,
            "broker": self.broker,
            "hear": self.epochs.hear,
            "about_to": self.maybe_crash,
            "others_end": "hostility" in self.simulation.enabled,
        }

    def _die(self, member: Member) -> None:
        member.crash(self.rng.choice((0.1, 1.0, 8.0)))

    def rest(self) -> None:
        if self.members:
            logs = {place: self._log(place) for place in self.inputs}
            wanted = {shown.value for log in logs.values() for shown in log}
            self.simulation.wait(lambda: self._has_consumed(wanted), f"{self.group} to consume all")
        super().rest()

    def _has_consumed(self, wanted: set[str]) -> bool:
        """A member may have died before it heard of its commit."""
        if wanted <= self._consumed():
            return True
        return wanted <= self._consumed({shown.value for shown in self._log(Place(self.own))})

    def _consumed(self, visible: set[str] | None = None) -> set[str]:
        """By committed transactions; by those whose outputs are visible, too."""
        seen = visible or set()
        return {
            read.value
            for txn in self.history.txns
            if txn.committed or (visible is not None and was_committed(txn, seen))
            for group, read in txn.acknowledged
            if group == self.group
        }

    def account(self, logs: Logs) -> list[str]:
        found = [*self.generations.broken, *self.epochs.broken, *super().account(logs)]
        if not self.members:
            return found
        visible = {read.value for log in logs.values() for read in log}
        consumed = self._consumed(visible)
        for place in self.inputs:
            found += [
                f"UNPROCESSED: {shown.value} of {place} by {self.group}"
                for shown in self.logs[place]
                if shown.value not in consumed
            ]
        return found


FEATURES: Final = (KafkaGroups,)
