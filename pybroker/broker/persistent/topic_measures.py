"""Measurements over all persistent topics of a broker."""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import TypeVar

from managed_ledger.histogram import Histogram, geometric
from managed_ledger.storage.commit_stats import CommitStats

T = TypeVar("T")


class TopicMeasures:
    """Times are in milliseconds, with bounds for quantiles that are accurate to within a tenth."""

    def __init__(self, commits: CommitStats) -> None:
        self.commits = commits
        self.publish_ms = Histogram(geometric(0.05, 60_000, 1.1))  # each entry, until its receipt
        self.load_ms = Histogram(geometric(0.05, 60_000, 1.1))
        self.loading = self.failed_loads = 0
        self.evictions = Counter[str]()  # of backlogs over their quota, by the kind of quota

    async def of_load(self, loading: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.loading += 1
        try:
            loaded = await loading
        except Exception:
            self.failed_loads += 1
            raise
        finally:
            self.loading -= 1
        self.load_ms.add(1000 * (loop.time() - began_s))
        return loaded
