"""A stateful query keeps its state only if every partition of every batch is evaluated.

Spark writes a partition's new state when the partition has been computed to its end. So a batch
must be evaluated even if it was committed before, or if `write` looks at only a part of it.
"""

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame


def evaluate(batch: DataFrame) -> None:
    batch.write.format("noop").mode("overwrite").save()


def evaluate_rest(batch: DataFrame) -> None:
    """Evaluates the partitions of a persisted batch that are not evaluated yet."""
    if not _is_cached_whole(batch):
        evaluate(batch)


def _is_cached_whole(batch: DataFrame) -> bool:
    """Asks Spark. These names are not part of its API; if they are missing, returns False."""
    try:
        manager = batch.sparkSession._jsparkSession.sharedState().cacheManager()
        cached = manager.lookupCachedData(batch._jdf)
        relation = cached.get().cachedRepresentation()
        return bool(relation.cacheBuilder().isCachedColumnBuffersLoaded())
    except (AttributeError, TypeError, Py4JError):
        return False
