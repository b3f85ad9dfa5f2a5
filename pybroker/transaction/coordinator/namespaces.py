"""Counts and limits the live transactions that take part in a namespace.

A transaction takes part from its first topic or subscription there. It is counted, or refused, at
that point, because a coordinator does not know in advance which namespaces a transaction will
touch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from pybroker.base.errors import InvalidTopicName, NotAllowed, TooManyRequests
from pybroker.base.names import TopicName, TxnId


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """0: no limit."""

    max_open: int = 0
    max_timeout_ms: int = 0


NO_LIMITS: Final = NamespaceLimits()
# The limits of a namespace for the owner of a transaction; None: no owner.
LimitsOf = Callable[[str, str | None], NamespaceLimits]


class Counts(Protocol):
    """Implemented by coordinators."""

    def live_in(self, namespace: str) -> int: ...


class Joins(Protocol):
    """A live transaction."""

    @property
    def txn_id(self) -> TxnId: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def owner(self) -> str | None: ...


class Admission:
    """Shared by all coordinators of a broker. `serving` contains the open ones."""

    def __init__(self, serving: Mapping[int, Counts]) -> None:
        self._serving = serving
        self.limits_of: LimitsOf = lambda namespace, owner: NO_LIMITS

    def live_in(self, namespace: str) -> int:
        return sum(coordinator.live_in(namespace) for coordinator in self._serving.values())

    def admit(self, transaction: Joins, namespace: str) -> None:
        """Raises TooManyRequests (namespace full) or NotAllowed (timeout too long) if the
        transaction may not take part in the namespace.
        """
        limits = self.limits_of(namespace, transaction.owner)
        if limits is NO_LIMITS:
            return
        if 0 < limits.max_timeout_ms < transaction.timeout_ms:
            raise NotAllowed(
                f"Transaction {transaction.txn_id} may stay open for {transaction.timeout_ms} ms, "
                f"but {namespace} allows {limits.max_timeout_ms} (maxTimeoutMs of the policy "
                "transactionLimits): begin one with a shorter timeout"
            )
        if 0 < limits.max_open <= self.live_in(namespace):
            raise TooManyRequests(
                f"{limits.max_open} active transactions take part in {namespace} "
                "(maxOpenTransactions of the policy transactionLimits): end some, or wait until "
                "they time out, then retry"
            )


def namespaces_of(topics: Sequence[str]) -> list[str]:
    """The namespaces of topics, whose names are as clients sent them. Leaves out invalid names,
    which old logs may contain.
    """
    if len(topics) == 1:  # nearly always
        found_one = _namespace_of(topics[0].rpartition("/")[0])
        return [found_one] if found_one else []
    folders = {topic.rpartition("/")[0] for topic in topics}  # few, however many topics there are
    found = {namespace for folder in folders if (namespace := _namespace_of(folder))}
    return sorted(found)


@lru_cache(maxsize=1000)
def _namespace_of(folder: str) -> str | None:
    try:
        return TopicName.parse(f"{folder}/t" if folder else "t").namespace_name
    except InvalidTopicName:
        return None
