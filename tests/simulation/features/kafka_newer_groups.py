"""Groups of Kafka's as newer clients use them: KIP-848, and static members (KIP-345).

Both transform in transactions, as the members of a classic group do. A partition has one member at
a time that may commit offsets of it.
"""

from functools import partial
from typing import ClassVar, Final
from unittest.mock import patch

from checks.history import Logs
from clients.kafka_members import Member
from clients.kafka_newer_members import BeatingMember, Holders, Lives, StaticMember

from features.kafka_groups import KafkaGroups
from pybroker.kafka.coordinator import limits
from pybroker.kafka.groups.consumer_group import ConsumerLimits

_SESSION_TIMEOUT_MS: Final = 8000
_BEATEN: Final = ("kafka-beaten-0", "kafka-beaten-1", "kafka-beaten-2")
_OF_STATICS: Final = ("kafka-kept-0", "kafka-kept-1")


class KafkaHeartbeats(KafkaGroups):
    """A group of KIP-848. Some members have a group.instance.id."""

    name = "kafka heartbeats"
    own = "kafka-beaten"
    group = "kafka-newer-group"
    input_topics: ClassVar[tuple[str, ...]] = _BEATEN
    topics = (own, *_BEATEN)
    clients = "kafka-newer"

    def begin(self) -> None:
        self.holders = Holders()
        quick = partial(ConsumerLimits, session_timeout_ms=_SESSION_TIMEOUT_MS)
        self._quick = patch.object(limits, "ConsumerLimits", quick)
        self._quick.start()  # from the next start of the broker on
        super().begin()

    def _members(self) -> list[Member]:
        found: list[Member] = []
        for number in range(self.rng.randint(2, 4)):
            name = f"{self.clients}-member-{number}"
            instance_id = name if self.rng.random() < 0.3 else None
            more = {"holders": self.holders, "instance_id": instance_id}
            found.append(BeatingMember(*self._common(name), **self._options(name), **more))
        return found

    def account(self, logs: Logs) -> list[str]:
        return [*self.holders.broken, *super().account(logs)]

    def end(self) -> None:
        super().end()
        if hasattr(self, "_quick"):
            self._quick.stop()


class KafkaStaticMembers(KafkaGroups):
    """A classic group with static members, some of which run twice for a while."""

    name = "kafka static members"
    own = "kafka-kept"
    group = "kafka-static-group"
    input_topics: ClassVar[tuple[str, ...]] = _OF_STATICS
    topics = (own, *_OF_STATICS)
    clients = "kafka-static"

    def begin(self) -> None:
        self.lives: list[Lives] = []
        super().begin()

    def _members(self) -> list[Member]:
        found: list[Member] = []
        for number in range(self.rng.randint(1, 2)):
            name, lives = f"{self.clients}-member-{number}", Lives()
            self.lives.append(lives)
            found.append(self._static(name, name, lives))
            if self.rng.random() < 0.7:
                double = self._static(f"{name}-double", name, lives, is_double=True)
                self.world.after(self.some_time(), self._start, double)
        if self.rng.random() < 0.4:
            name = f"{self.clients}-member"
            found.append(Member(*self._common(name), **self._options(name)))
        return found

    def _static(
        self, name: str, instance_id: str, lives: Lives, is_double: bool = False
    ) -> StaticMember:
        more = {"instance_id": instance_id, "lives": lives, "is_double": is_double}
        return StaticMember(*self._common(name), **self._options(name), **more)

    def _start(self, double: StaticMember) -> None:
        self.simulation.others.append(double)
        double.start()

    def account(self, logs: Logs) -> list[str]:
        broken = [text for each in self.lives for text in each.broken]
        return [*broken, *super().account(logs)]


FEATURES: Final = (KafkaHeartbeats, KafkaStaticMembers)
