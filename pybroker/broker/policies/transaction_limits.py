"""The policy transactionLimits, for transactions that take part in a namespace.

Superusers' transactions have no limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import TRANSACTION_LIMITS
from pybroker.transaction.buffer.open_contents import Held
from pybroker.transaction.coordinator.namespaces import NO_LIMITS, LimitsOf, NamespaceLimits


class HasPolicies(Protocol):
    def of_namespace(self, namespace: str) -> Effective: ...


def namespace_limits(policies: HasPolicies, config: BrokerConfig) -> LimitsOf:
    def limits_of(namespace: str, owner: str | None) -> NamespaceLimits:
        if owner is not None and owner in config.super_user_roles:
            return NO_LIMITS
        return policies.of_namespace(namespace).made(_limits)

    return limits_of


def _limits(effective: Effective) -> NamespaceLimits:
    said = effective[TRANSACTION_LIMITS]
    limits = NamespaceLimits(said["maxOpenTransactions"], said["maxTimeoutMs"])
    return limits if limits != NO_LIMITS else NO_LIMITS


@dataclass(frozen=True, slots=True)
class Room:
    """0 means no limit."""

    messages: int
    size_bytes: int

    def excess(self, held: Held, messages: int, size_bytes: int) -> str | None:
        """A clause about the total with this much more if that exceeds a limit, else None."""
        messages, size_bytes = held.messages + messages, held.size_bytes + size_bytes
        if 0 < self.messages < messages:
            return f"{messages} messages; the limit is {self.messages}"
        if 0 < self.size_bytes < size_bytes:
            return f"{size_bytes} bytes; the limit is {self.size_bytes}"
        return None


@dataclass(frozen=True, slots=True)
class ContentLimits:
    """What open transactions may hold."""

    of_topic: Room
    of_namespace: Room
    of_owner: Room


def content_limits(effective: Effective) -> ContentLimits | None:
    """None if there are no limits."""
    said, config = effective[TRANSACTION_LIMITS], effective.config
    limits = ContentLimits(
        Room(said["maxOpenMessagesPerTopic"], said["maxOpenBytesPerTopic"]),
        Room(said["maxOpenMessages"], said["maxOpenBytes"]),
        Room(
            config.max_open_transaction_messages_per_principal,
            config.max_open_transaction_bytes_per_principal,
        ),
    )
    return limits if any(_numbers(limits)) else None


def _numbers(limits: ContentLimits) -> Iterator[int]:
    for room in (limits.of_topic, limits.of_namespace, limits.of_owner):
        yield from (room.messages, room.size_bytes)
