"""What holds for a topic: of each policy the value of the topic, else of its namespace, else the
broker's.

A value is looked for when it is first asked for, and kept: whoever asks with each message would pay
for one look into a dict. Nothing here changes; a change of a policy makes another `Effective`, of
which the topic is told. Topics without policies of their own share their namespace's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pybroker.base.config import BrokerConfig
from pybroker.broker.policies.policy import Policy

T = TypeVar("T")
Values = Mapping[str, Any]  # what was set, by the policy's name


class Effective:
    __slots__ = ("_found", "_levels", "_made", "config")

    def __init__(self, config: BrokerConfig, levels: Sequence[Values]) -> None:
        """The level that counts most comes first."""
        self.config = config
        self._levels = levels
        self._found: dict[Policy[Any], Any] = {}
        self._made: dict[Any, Any] = {}

    def __getitem__(self, policy: Policy[T]) -> T:
        if policy not in self._found:
            self._found[policy] = self._find(policy)
        return self._found[policy]  # type: ignore[no-any-return]

    def made(self, make: "Callable[[Effective], T]") -> T:
        """What `make` makes of this, which it does once."""
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
        """At the level that counts; None if only broker.conf says something."""
        return next((level[policy.name] for level in self._levels if policy.name in level), None)
