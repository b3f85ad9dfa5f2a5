"""The figures of one coordinator, for the admin API and metrics."""

from dataclasses import dataclass
from typing import Final

from managed_ledger.histogram import Histogram
from pybroker.transaction.coordinator.ends.participants import Retry

# Apache Pulsar's bounds.
EXECUTION_MS: Final = (
    *(10, 20, 50, 100, 500, 1000, 5000, 15_000, 30_000, 60_000),
    *(300_000, 1_500_000, 3_000_000),
)


class ExecutionTimes(Histogram):
    """How long transactions took, from the beginning until all participants had ended them."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(EXECUTION_MS)


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
