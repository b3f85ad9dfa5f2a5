"""What groups of Kafka's clients have read of the inputs, as the broker knows it.

An input is written to by its publisher alone, outside of transactions: so the n-th message of a
partition has the offset n.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pybroker.base.names import TopicName
from pybroker.simulation.broker import SimulatedBroker
from pybroker.simulation.declaring import Record

_UNKNOWN: Final = 1  # the backlog of a partition that is not loaded


class KafkaReading:
    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker

    @property
    def _kafka(self) -> Any:
        """The broker's groups; None if Kafka's clients are not served now."""
        broker = self._broker.broker
        listener = broker._kafka if self._broker.serving and broker is not None else None
        return None if listener is None else listener.for_admin

    def groups(self, topic: str) -> Mapping[str, Mapping[TopicName, int]]:
        """Where the groups that read a topic are on its partitions."""
        kafka = self._kafka
        return {} if kafka is None else kafka.positions(TopicName.parse(topic))

    def backlog(self, topics: Iterable[str]) -> int:
        """How many messages the groups have not read."""
        lags = [
            self._kafka.lag_behind(name, offset)
            for topic in topics
            for positions in self.groups(topic).values()
            for name, offset in positions.items()
        ]
        return sum(_UNKNOWN if each is None else each for each in lags)

    def left(
        self, topic: str, records: Sequence[Record]
    ) -> dict[tuple[str, str], frozenset[tuple[int, int, int]]]:
        """By topic and group: the positions of what is not read."""
        left = {}
        for group, positions in self.groups(topic).items():
            found: set[tuple[int, int, int]] = set()
            for name, offset in positions.items():
                there = [each for each in records if each.partition == str(name)]
                found |= {each.position for each in there[offset:]}
            left[topic, group] = frozenset(found)
        return left
