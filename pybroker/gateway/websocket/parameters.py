"""The query parameters of Apache Pulsar's WebSocket API, as options of this project's client.

Parameters that are not known are ignored, as Apache Pulsar does; values that are not are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import MessageId
from pybroker.client.options import (
    CompressionType,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    SubscriptionMode,
)
from pybroker.gateway.message_ids import message_id_of

Query = Mapping[str, str]

MAX_QUEUE: Final = 1000
_MAX_PENDING: Final = 10_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
TYPES: Final = {
    "Exclusive": ConsumerType.Exclusive,
    "Shared": ConsumerType.Shared,
    "Failover": ConsumerType.Failover,
    "Key_Shared": ConsumerType.KeyShared,
}
_MODES: Final = {"Durable": SubscriptionMode.Durable, "NonDurable": SubscriptionMode.NonDurable}
POSITIONS: Final = {"Latest": InitialPosition.Latest, "Earliest": InitialPosition.Earliest}
_COMPRESSION: Final = {each.name.upper(): each for each in CompressionType}
_HASHES: Final = {each.name: each for each in HashingScheme}
_ROUTING: Final = {
    "SinglePartition": PartitionsRoutingMode.UseSinglePartition,
    "RoundRobinPartition": PartitionsRoutingMode.RoundRobinDistribution,
    # A program's own choice: there is no program here.
    "CustomPartition": PartitionsRoutingMode.UseSinglePartition,
}


def producer_options(query: Query) -> dict[str, Any]:
    """The arguments of `create_producer`. Raises InvalidConfiguration."""
    _refuse(query, "encryptionKeys", "encrypt the payloads yourself")
    batching = _flag(query, "batchingEnabled")
    options: dict[str, Any] = {
        "producer_name": query.get("producerName") or None,
        "batching_enabled": batching,
        "message_routing_mode": _one_of(query, "messageRoutingMode", _ROUTING, "SinglePartition"),
        "compression_type": _one_of(query, "compressionType", _COMPRESSION, "NONE"),
        "hashing_scheme": _one_of(query, "hashingScheme", _HASHES, "JavaStringHash"),
        "max_pending_messages": _number(query, "maxPendingMessages", 1000, 1, _MAX_PENDING),
        "send_timeout_millis": _number(query, "sendTimeoutMillis", 30_000, 0, _HOUR_MS) or _HOUR_MS,
        "block_if_queue_full": True,
    }
    if "initialSequenceId" in query:
        options["initial_sequence_id"] = _number(query, "initialSequenceId", 0, -1, 2**63 - 1)
    if batching:
        options["batching_max_messages"] = _number(query, "batchingMaxMessages", 1000, 1, 100_000)
        delay_ms = _number(query, "batchingMaxPublishDelay", 10, 1, _HOUR_MS)
        options["batching_max_publish_delay_ms"] = delay_ms
    return options


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Where a message goes that was delivered more than `max_redeliveries` times again."""

    topic: str
    max_redeliveries: int


@dataclass(frozen=True, slots=True)
class ConsumerParameters:
    options: dict[str, Any]  # the arguments of `subscribe`
    pull_mode: bool
    max_pending: int  # sent, and neither acknowledged nor given back
    dead_letters: DeadLetters | None


def consumer_parameters(query: Query, topic: str, subscription: str) -> ConsumerParameters:
    """Raises InvalidConfiguration for a value out of range or of another type."""
    _refuse(query, "cryptoFailureAction", "decrypt the payloads yourself")
    queue = _number(query, "receiverQueueSize", MAX_QUEUE, 0, 2**31 - 1)
    options: dict[str, Any] = {
        "consumer_type": _one_of(query, "subscriptionType", TYPES, "Exclusive"),
        "subscription_mode": _one_of(query, "subscriptionMode", _MODES, "Durable"),
        "initial_position": _one_of(query, "subscriptionInitialPosition", POSITIONS, "Latest"),
        "receiver_queue_size": min(max(queue, 1), MAX_QUEUE),
        "consumer_name": query.get("consumerName") or None,
        "priority_level": _number(query, "priorityLevel", 0, 0, 2**31 - 1),
        "negative_ack_redelivery_delay_ms": _number(
            query, "negativeAckRedeliveryDelay", 60_000, 0, _DAY_MS
        ),
    }
    if timeout_ms := _number(query, "ackTimeoutMillis", 0, 0, _DAY_MS):
        if timeout_ms < 1000:
            raise InvalidConfiguration("ackTimeoutMillis must be 0 or at least 1000")
        options["unacked_messages_timeout_ms"] = timeout_ms
    return ConsumerParameters(
        options,
        _flag(query, "pullMode"),
        min(max(queue, 1), MAX_QUEUE),
        _dead_letters(query, topic, subscription),
    )


def _dead_letters(query: Query, topic: str, subscription: str) -> DeadLetters | None:
    if "maxRedeliverCount" not in query:
        if "deadLetterTopic" in query:
            raise InvalidConfiguration("deadLetterTopic needs maxRedeliverCount")
        return None
    most = _number(query, "maxRedeliverCount", 0, 1, 2**31 - 1)
    return DeadLetters(query.get("deadLetterTopic") or f"{topic}-{subscription}-DLQ", most)


@dataclass(frozen=True, slots=True)
class ReaderParameters:
    start: MessageId
    options: dict[str, Any]  # the other arguments of `create_reader`
    max_pending: int


def reader_parameters(query: Query) -> ReaderParameters:
    """Raises InvalidConfiguration for a value out of range or of another type."""
    queue = _number(query, "receiverQueueSize", MAX_QUEUE, 0, 2**31 - 1)
    size = min(max(queue, 1), MAX_QUEUE)
    options = {"receiver_queue_size": size, "reader_name": query.get("readerName") or None}
    said = query.get("messageId") or "latest"
    if said in ("earliest", "latest"):
        return ReaderParameters(getattr(MessageId, said), options, size)
    return ReaderParameters(message_id_of(said), options, size)


# -- values


def _number(query: Query, name: str, default: int, least: int, most: int) -> int:
    said = query.get(name)
    if said is None:
        return default
    digits = said.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(said) <= 20):
        raise InvalidConfiguration(f"{name} must be a number, not {said[:100]!r}")
    if not least <= int(said) <= most:
        raise InvalidConfiguration(f"{name} must be a number from {least} to {most}, not {said}")
    return int(said)


def _flag(query: Query, name: str) -> bool:
    """As Java parses it: anything but "true" is false."""
    return query.get(name, "").lower() == "true"


def _one_of(query: Query, name: str, choices: Mapping[str, Any], default: str) -> Any:
    said = query.get(name, default)
    if said not in choices:
        raise InvalidConfiguration(
            f"{name} must be one of {', '.join(choices)}, not {said[:100]!r}"
        )
    return choices[said]


def _refuse(query: Query, name: str, instead: str) -> None:
    if name in query:
        raise InvalidConfiguration(
            f"{name} is not supported: this broker does no encryption for its clients; {instead}"
        )
