"""What groups of Kafka's clients have read of the inputs, as the broker knows it.

An input is written to by its publisher alone, outside of transactions: so the n-th message of a
partition has the offset n.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pybroker.base.names import TopicName
from pybroker.simulation.broker import SimulatedBroker
from pybroker.simulation.declaring import Record

_PATIENCE_S: Final = 60.0  # longer than a client waits for an answer


class KafkaReading:
    def __init__(self, broker: SimulatedBroker, readers: Collection[tuple[str, str]]) -> None:
        """`readers`: groups, with the topics of which they have received something."""
        self._broker = broker
        self._readers = readers
        # Where groups are behind: offset and lag, and since when.
        self._behind: dict[tuple[str, TopicName], tuple[tuple[int, int | None], float]] = {}

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

    def is_behind(self, inputs: Iterable[str], now_s: float) -> bool:
        """Whether a group has something left to read, as far as the broker knows. On a topic that
        is no input this may be what a transaction has aborted: then its group stays where it is.
        """
        if self._kafka is None:
            return False
        exact = {TopicName.parse(each) for each in inputs}
        loaded = {each.name.partitioned_name for each in self._broker.topics.loaded()}
        before, self._behind = self._behind, {}
        found = False
        for topic in sorted(loaded | exact):
            for group, positions in self._reading(topic):
                for name, offset in positions.items():
                    lag = self._kafka.lag_behind(name, offset)
                    if lag == 0:
                        continue
                    place, state = (group, name), (offset, lag)
                    known, since_s = before.get(place, (None, now_s))
                    since_s = since_s if known == state else now_s
                    self._behind[place] = state, since_s
                    found |= topic in exact or now_s < since_s + _PATIENCE_S
        return found

    def _reading(self, topic: TopicName) -> Iterator[tuple[str, Mapping[TopicName, int]]]:
        """Also groups that have not committed anything there yet."""
        yield from (groups := self.groups(str(topic))).items()
        count = self._broker.topics.tenants.partitions(topic)
        parts = [topic.partition_at(index) for index in range(count)] or [topic]
        for group, name in self._readers:
            if group not in groups and TopicName.parse(name) == topic:
                yield group, dict.fromkeys(parts, 0)

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
