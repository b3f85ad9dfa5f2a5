"""How the spans of a batch are shared out among tasks.

A partition is a task of its own, so that all cores read. But a task costs Spark some 30 ms, and
thousands of topics with little in each would take minutes: beyond a number of tasks, each reads
several partitions.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.spark.reading.work import Work

MOST_TASKS: Final = 64


def shared_out(works: Sequence[Work], most_tasks: int = MOST_TASKS) -> list[Sequence[Work]]:
    """For each task its works. Neighbours in `works` go to different tasks: partitions of one topic
    are likely to be of one size."""
    tasks = min(len(works), most_tasks)
    return [works[at::tasks] for at in range(tasks)]
