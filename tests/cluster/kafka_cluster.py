"""Brokers with Kafka's listener on simulated bookies; a test says which one it asks."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka_produce import METADATA, fetched, produce
from raw_kafka import Asks
from sim_kafka import SimKafka
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.names import TopicName
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.offsets.logs import topic_of_group

CREATE_TOPICS: Final = 19
COORDINATORS: Final = 16
AGAIN: Final = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
)


class KafkaCluster(TxnCluster):
    """A topic's name is that of its broker with a number, as `topic_of` returns it."""

    def __init__(self, seed: int, serves_http: bool = False, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "transaction_coordinators": COORDINATORS,
            "kafka_group_initial_rebalance_delay_ms": 0,
        }
        super().__init__(seed, serves_http, **defaults | settings)
        self._connected: dict[str, SimKafka] = {}

    def with_kafka(self, name: str) -> TxnBroker:
        return self.start(name, serves_kafka=True)

    def two(self) -> tuple[TxnBroker, TxnBroker]:
        return self.with_kafka("one"), self.with_kafka("two")

    async def connection(self, broker: TxnBroker) -> SimKafka:
        if (known := self._connected.get(broker.name)) is None:
            known = await SimKafka.open("127.0.0.1", broker.kafka_port)
            self._connected[broker.name] = known
        return known

    def ask(self, broker: TxnBroker, key: int, version: int, body: Mapping[str, Any]) -> Any:
        async def asked() -> Any:
            return await (await self.connection(broker)).ask(key, version, body)

        return self.call(asked())

    def at(self, broker: TxnBroker) -> Asks:
        """For the words of `kafka_produce` and `kafka_words`."""
        return _At(self, broker)

    def settled(self, broker: TxnBroker, work: Callable[[], Any], *codes: ErrorCode) -> Any:
        """What `work` returns, a code or a tuple that begins with one, as soon as the broker is no
        longer busy with taking over.
        """
        for _ in range(200):
            found = work()
            code = found[0] if isinstance(found, tuple) else found
            if code not in (codes or AGAIN):
                return found
            self.world.sleep(0.2)
        raise AssertionError(f"{broker.name} still answers {found}")

    # topics and partitions

    def create(self, broker: TxnBroker, topic: str, partitions: int = 1) -> None:
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        wanted |= {"assignments": [], "configs": []}
        body = {"topics": [wanted], "timeout_ms": 30_000, "validate_only": False}
        (answer,) = self.ask(broker, CREATE_TOPICS, 7, body)["topics"]
        assert not answer["error_code"], answer

    def metadata(self, broker: TxnBroker, *topics: str, create: bool = False) -> Any:
        asked = {"topics": [{"name": each} for each in topics]}
        return self.ask(broker, METADATA, 9, {**asked, "allow_auto_topic_creation": create})

    def topic_on(self, broker: TxnBroker) -> str:
        """A new topic whose partition 0 is in a bundle of this broker."""
        for number in range(1000):
            name = TopicName.parse(f"{broker.name}-{number}").partition_at(0)
            found = self.world.call(broker.node, broker.ownership.lookup(name, True))
            if found is None and broker.ownership.owns(name):
                self.create(broker, f"{broker.name}-{number}")
                return f"{broker.name}-{number}"
        raise AssertionError("the other broker has all bundles")

    def produce(self, broker: TxnBroker, topic: str, records: bytes) -> tuple[ErrorCode, int]:
        """The code, and the first offset."""
        code, offset = produce(self.at(broker), topic, records)
        return ErrorCode(code), offset

    def fetch(self, broker: TxnBroker, topic: str, offset: int, **more: Any) -> Any:
        return fetched(self.at(broker), topic, offset, **more)

    def group_on(self, broker: TxnBroker, prefix: str = "group") -> str:
        """A new group, or transactional id, that this broker coordinates."""
        for number in range(1000):
            log = topic_of_group(f"{prefix}-{number}")
            found = self.world.call(broker.node, broker.ownership.lookup(log, True))
            if found is None and broker.ownership.owns(log):
                return f"{prefix}-{number}"
        raise AssertionError("the other broker has all groups")

    # ownership

    def move_group(self, broker: TxnBroker, to: TxnBroker, group: str) -> None:
        self.hand_over(broker, to, topic_of_group(group))

    def hand_over(self, broker: TxnBroker, to: TxnBroker, name: TopicName) -> None:
        """The bundle with this topic goes from one broker to the other."""
        (bundle,) = [each for each in broker.ownership.owned() if each.holds(name)]
        self.world.call(broker.node, broker.ownership.release(bundle, to.membership.broker_id), 600)
        self.take(to, name)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.client.create_task(work)


@dataclass(frozen=True)
class _At:
    cluster: KafkaCluster
    broker: TxnBroker

    def ask(self, key: int, version: int, body: Mapping[str, Any]) -> Any:
        return self.cluster.ask(self.broker, key, version, body)


def partition(topic: str, index: int = 0) -> TopicName:
    return TopicName.parse(topic).partition_at(index)
