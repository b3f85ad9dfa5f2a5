"""The figures of one coordinator, for the admin API and metrics."""

from dataclasses import dataclass

from pybroker.transaction.coordinator.ends.execution_times import ExecutionTimes
from pybroker.transaction.coordinator.ends.participants import Retry


@dataclass(frozen=True, slots=True)
class CoordinatorStats:
    coordinator_id: int
    active: int
    low_watermark: int
    highest_id: int  # -1 before the first
    opened: int
    committed: int
    aborted: int
    timed_out: int
    retries: list[Retry]
    given_up: list[Retry]
    appended: int  # records written to its log since it was opened
    execution_ms: ExecutionTimes  # from the beginning until all participants have ended it
