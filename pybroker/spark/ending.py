"""Runs an action when a run of a query has ended. Spark notifies its listeners, not foreachBatch.

A batch's own session is a copy whose listeners are never called. So this module asks the query for
the session in which it was started.
"""

import logging
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQueryManager

log = logging.getLogger("pybroker.spark")


def when_terminated(
    spark: SparkSession, query_id: str, run_id: str, action: Callable[[], None]
) -> None:
    """`spark` is a batch's session. Does nothing if this Spark does not list its queries."""
    try:
        jvm: Any = spark.sparkContext._jvm
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        query = queries.get(jvm.java.util.UUID.fromString(query_id))
        manager = StreamingQueryManager(query.sparkSession().streams())
        manager.addListener(_Ending(manager, run_id, action))
    except (AttributeError, TypeError, Py4JError) as error:
        log.info("Cannot listen for the end of run %s: %s", run_id, error)


class _Ending(StreamingQueryListener):
    def __init__(
        self, manager: StreamingQueryManager, run_id: str, action: Callable[[], None]
    ) -> None:
        self._manager = manager
        self._run_id = run_id
        self._action = action

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.runId) == self._run_id:
            self._manager.removeListener(self)
            self._action()
