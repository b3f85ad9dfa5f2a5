"""One policy: where it can be set, under which names, what a value looks like, what holds else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pybroker.base.config import BrokerConfig
from pybroker.broker.policies.kinds import Check

T = TypeVar("T")
Record = dict[str, Any]  # a JSON object, complete


@dataclass(frozen=True, slots=True)
class Level:
    """How the admin API calls a policy of a namespace or of a topic.

    `field` is its name in Apache Pulsar's Policies or TopicPolicies, and in what is stored. `unset`
    is what GET says of one that is not set; None is no content.
    """

    path: str
    field: str
    verb: str = "POST"  # that sets it
    unset: Any = None
    removable: bool = True  # by DELETE
    by_query: bool = False  # the value is a query parameter of the path's name
    by_cluster: bool = False  # within Policies it stands under the cluster's name
    by_hand: bool = False  # its routes are no family's
    bare: bool = False  # the body is the text itself, without quotes
    meant: Any = None  # what a request without a body sets


@dataclass(frozen=True, eq=False)
class Policy(Generic[T]):
    """`broker` says what holds where nothing is set: the name of a field of BrokerConfig, several
    of them by field of the record, or a value. Somebody here does as it says, unless it is `off`.
    """

    name: str
    check: Check
    broker: str | Mapping[str, Any] | Callable[[BrokerConfig], T]
    namespace: Level | None = None
    topic: Level | None = None
    off: str = ""  # why it has no effect here, if it has none
    off_fields: Mapping[str, str] = field(default_factory=dict)  # as that, of parts of a record
    merged: bool = False  # an object of which each level may say a part

    def of_broker(self, config: BrokerConfig) -> T:
        """What holds where nothing is set."""
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
    """The name of a field of BrokerConfig, in a record."""

    name: str


def _value(config: BrokerConfig, of: Any) -> Any:
    return getattr(config, of.name) if isinstance(of, Key) else of
