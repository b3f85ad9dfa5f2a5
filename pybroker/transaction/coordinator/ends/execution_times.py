"""How long transactions took, from the beginning until all participants had ended them."""

from typing import Final

from managed_ledger.histogram import Histogram

# Apache Pulsar's bounds.
EXECUTION_MS: Final = (
    *(10, 20, 50, 100, 500, 1000, 5000, 15_000, 30_000, 60_000),
    *(300_000, 1_500_000, 3_000_000),
)


class ExecutionTimes(Histogram):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(EXECUTION_MS)
