"""One policy: where it can be set, its names, its type, its default."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies.kinds import Check

T = TypeVar("T")
Record = dict[str, Any]  # a complete JSON object


@dataclass(frozen=True, slots=True)
class Level:
    """How the admin API names a policy of a namespace or of a topic.

    `field` is its name in Apache Pulsar's Policies or TopicPolicies, and in the storage. `unset` is
    GET's answer if it is not set; None means no content.
    """

    path: str
    field: str
    verb: str = "POST"  # the method that sets it
    unset: Any = None
    removable: bool = True  # by DELETE
    by_query: bool = False  # the value is a query parameter named like the path
    by_cluster: bool = False  # within Policies it is nested under the cluster's name
    by_hand: bool = False  # its routes are written individually
    bare: bool = False  # the body is plain text, without quotes
    meant: Any = None  # the value set by a request without a body


@dataclass(frozen=True, eq=False)
class Policy(Generic[T]):
    """`broker` is the default: the name of a field of BrokerConfig, a function of BrokerConfig, or
    for a record a `Key` or a constant per field. A policy has an effect here unless it is `off`.
    """

    name: str
    check: Check
    broker: str | Mapping[str, Any] | Callable[[BrokerConfig], T]
    namespace: Level | None = None
    topic: Level | None = None
    off: str = ""  # why it has no effect here, if so
    off_fields: Mapping[str, str] = field(default_factory=dict)  # the same, for fields of a record
    merged: bool = False  # an object whose parts may come from different levels

    def of_broker(self, config: BrokerConfig) -> T:
        """The default."""
        found: Any
        if callable(self.broker):
            return self.broker(config)
        if isinstance(self.broker, str):
            found = getattr(config, self.broker)
        else:
            found = {field: _value(config, of) for field, of in self.broker.items()}
        return found  # type: ignore[no-any-return]  # a test compares them with the check


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a field of BrokerConfig, within a record."""

    name: str


def _value(config: BrokerConfig, of: Any) -> Any:
    return getattr(config, of.name) if isinstance(of, Key) else of
