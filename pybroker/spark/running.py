"""Runs a query in the foreground: says when it is ready, and ends it with Ctrl-C in one line.

PySpark handles Ctrl-C by asking the JVM to cancel its jobs, in the middle of another call to the
JVM, which ends in several tracebacks.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pybroker.spark")

_STEP_S: Final = 1
_LISTENERS_MS: Final = 5000
# What Spark's status says once a query has planned a batch and there is nothing to do.
_IDLE: Final = "Waiting for data to arrive"


def run(query: StreamingQuery, say: Callable[[str], None] = print) -> None:
    """Returns when the query has ended, or has been stopped with Ctrl-C. Raises what it failed of.

    Outside the main thread, which alone can handle signals, Ctrl-C is left to others.
    """
    name = query.name or query.id
    with _interrupts() as interrupted:
        is_ready = False
        while not interrupted.is_set():
            if not is_ready and _is_ready(query):
                say(f"Query {name} is running. Ctrl-C stops it.")
                is_ready = True
            if query.awaitTermination(_STEP_S):
                say(f"Query {name} has ended.")
                break
        else:
            query.stop()
            say(f"Query {name} was stopped; started again, it continues at its checkpoint.")
    _wait_for_listeners()


def _is_ready(query: StreamingQuery) -> bool:
    status = query.status
    return status["isDataAvailable"] or status["message"] == _IDLE or query.lastProgress is not None


def _wait_for_listeners() -> None:
    """Spark tells Python's listeners of the end later, and logs an error if Python is gone by then.
    These names are not part of its API."""
    try:
        context = SparkContext._active_spark_context
        if context is not None:
            context._jsc.sc().listenerBus().waitUntilEmpty(_LISTENERS_MS)
    except (AttributeError, TypeError, Py4JError) as error:
        log.info("Cannot wait for Spark's listeners: %s", error)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set by Ctrl-C from now on."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
