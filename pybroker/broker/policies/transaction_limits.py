"""What the policy transactionLimits asks of transactions that take part in a namespace.

A superuser's have no limits.
"""

from typing import Protocol

from pybroker.base.config import BrokerConfig
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.table import TRANSACTION_LIMITS
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
