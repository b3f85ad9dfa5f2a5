"""The effective policies of a topic: the topic's value, else its namespace's, else the broker's.

A value is resolved on first use and cached, so that code that needs it for each message pays only
for a dict lookup. An `Effective` never changes; a policy change creates a new one, and the topic is
notified. Topics without policies of their own share that of their namespace.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pybroker.base.configuration.config import BrokerConfig
from pybroker.broker.policies.policy import Policy

T = TypeVar("T")
Values = Mapping[str, Any]  # values that were set, by policy name


class Effective:
    __slots__ = ("_found", "_levels", "_made", "config")

    def __init__(self, config: BrokerConfig, levels: Sequence[Values]) -> None:
        """The most specific level comes first."""
        self.config = config
        self._levels = levels
        self._found: dict[Policy[Any], Any] = {}
        self._made: dict[Any, Any] = {}

    @property
    def least_specific(self) -> Values:
        return self._levels[-1]

    def __getitem__(self, policy: Policy[T]) -> T:
        if policy not in self._found:
            self._found[policy] = self._find(policy)
        return self._found[policy]  # type: ignore[no-any-return]

    def made(self, make: "Callable[[Effective], T]") -> T:
        """The result of `make` for this object, which is computed once."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]  # type: ignore[no-any-return]

    def _find(self, policy: Policy[T]) -> T:
        name = policy.name
        if policy.merged:
            merged: Any = policy.of_broker(self.config)
            for level in reversed(self._levels):
                merged = merged | level.get(name, {})
            return merged  # type: ignore[no-any-return]
        found = self.was_set(policy)
        return policy.of_broker(self.config) if found is None else found

    def was_set(self, policy: Policy[T]) -> T | None:
        """The value at the most specific level; None if only broker.conf has one."""
        return next((level[policy.name] for level in self._levels if policy.name in level), None)
