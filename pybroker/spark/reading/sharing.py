"""How the spans of a batch are distributed among tasks.

Each partition has its own task, so that all cores read. But a task costs Spark some 30 ms, and
thousands of small topics would take minutes: beyond a number of tasks, each reads several
partitions.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.spark.reading.work import Work

MOST_TASKS: Final = 64


def shared_out(works: Sequence[Work], most_tasks: int = MOST_TASKS) -> list[Sequence[Work]]:
    """The works of each task. Neighbours in `works` go to different tasks, because partitions of
    one topic tend to be of similar size."""
    tasks = min(len(works), most_tasks)
    return [works[at::tasks] for at in range(tasks)]
