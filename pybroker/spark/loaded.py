"""What a worker of Spark has loaded.

Spark's Python collects garbage between two tasks, and the next task waits for it. Among all modules
that takes 35 ms, each time; what is there when our first task begins is left out from then on.
"""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def keep_what_is_loaded() -> None:
    """At the beginning of a task; elsewhere, as on a driver, nothing happens."""
    if TaskContext.get() is not None:
        gc.freeze()
