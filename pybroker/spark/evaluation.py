"""A stateful query keeps its state by being evaluated, each partition of each batch.

Spark writes a partition's new state when the partition has been computed to its end. So a batch
must be evaluated though it was committed before, and though `write` looks at a part of it only.
"""

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame


def evaluate(batch: DataFrame) -> None:
    batch.write.format("noop").mode("overwrite").save()


def evaluate_rest(batch: DataFrame) -> None:
    """Of a persisted batch: what nobody has evaluated yet."""
    if not _is_cached_whole(batch):
        evaluate(batch)


def _is_cached_whole(batch: DataFrame) -> bool:
    """Spark's own account; these names are no part of its API, so where they are gone: no."""
    try:
        manager = batch.sparkSession._jsparkSession.sharedState().cacheManager()
        cached = manager.lookupCachedData(batch._jdf)
        relation = cached.get().cachedRepresentation()
        return bool(relation.cacheBuilder().isCachedColumnBuffersLoaded())
    except (AttributeError, TypeError, Py4JError):
        return False
