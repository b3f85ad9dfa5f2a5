"""The brokers of a cluster as Kafka's clients see them. A partition's leader is the owner of its
bundle.

A node's number is made of its broker's id, so that all brokers tell the same one and a restart does
not change it. Of two brokers whose ids make the same number, the second in their order has the next
one.

A broker without a listener for Kafka's clients, or without one of the kind that a client uses (with
or without TLS), is no node for that client. What it serves has no leader: LISTENER_NOT_FOUND.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol
from zlib import crc32

from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress, KafkaAddress, Ownership
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.nodes import NO_NODE, Node
from pybroker.kafka.session import Session

_HIGHEST: Final = 0x7FFFFFFF

log = logging.getLogger("pybroker.kafka")


class Members(Protocol):
    """The cluster."""

    @property
    def broker_id(self) -> str:
        """This broker's; empty before it has joined."""
        ...

    @property
    def ownership(self) -> Ownership: ...

    def kafka_addresses(self) -> Mapping[str, KafkaAddress]:
        """Of all live brokers, by broker id."""
        ...

    def id_of(self, address: BrokerAddress) -> str | None: ...


class SharedNodes:
    """Implements Nodes."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._unreachable: set[str] = set()  # ids of brokers that a line of the log was about
        # Made anew when the brokers have changed, not for each partition that is asked for.
        self._addresses: Mapping[str, KafkaAddress] = {}
        self._numbers: dict[str, int] = {}
        self._nodes: dict[bool, dict[str, Node]] = {False: {}, True: {}}

    @property
    def own_id(self) -> int:
        self._look()
        return self._numbers.get(self._members.broker_id, NO_NODE)

    def seen_by(self, session: Session) -> list[Node]:
        self._look()
        return list(self._nodes[session.is_encrypted].values())

    def _look(self) -> None:
        addresses = self._members.kafka_addresses()
        if addresses == self._addresses:
            return
        self._addresses, self._numbers = addresses, node_numbers(addresses)
        self._nodes = {False: {}, True: {}}
        for broker_id, number in self._numbers.items():
            for is_encrypted, url in enumerate(addresses[broker_id]):
                if url:
                    self._nodes[bool(is_encrypted)][broker_id] = Node.at(number, url)
        for url in _told_twice(addresses):
            log.warning(
                "several brokers tell Kafka's clients the address %s, so clients reach only one of "
                "them: give each its own kafkaAdvertisedListeners",
                url,
            )

    async def leader_of(self, partition: TopicName, session: Session) -> Node:
        try:
            owner = await self._members.ownership.owner_of(partition)
        except PulsarError as error:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)) from error
        broker_id = self._members.broker_id if owner is None else self._members.id_of(owner)
        if not broker_id:  # it has just left the cluster, or this one has not joined it yet
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"no broker has {partition} now")
        self._look()
        node = self._nodes[session.is_encrypted].get(broker_id)
        if node is None:
            raise self._no_listener(partition, broker_id, session)
        self._unreachable.discard(broker_id)
        return node

    def _no_listener(self, partition: TopicName, broker_id: str, session: Session) -> KafkaError:
        option = "kafkaServicePortTls" if session.is_encrypted else "--kafka (kafkaServicePort)"
        why = f"broker {broker_id} serves {partition} and not this client: start it with {option}"
        if broker_id not in self._unreachable:
            self._unreachable.add(broker_id)
            log.warning("%s", why)
        return KafkaError(ErrorCode.LISTENER_NOT_FOUND, why)


def _told_twice(addresses: Mapping[str, KafkaAddress]) -> list[str]:
    told = Counter(url for each in addresses.values() for url in each if url)
    return [url for url, brokers in told.items() if brokers > 1]


def node_numbers(broker_ids: Iterable[str]) -> dict[str, int]:
    """The numbers of these brokers, none of them twice."""
    numbers: dict[str, int] = {}
    taken: set[int] = set()
    for broker_id in sorted(broker_ids):
        number = crc32(broker_id.encode()) & _HIGHEST
        while number in taken:
            number = (number + 1) & _HIGHEST
        numbers[broker_id] = number
        taken.add(number)
    return numbers
