"""Wrong brokers, each made by one change to the right one. The simulation must catch them.

A module per area; each has a table `BUGS` from a bug's name to its context manager.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from bugs import (
    applying,
    beginning,
    believing,
    committing,
    compacting,
    deduplicating,
    delivering,
    disbelieving,
    dropping,
    fencing,
    freeing,
    grouping,
    isolating,
    kafka_groups,
    kafka_messages,
    kafka_shares,
    kafka_transactions,
    naming,
    one_commit,
    ordering,
    passing_over,
    preparing,
    ranging,
    restoring,
    splitting,
    storing,
    switching,
    terminating,
    transactions,
    truncating,
)

Bug = Callable[[], AbstractContextManager[None]]
AREAS = (
    applying,
    beginning,
    believing,
    committing,
    compacting,
    deduplicating,
    delivering,
    disbelieving,
    dropping,
    fencing,
    freeing,
    grouping,
    isolating,
    kafka_groups,
    kafka_messages,
    kafka_shares,
    kafka_transactions,
    naming,
    one_commit,
    ordering,
    passing_over,
    preparing,
    ranging,
    restoring,
    splitting,
    storing,
    switching,
    terminating,
    transactions,
    truncating,
)
BUGS: dict[str, Bug] = {name: bug for area in AREAS for name, bug in area.BUGS.items()}
