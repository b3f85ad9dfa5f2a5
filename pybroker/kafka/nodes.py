"""The brokers as Kafka's clients see them: nodes with a number, and which of them leads what."""

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.kafka.advertised import advertised_urls
from pybroker.kafka.session import Session

NO_NODE: Final = -1
ALONE_ID: Final = 0
# Leaders do not change while a broker is alone; clients compare the epoch with a later one.
LEADER_EPOCH: Final = 0


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int

    @classmethod
    def at(cls, number: int, url: str) -> "Node":
        parts = urlsplit(url)
        return cls(number, parts.hostname or "", parts.port or 0)


class Nodes(Protocol):
    @property
    def own_id(self) -> int: ...

    def seen_by(self, session: Session) -> list[Node]:
        """All live brokers, with addresses that this client can use."""
        ...

    async def leader_of(self, partition: TopicName, session: Session) -> Node:
        """The node that serves the topic, partition or log of groups, or that takes it when it is
        asked. Raises KafkaError: LEADER_NOT_AVAILABLE at present, or LISTENER_NOT_FOUND: this
        client cannot reach it.
        """
        ...


class AloneNode:
    """Implements Nodes for a broker without others."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises BadListeners."""
        self._config = config
        self._advertised = advertised_urls(config.kafka_advertised_listeners)

    @property
    def own_id(self) -> int:
        return ALONE_ID

    def seen_by(self, session: Session) -> list[Node]:
        if url := self._advertised.get(session.is_encrypted):
            return [Node.at(ALONE_ID, url)]
        host = self._config.advertised(session.local_host)
        return [Node(ALONE_ID, host, session.local_port)]

    async def leader_of(self, partition: TopicName, session: Session) -> Node:
        return self.seen_by(session)[0]
