"""Excludes the modules that a Spark worker has loaded from garbage collection.

Spark's Python collects garbage between two tasks, and the next task waits for it. With all modules
loaded that takes 35 ms each time. So all objects that exist when the first task begins are frozen.
"""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def keep_what_is_loaded() -> None:
    """Call at the beginning of a task; elsewhere, as on a driver, this does nothing."""
    if TaskContext.get() is not None:
        gc.freeze()
