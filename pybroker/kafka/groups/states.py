"""The states of a classic group, and their transitions.

Source: Kafka's protocol guide, "Group Membership API"; the names are those of DescribeGroups.
"""

import enum
from typing import Final


class GroupState(enum.Enum):
    EMPTY = "Empty"  # no members; offsets may be left
    PREPARING_REBALANCE = "PreparingRebalance"  # members are joining the next generation
    COMPLETING_REBALANCE = "CompletingRebalance"  # all have joined; the leader assigns
    STABLE = "Stable"  # every member has its assignment
    DEAD = "Dead"  # deleted; whoever still refers to it looks the group up again


TRANSITIONS: Final = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset[GroupState](),
}
