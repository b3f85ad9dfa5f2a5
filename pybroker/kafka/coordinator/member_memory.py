"""What the members of groups take in memory, with bounds: for a group, a user, and all together.

What members say of themselves is not in any log before their group is stable, and that of KIP-848's
never is: so the bound of the logs does not hold for it. A group is counted again after each change.
A member that would take too much hears GROUP_MAX_SIZE_REACHED.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from pybroker.base.runtime import Seldom
from pybroker.kafka.coordinator.limits import CoordinatorLimits
from pybroker.kafka.errors import ErrorCode, KafkaError

_GROUP_BYTES: Final = 3_000  # a group without members, with its timer

log = logging.getLogger(__name__)

Sizes = Mapping[str, int]  # bytes by user: a role, or the address of a client without one


class MemberMemory:
    """Of all groups that a broker coordinates."""

    def __init__(self, limits: CoordinatorLimits) -> None:
        self._limits = limits
        self._of_group: dict[str, Sizes] = {}
        self._of_user: Counter[str] = Counter()
        self._refusals = Seldom(log, "The memory of Kafka's groups is limited")

    @property
    def size_bytes(self) -> int:
        return self._of_user.total()

    def check(self, group_id: str, user: str, growth_bytes: int) -> None:
        """Raises KafkaError, if a member may not take so much more."""
        if growth_bytes <= 0:
            return
        limits, of_group = self._limits, self._of_group.get(group_id, {})
        for what, size, most in (
            (
                f"The members of {group_id[:200]!r}",
                sum(of_group.values()),
                limits.group_memory_bytes,
            ),
            (f"The members of {user[:200]!r}", self._of_user[user], limits.user_memory_bytes),
            ("The members of all groups", self.size_bytes, limits.members_memory_bytes),
        ):
            if size + growth_bytes > most:
                why = f"{what} may take {most} bytes: use fewer members, or shorter subscriptions"
                self._refusals.say(why)
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, why)

    def put(self, group_id: str, sizes: Sizes) -> None:
        """The group takes so much now, and what it takes itself."""
        self.drop(group_id)
        whose = next(iter(sizes), "")
        self._of_group[group_id] = {**sizes, whose: sizes.get(whose, 0) + _GROUP_BYTES}
        self._of_user.update(self._of_group[group_id])

    def drop(self, group_id: str) -> None:
        for user, size in self._of_group.pop(group_id, {}).items():
            self._of_user[user] -= size
            if not self._of_user[user]:
                del self._of_user[user]
