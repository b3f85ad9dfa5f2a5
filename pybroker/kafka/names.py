"""Kafka's names of topics and partitions <-> Pulsar's.

Kafka's `orders` is persistent://{kafkaTenant}/{kafkaNamespace}/orders. If that topic is
partitioned, Kafka's partitions are its partitions; otherwise it is partition 0 itself. Topics whose
names Kafka does not allow, non-persistent ones and those of brokers' own use are not shown.
"""

import re
from dataclasses import dataclass
from typing import Final

from pybroker.base.names import TopicName
from pybroker.kafka.errors import ErrorCode, KafkaError

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class KafkaNames:
    tenant: str
    namespace: str

    @property
    def namespace_name(self) -> str:
        return f"{self.tenant}/{self.namespace}"

    def topic(self, name: str) -> TopicName:
        """Without a partition. Raises KafkaError, INVALID_TOPIC_EXCEPTION."""
        found = self._found(name)
        if found is None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name[:250]!r}: a topic's name has 1 to 249 letters, digits, dots, hyphens and "
                "underscores, does not begin with __transaction, does not end in -partition-N, "
                "and is neither . nor ..",
            )
        return found

    def _found(self, name: str) -> TopicName | None:
        if not _LEGAL.fullmatch(name) or name in (".", ".."):
            return None
        topic = TopicName("persistent", self.tenant, self.namespace, name)
        return None if topic.partition >= 0 or topic.internal or topic.system else topic

    def shown(self, topic: TopicName) -> str | None:
        """Kafka's name of a topic, which is no partition; None if Kafka's clients do not see it."""
        if not topic.persistent or topic.namespace_name != self.namespace_name:
            return None
        return topic.local if self._found(topic.local) == topic else None
