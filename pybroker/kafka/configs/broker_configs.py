"""A broker's configs under Kafka's names: those that say something here. They are read-only.

The broker's own settings are shown and changed by `pybroker admin brokers`.
"""

from collections.abc import Callable
from typing import Final

from pybroker.base.configuration.config import BrokerConfig
from pybroker.kafka.configs.kinds import Kind, Shown, Source

_SETTINGS: Final[tuple[tuple[str, Kind, str, Callable[[BrokerConfig], object]], ...]] = (
    ("auto.create.topics.enable", Kind.BOOLEAN, "allowAutoTopicCreation",
     lambda config: config.allow_auto_topic_creation),
    ("num.partitions", Kind.INT, "defaultNumPartitions",
     lambda config: config.default_num_partitions),
    ("message.max.bytes", Kind.INT, "maxMessageSize", lambda config: config.max_message_size),
    ("max.connections", Kind.INT, "brokerMaxConnections",
     lambda config: config.broker_max_connections or 2**31 - 1),
    ("max.connections.per.ip", Kind.INT, "brokerMaxConnectionsPerIp",
     lambda config: config.broker_max_connections_per_ip or 2**31 - 1),
    ("transaction.max.timeout.ms", Kind.INT, "maxTransactionTimeoutMs",
     lambda config: config.max_transaction_timeout_ms),
    ("transactional.id.expiration.ms", Kind.INT, "transactionalIdExpirationMs",
     lambda config: config.transactional_id_expiration_ms),
)  # fmt: skip
_FIXED: Final = (
    ("delete.topic.enable", Kind.BOOLEAN, "true"),
    ("default.replication.factor", Kind.INT, "1"),
    ("min.insync.replicas", Kind.INT, "1"),
    ("log.retention.ms", Kind.LONG, str(7 * 24 * 3600 * 1000)),
    ("log.cleanup.policy", Kind.LIST, "delete"),
    ("log.message.timestamp.type", Kind.STRING, "CreateTime"),
    ("connections.max.idle.ms", Kind.LONG, "600000"),
)


def broker_configs(config: BrokerConfig, node_id: int) -> list[Shown]:
    own = [Shown("node.id", str(node_id), Kind.INT, Source.BROKER, read_only=True)]
    own += [Shown("broker.id", str(node_id), Kind.INT, Source.BROKER, read_only=True)]
    default = BrokerConfig()
    for name, kind, documentation, value in _SETTINGS:
        source = Source.DEFAULT if value(config) == value(default) else Source.BROKER
        own.append(Shown(name, _text(value(config)), kind, source, documentation, read_only=True))
    fixed = [
        Shown(name, value, kind, Source.DEFAULT, read_only=True) for name, kind, value in _FIXED
    ]
    return own + fixed


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
