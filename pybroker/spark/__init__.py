"""Exactly-once pipelines with PySpark: a streaming source and what `foreachBatch` needs.

register(spark)
transfers = spark.readStream.format("pulsar").options(service_url=…, topic=…, …).load()
write = exactly_once(ledger, service_url=…, checkpoint=…, control_topic=…)
run(transfers.writeStream.foreachBatch(write).option("checkpointLocation", …).start())

The names are imported lazily: Spark's Python processes need only a few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pybroker.spark.datasource import PulsarDataSource, register
    from pybroker.spark.decision import BatchRefused, CursorsDisagree
    from pybroker.spark.jdbc_connection import jdbc
    from pybroker.spark.marker import Marker
    from pybroker.spark.replay import InputLost
    from pybroker.spark.running import run
    from pybroker.spark.target import Database
    from pybroker.spark.transactional import Fenced, Step, exactly_once
    from pybroker.spark.work import Work

__all__ = [
    "BatchRefused",
    "CursorsDisagree",
    "Database",
    "Fenced",
    "InputLost",
    "Marker",
    "PulsarDataSource",
    "Step",
    "Work",
    "exactly_once",
    "jdbc",
    "register",
    "run",
]

# No module may have the name of what it defines: its import would shadow that name in the package.
_MODULES: Final = {
    "BatchRefused": "decision",
    "CursorsDisagree": "decision",
    "Database": "target",
    "Fenced": "transactional",
    "InputLost": "replay",
    "Marker": "marker",
    "PulsarDataSource": "datasource",
    "Step": "transactional",
    "Work": "work",
    "exactly_once": "transactional",
    "jdbc": "jdbc_connection",
    "register": "datasource",
    "run": "running",
}
_PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        # Also for modules that PySpark 3 does not have, such as pyspark.sql.datasource.
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        reason = f"{error.msg}; pybroker.spark needs: pip install 'pybroker[spark]'"
        raise ModuleNotFoundError(reason, name=error.name) from error
    found = getattr(module, name)
    globals()[name] = found
    return found
