"""Options of producers and consumers, with the official Python client's names and numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from pybroker.client.crypto_keys import CryptoKeyReader


class ConsumerType(IntEnum):
    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(IntEnum):
    Latest = 0
    Earliest = 1


class CompressionType(IntEnum):
    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class BatchingType(IntEnum):
    """KeyBased: all messages of a batch have the same key (or ordering key, if they have one).
    Key_Shared subscriptions need this: they dispatch a batch as a whole by its first key."""

    Default = 0
    KeyBased = 1


class PartitionsRoutingMode(IntEnum):
    UseSinglePartition = 0
    RoundRobinDistribution = 1


class HashingScheme(IntEnum):
    """How a partition key becomes a number.

    JavaStringHash is the Java client's default. The official Python client always uses the hash of
    the Boost library it was built with, so it may choose other partitions.
    """

    Murmur3_32Hash = 0
    JavaStringHash = 2


class ProducerAccessMode(IntEnum):
    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class KeySharedMode(IntEnum):
    AutoSplit = 0
    Sticky = 1


class Result(IntEnum):
    """The first argument of a `send_async` callback; on failure it is the exception."""

    Ok = 0


class ConsumerCryptoFailureAction(IntEnum):
    """What to do with an encrypted entry that cannot be decrypted."""

    FAIL = 0  # Do not deliver it; it stays unacknowledged.
    DISCARD = 1  # Acknowledge it.
    CONSUME = 2  # Deliver it still encrypted; a batch as one message.


@dataclass(frozen=True, slots=True)
class ConsumerKeySharedPolicy:
    """`sticky_ranges` are inclusive pairs within 0..65535, also for Exclusive consumers."""

    key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    sticky_ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerBatchReceivePolicy:
    """A batch ends at the first limit reached; -1 means no limit."""

    max_num_message: int = -1
    max_num_bytes: int = 10 * 1024 * 1024
    timeout_ms: int = 100


@dataclass(frozen=True, slots=True)
class ConsumerDeadLetterPolicy:
    """What is delivered `max_redeliver_count` times again and not acknowledged goes to
    `dead_letter_topic`: topic://TENANT/NAMESPACE/TOPIC-DLQ if there is none, as with the Java SDK.
    `initial_subscription_name` is subscribed there before the first of them. `in_transaction`:
    each is published and acknowledged in one transaction, so it is there exactly once.
    """

    max_redeliver_count: int
    dead_letter_topic: str | None = None
    initial_subscription_name: str | None = None
    in_transaction: bool = False


class SubscriptionMode(IntEnum):
    """NonDurable: the broker keeps no durable cursor, as for a reader; the subscription is deleted
    with its last consumer.
    """

    Durable = 0
    NonDurable = 1


class SchemaType(IntEnum):
    STRING = 1
    JSON = 2
    AVRO = 4
    KEY_VALUE = 15


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A producer registers the schema when it opens, or raises IncompatibleSchema."""

    type: SchemaType
    definition: str | bytes = ""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    producer_name: str | None = None
    initial_sequence_id: int | None = None
    send_timeout_millis: int = 30_000
    compression_type: CompressionType = CompressionType.NONE
    max_pending_messages: int = 1000
    block_if_queue_full: bool = False
    batching_enabled: bool = False
    batching_max_messages: int = 1000
    batching_max_allowed_size_in_bytes: int = 128 * 1024
    batching_max_publish_delay_ms: int = 10
    batching_type: BatchingType = BatchingType.Default
    message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    properties: dict[str, str] | None = None
    access_mode: ProducerAccessMode = ProducerAccessMode.Shared
    chunking_enabled: bool = False
    encryption_key: str | tuple[str, ...] | None = None
    crypto_key_reader: CryptoKeyReader | None = None
    auto_update_partitions: bool = True
    auto_update_partitions_interval_s: float = 60.0
    # The schema of the messages, which are still passed as bytes.
    schema: TopicSchema | None = None
    # Goes on when the topic is made a scalable one. Keys have Murmur3_32Hash from the beginning.
    follows_migration: bool = False

    @property
    def partitions_watched_every_s(self) -> float:
        """0: new partitions are not noticed."""
        return self.auto_update_partitions_interval_s if self.auto_update_partitions else 0.0


class IsolationLevel(Enum):
    """For a subscription or reader. Differs: with official clients, set the property directly."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Differs: batch_index_ack_enabled is on, so acknowledged parts of a batch stay acknowledged.
    With create_topic=False, which official clients lack, the broker does not create a topic that
    does not exist or is deleted later: the consumer raises TopicNotFound."""

    consumer_type: ConsumerType = ConsumerType.Exclusive
    initial_position: InitialPosition = InitialPosition.Latest
    receiver_queue_size: int = 1000
    max_total_receiver_queue_size_across_partitions: int = 50_000
    consumer_name: str | None = None
    unacked_messages_timeout_ms: int | None = None
    negative_ack_redelivery_delay_ms: int = 60_000
    is_read_compacted: bool = False
    properties: dict[str, str] | None = None
    subscription_properties: dict[str, str] | None = None
    # READ_UNCOMMITTED: messages of open transactions are delivered as they are published. The level
    # is fixed when the subscription is created. None: that level, or read_committed for a new
    # subscription. Apache Pulsar ignores it.
    isolation_level: IsolationLevel | None = None
    replicate_subscription_state_enabled: bool = False
    subscription_mode: SubscriptionMode = SubscriptionMode.Durable
    start_message_id_inclusive: bool = False
    batch_receive_policy: ConsumerBatchReceivePolicy = ConsumerBatchReceivePolicy()
    key_shared_policy: ConsumerKeySharedPolicy | None = None
    batch_index_ack_enabled: bool = True
    priority_level: int = 0
    max_pending_chunked_message: int = 10
    expire_time_of_incomplete_chunked_message_ms: int = 60_000
    crypto_key_reader: CryptoKeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    auto_update_partitions: bool = True
    auto_update_partitions_interval_s: float = 60.0
    create_topic: bool = True
    dead_letter_policy: ConsumerDeadLetterPolicy | None = None  # of queue consumers

    @property
    def partitions_watched_every_s(self) -> float:
        """0: new partitions are not noticed."""
        return self.auto_update_partitions_interval_s if self.auto_update_partitions else 0.0
