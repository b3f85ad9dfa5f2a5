"""The brokers as Kafka's clients see them: nodes with a number, and which of them leads what."""

from dataclasses import dataclass
from typing import Final, Protocol

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
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
        self._config = config

    @property
    def own_id(self) -> int:
        return ALONE_ID

    def seen_by(self, session: Session) -> list[Node]:
        host = self._config.advertised(session.local_host)
        return [Node(ALONE_ID, host, session.local_port)]

    async def leader_of(self, partition: TopicName, session: Session) -> Node:
        return self.seen_by(session)[0]
