"""A share group of Kafka's (KIP-932): a Shared subscription for members that die and stall.

What was accepted, and answered, is never delivered again. A record has one holder at a time, and in
the end each was accepted, rejected, or given up after many deliveries.
"""

from typing import Final

from checks.history import Logs
from clients.kafka_producing import IdempotentProducer
from clients.kafka_sharing import Sharing, SharingMember
from clients.kafka_words import Place

from features.kafka_messages import KafkaFeature, full_name
from pybroker.base.names import TopicName

OWN: Final = "kafka-shared"
GROUP: Final = "kafka-share-group"


class KafkaShares(KafkaFeature):
    name = "kafka shares"
    own = OWN
    topics = (OWN,)

    def _places(self) -> list[Place]:
        return [Place(OWN)]

    def begin(self) -> None:
        super().begin()
        self.sharing = Sharing(self._load)
        common, place = (self.world, self.history), Place(OWN)
        self.members = [
            SharingMember(
                *common,
                f"kafka-sharer-{number}",
                group=GROUP,
                place=place,
                sharing=self.sharing,
                about_to=self.maybe_crash,
            )
            for number in range(self.rng.randint(1, 3))
        ]
        self.simulation.others += self.members
        self.simulation.producers.append(
            IdempotentProducer(
                *common,
                "kafka-shared-input",
                place=place,
                count=self.rng.choice((5, 15, 30)),
                records=4,
                remembers=True,
                deduplicated="clocks" not in self.simulation.enabled,
                disk_may_fail=True,
                about_to=lambda _: None,
            )
        )
        for member in self.members:
            for _ in range(self.rng.randint(0, 2)):
                self.world.after(self.some_time(), self._die, member)

    def _load(self) -> object:
        """The topic as it is loaded now."""
        if not self.broker.serving:
            return None
        return self.broker.topics.serving(TopicName.parse(full_name(Place(OWN))))

    def _die(self, member: SharingMember) -> None:
        member.crash(self.rng.choice((0.1, 1.0, 20.0)))

    def rest(self) -> None:
        offsets = {shown.offset for shown in self._log(Place(OWN))}
        self.simulation.wait(lambda: offsets <= self.sharing.consumed(), f"{GROUP} to consume all")
        super().rest()

    def account(self, logs: Logs) -> list[str]:
        found = [*self.sharing.broken, *super().account(logs)]
        consumed = self.sharing.consumed()
        found += [
            f"UNPROCESSED: {shown.value} of {OWN} by {GROUP}"
            for shown in self.logs[Place(OWN)]
            if shown.offset not in consumed
        ]
        return found


FEATURES: Final = (KafkaShares,)
